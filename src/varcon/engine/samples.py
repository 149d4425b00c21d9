"""What a method reports of every training image, epoch by epoch: which are sure, which stay hard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varcon.distributed import sum_over_processes
from varcon.files import replacing

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # of the images that lie below each quantile
BINS = 50  # of the density over [0, 1]


class SampleRecord:
    """Holds the epoch's value of each image, and the sum over epochs; a value lies in [0, 1]."""

    def __init__(self, images: int, device: torch.device) -> None:
        self._images, self._device = images, device
        self._epoch: dict[str, Tensor] = {}  # [images], NaN where an image has not come up yet
        self._sums: dict[str, Tensor] = {}  # [images], over the epochs that are over
        self._counts: dict[str, Tensor] = {}  # [images], how many of them had the image

    def note(self, indices: Tensor, values: dict[str, Tensor]) -> None:
        """Only writes to tensors that stay, so that a captured step can do it."""
        for name, value in values.items():
            if name not in self._epoch:
                self._begin(name)
            self._epoch[name].index_copy_(0, indices, value.detach().float())

    def end_epoch(self) -> dict[str, dict[str, Any]]:
        """Mean, deviation, quantiles and density of each kind of value, over the images that came up."""
        summaries = {}
        for name, values in self._epoch.items():
            seen = sum_over_processes((~values.isnan()).float())
            values = sum_over_processes(values.nan_to_num(0))
            self._sums[name] += values
            self._counts[name] += seen
            # In a balanced epoch several processes may have had the same image.
            summaries[name] = summary(values[seen > 0] / seen[seen > 0])
            self._epoch[name].fill_(torch.nan)
        return summaries

    def write(self, path: Path) -> None:
        """Each image's mean over the epochs, NaN for one that never came up."""
        if self._sums:
            means = {name: (sums / self._counts[name]).cpu().numpy() for name, sums in self._sums.items()}
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **means)  # type: ignore[arg-type]

    def state(self) -> dict[str, dict[str, Tensor]]:
        kinds = {"epoch": self._epoch, "sums": self._sums, "counts": self._counts}
        return {kind: {name: value.cpu() for name, value in kept.items()} for kind, kept in kinds.items()}

    def restore(self, state: dict[str, dict[str, Tensor]]) -> None:
        for kind, kept in (("epoch", self._epoch), ("sums", self._sums), ("counts", self._counts)):
            kept.update({name: value.to(self._device, copy=True) for name, value in state[kind].items()})

    def _begin(self, name: str) -> None:
        self._epoch[name] = torch.full((self._images,), torch.nan, device=self._device)
        self._sums[name] = torch.zeros(self._images, device=self._device)
        self._counts[name] = torch.zeros(self._images, device=self._device)


def summary(values: Tensor) -> dict[str, Any]:
    """Computed where the values are, and fetched at once: meanwhile a GPU would stand still."""
    ordered = values.double().sort().values
    shares = torch.tensor(SHARES, dtype=torch.float64, device=values.device)
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64, device=values.device)
    below = torch.searchsorted(ordered, edges)
    below[-1] = len(ordered)  # the last bin holds its upper edge too
    moments = torch.stack([ordered.mean(), ordered.std(correction=0)])
    parts = (moments, at_shares(ordered, shares), below.diff() * (BINS / len(ordered)))
    mean, deviation, *rest = map(rounded, torch.cat(parts).tolist())
    quantiles, density = rest[: len(SHARES)], rest[len(SHARES) :]
    return {"mean": mean, "deviation": deviation, "quantiles": quantiles, "density": density}


def at_shares(ordered: Tensor, shares: Tensor) -> Tensor:
    """Quantiles, between two values in proportion; torch.quantile takes at most 2**24 values."""
    places = shares * (len(ordered) - 1)
    before = ordered[places.floor().long()]
    return before + (places - places.floor()) * (ordered[places.ceil().long()] - before)


def rounded(value: float) -> float:
    return float(f"{value:.5g}")
