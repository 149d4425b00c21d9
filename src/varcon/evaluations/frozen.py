"""An encoder that no longer learns: images in, pooled features out, each split encoded once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.augment import AugmentSettings, augment, prepare
from varcon.core import Data, InputError, OnProgress, Split
from varcon.evaluations.store import FeatureStore

IMAGES_AT_ONCE = 512
CELLS_AT_ONCE = 2**24  # of a [samples x classes] matrix: 128 MiB in float64, however many samples there are


class FrozenEncoder:
    def __init__(
        self,
        encoder: nn.Module,
        data: Data,
        device: torch.device,
        progress: OnProgress | None = None,
        store: FeatureStore | None = None,
    ) -> None:
        encoder = encoder.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.encoder = encoder.eval().requires_grad_(False)
        self.mean, self.std, self.device = data.mean, data.std, device
        self.progress: OnProgress = progress or (lambda done, total, what: None)
        self._store = store
        self._kept: dict[int, tuple[Split, Tensor]] = {}

    def features(self, split: Split) -> Tensor:
        """The features [N, F] of a split as it is, on the device; kept here and in the store."""
        if id(split) not in self._kept:
            stored = self._store.read(split) if self._store else None
            features = self._encode_all(split) if stored is None else stored.to(self.device)
            if self._store and stored is None:
                self._store.write(split, features)
            self._kept[id(split)] = (split, features)
        return self._kept[id(split)][1]

    def _encode_all(self, split: Split) -> Tensor:
        parts = []
        for start in range(0, len(split), IMAGES_AT_ONCE):
            self.progress(start, len(split), "encoding images")
            parts.append(self.encode(split.images[start : start + IMAGES_AT_ONCE]))
        self.progress(len(split), len(split), "encoding images")
        return torch.cat(parts)

    def encode(self, images: Tensor) -> Tensor:
        """The features [N, F] of images as they are, on the device; kept nowhere."""
        return self._features(prepare(images.to(self.device), self.mean, self.std))

    def augmented_features(
        self, images: Tensor, settings: AugmentSettings, generator: torch.Generator
    ) -> Tensor:
        return self._features(augment(images, settings, self.mean, self.std, generator))

    @torch.no_grad()
    def _features(self, images: Tensor) -> Tensor:
        features = self.encoder(images).float()
        check_finite(features)  # for all who judge them: most would find numbers, and wrong ones
        return features


class Pixels(nn.Module):
    """Images as vectors, averaged down to 32 x 32: larger ones would fill memory and say no more."""

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim == 2:  # vectors already
            return images
        return F.adaptive_avg_pool2d(images, min(32, images.shape[-1])).flatten(1)


def raw_pixels(data: Data, device: torch.device) -> FrozenEncoder:
    """The baseline that every encoder must beat: the normalised pixels themselves."""
    return FrozenEncoder(Pixels(), data, device)


def checked_features(encoder: FrozenEncoder, split: Split) -> tuple[Tensor, Tensor]:
    """The features and labels of a split, on the encoder's device."""
    if not len(split):
        raise InputError("there are no images to evaluate on; give at least one of each part")
    return encoder.features(split), split.labels.to(encoder.device)


def check_finite(features: Tensor) -> None:
    if not torch.stack(torch.aminmax(features)).isfinite().all():
        raise InputError(
            "the features hold NaN or infinity; train the encoder with a lower learning rate, or correct "
            "vectors that lie far from all others"
        )


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Parts of the rows of a matrix that is too large to be made at once."""
    step = max(1, CELLS_AT_ONCE // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)
