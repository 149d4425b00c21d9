"""Our numbers, read from the folders of runs: what evaluations found and what the journals tell."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from varcon import run_folder
from varcon.core import InputError
from varcon.engine.journal import read_rows
from varcon.engine.samples import SHARES
from varcon.reports.epochs import epoch_means
from varcon.reproduce.entries import Entry, Reading
from varcon.reproduce.setup import Runs

PARTS = (20, 40, 60, 80, 100)  # percent of the training that is over


@dataclass(frozen=True)
class Cell:
    """What a table shows of ours: the mean over the runs that have the score."""

    values: tuple[float, ...]
    folders: tuple[Path, ...]
    less: tuple[Path, ...] = ()  # of a difference: the runs that were taken away, in the same order

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None


class Gathered:
    """The finished runs of each kind, and what can be read from them."""

    def __init__(self, folders: dict[Runs, dict[int, Path]]) -> None:  # by seed
        self.folders = folders
        self._scores = cache(scores)  # a table reads many from one file

    def first(self, runs: Runs) -> Path | None:
        """The run of the first seed, which a figure draws."""
        return next(iter(self.folders.get(runs, {}).values()), None)

    def cell(self, entry: Entry) -> Cell | None:
        if entry.measured is not None:
            return Cell((entry.measured,), ())
        if entry.ours is None:
            return None
        ours = self._read(entry.ours)
        if entry.less is None:
            return Cell(tuple(ours.values()), self._of(entry.ours, ours)) if ours else None
        theirs = self._read(entry.less)
        # Seed by seed: either side may lack a run that failed.
        lead = {seed: value - theirs[seed] for seed, value in ours.items() if seed in theirs}
        if not lead:
            return None
        return Cell(tuple(lead.values()), self._of(entry.ours, lead), self._of(entry.less, lead))

    def _read(self, reading: Reading) -> dict[int, float]:
        """By seed."""
        found = {}
        for seed, folder in self.folders.get(reading.runs, {}).items():
            value = self._scores(folder, reading.finding).get(reading.score)
            if value is not None and np.isfinite(value):
                found[seed] = value
        return found

    def _of(self, reading: Reading, seeds: Iterable[int]) -> tuple[Path, ...]:
        return tuple(self.folders[reading.runs][seed] for seed in seeds)


def scores(folder: Path, finding: str) -> dict[str, float]:
    if finding in FROM_JOURNALS:
        return FROM_JOURNALS[finding](folder)
    path = folder / "findings" / f"{finding}.json"
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["scores"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        raise InputError(f"{path} cannot be read; delete it and start the command again") from None


def losses(folder: Path) -> dict[str, float]:
    """`loss@first`, `kl@20 %`, `nll@last` and the like, means over an epoch."""
    epochs, terms = epoch_means(read_rows(folder / "metrics.jsonl"))
    places = {"first": 0, "last": -1, "20 %": max(0, round(0.2 * len(epochs)) - 1)}
    return {
        f"{term}@{part}": float(terms[term][place])
        for term in ("loss", "kl", "nll")
        if term in terms
        for part, place in places.items()
    }


@dataclass(frozen=True)
class Temperatures:
    """tau2 of the training images after each epoch."""

    epochs: np.ndarray  # [E]
    mean: np.ndarray  # [E]
    deviation: np.ndarray
    quantiles: np.ndarray  # [E, len(SHARES)]
    epsilon: np.ndarray
    places: np.ndarray  # [E, bins], of the density
    density: np.ndarray  # [E, bins]


def temperatures(folder: Path) -> Temperatures:
    """From the confidence p that the run kept of each image: tau2 = (tau1 - eps) + 2 eps p, Eq. 13."""
    rows = [row for row in read_rows(folder / "samples.jsonl") if "confidence" in row]
    if not rows:
        raise InputError(f"{folder} kept no confidence of its images; only VarCon's runs do")
    epochs, terms = epoch_means(read_rows(folder / "metrics.jsonl"))
    places = {epoch: place for place, epoch in enumerate(epochs.tolist())}
    at = [places[row["epoch"]] for row in rows]
    confidence = [row["confidence"] for row in rows]
    epsilon = terms["epsilon"][at]
    # Where tau1 moves, by its mean over the epoch.
    tau1 = terms["tau1"][at] if "tau1" in terms else run_folder.stored_recipe(folder).method.temperature
    low, width = tau1 - epsilon, 2 * epsilon
    density = np.array([one["density"] for one in confidence])
    middles = (np.arange(density.shape[1]) + 0.5) / density.shape[1]
    safe = np.maximum(width, 1e-9)  # without epsilon all images have one tau2
    return Temperatures(
        np.array([row["epoch"] for row in rows]),
        low + width * np.array([one["mean"] for one in confidence]),
        width * np.array([one["deviation"] for one in confidence]),
        low[:, None] + width[:, None] * np.array([one["quantiles"] for one in confidence]),
        epsilon,
        low[:, None] + width[:, None] * middles,
        density / safe[:, None],
    )


def tau2(folder: Path) -> dict[str, float]:
    """`mean@20`, `75 %@100` and the like."""
    found = temperatures(folder)
    named = {"least": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "greatest": 1.0}
    values = {}
    for part in PARTS:
        place = at_part(len(found.epochs), part)
        values[f"mean@{part}"] = float(found.mean[place])
        values[f"deviation@{part}"] = float(found.deviation[place])
        values[f"epsilon@{part}"] = float(found.epsilon[place])
        for name, share in named.items():
            values[f"{name}@{part}"] = float(found.quantiles[place, SHARES.index(share)])
    return values


def at_part(epochs: int, percent: int) -> int:
    """The position of the epoch that ends this part of the training."""
    return max(1, round(epochs * percent / 100)) - 1


FROM_JOURNALS: dict[str, Callable[[Path], dict[str, float]]] = {"losses": losses, "tau2": tau2}
