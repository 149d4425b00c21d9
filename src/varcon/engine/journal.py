"""metrics.jsonl: one JSON object a line, so that a run killed at any moment leaves a readable record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from varcon.distributed import sum_over_processes, world_size
from varcon.files import naming, write_text


class Journal:
    """Appends rows; without a path it keeps none, as in all processes but the first."""

    def __init__(self, path: Path | None, resumed_at: int) -> None:
        """On resuming, rows past the checkpoint are dropped, as they come again."""
        rows = read_rows(path) if path and resumed_at else []
        kept = [row for row in rows if row["step"] <= resumed_at]
        self.seconds = kept[-1].get("seconds", 0.0) if kept else 0.0  # of training that the kept rows tell of
        if path and path.exists():
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._path = path
        self._file: TextIO | None = None

    def write(self, row: dict[str, Any]) -> None:
        if self._path and not self._file:
            self._file = self._path.open("a", encoding="utf-8")
        if self._path and self._file:
            with naming(self._path):
                self._file.write(json.dumps(row) + "\n")
                self._file.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._path and self._file:
            with naming(self._path):  # what had no room is tried once more
                self._file.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a journal; a last line cut off by a kill is left out, and what is damaged ends it."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class Averages:
    """Means of the metrics between two rows, kept on the device so that no step waits for them."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sums = torch.empty(0)  # of each metric, and last the number of steps
        self._since = time.perf_counter()
        self.carried = 0.0  # seconds since the last row, of a run that was stopped there

    def add(self, metrics: dict[str, Tensor]) -> None:
        """Only adds to a tensor that stays, so that a captured step can do it."""
        values = torch.stack([value.detach().float() for value in metrics.values()])
        values = torch.nn.functional.pad(values, (0, 1), value=1.0)
        if self._names:
            self._sums += values
        else:
            self._names, self._sums = list(metrics), values

    def total(self, name: str) -> float:
        """Of a metric since the last row, in this process; waits for the device."""
        return self._sums[self._names.index(name)].item()

    def take(self, images_per_step: int) -> dict[str, float]:
        """The means since the last call over all processes, with the speed; waits for the device."""
        *totals, steps = sum_over_processes(self._sums).tolist()
        elapsed = time.perf_counter() - self._since
        row = {name: float(f"{total / steps:.6g}") for name, total in zip(self._names, totals, strict=True)}
        row["images_per_second"] = round(steps / world_size() * images_per_step / max(elapsed, 1e-9), 1)
        self._sums.zero_()
        self._since = time.perf_counter()
        return row

    def state(self) -> dict[str, Any]:
        """Of a row that is not complete."""
        seconds = time.perf_counter() - self._since
        return {"names": self._names, "sums": self._sums.cpu(), "seconds": seconds}

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        self._names, self._sums = state["names"], state["sums"].to(device, copy=True)
        self.carried = state["seconds"]
        self._since = time.perf_counter() - self.carried
