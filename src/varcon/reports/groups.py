"""Runs of one recipe together, and what tells recipes apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from varcon.engine.state import FREE_ON_RESUME
from varcon.reports.charts import Marks
from varcon.reports.collect import Finding, Run, flat

# Which of its kind a run is, what it keeps on the way, and how it was carried out. How it is judged is none
# of these: scores of other settings have no common mean.
ASIDE = {"train.seed", "data.per_class_seed", "train.snapshots", *FREE_ON_RESUME} - {"evaluate"}


@dataclass(frozen=True)
class Spread:
    mean: float
    deviation: float | None  # of a sample (n - 1); None where there is but one value
    count: int


@dataclass(frozen=True)
class Group:
    """Runs of one recipe that differ in the seed, and perhaps in how they were carried out."""

    label: str
    runs: list[Run]

    @property
    def seeds(self) -> int:
        return len({str(run.seed) for run in self.runs})

    def spread(self, finding: str, name: str) -> Spread | None:
        """None also where the runs were judged in different ways: those have no common mean."""
        alike = _judged_alike([run.findings[finding] for run in self.runs if finding in run.findings])
        return spread([run.score(finding, name) for run in self.runs]) if alike else None

    def means(self, finding: str, names: Iterable[str]) -> np.ndarray:
        """Of each score; NaN where no run has it."""
        found = [self.spread(finding, name) for name in names]
        return np.array([math.nan if one is None else one.mean for one in found])

    def deviations(self, finding: str, names: Iterable[str]) -> np.ndarray:
        """Of each score; NaN where fewer than two runs have it."""
        found = [self.spread(finding, name) for name in names]
        return np.array([math.nan if not one or one.deviation is None else one.deviation for one in found])

    def runs_with(self, finding: str, name: str) -> tuple[str, ...]:
        """The names of the runs that such a spread is made of."""
        return tuple(run.name for run in self.runs if run.score(finding, name) is not None)

    @property
    def training_seconds(self) -> float | None:
        return mean([run.training_seconds for run in self.runs])

    @property
    def images_per_second(self) -> float | None:
        return mean([run.images_per_second for run in self.runs])


def mean(values: list[float | None]) -> float | None:
    found = spread(values)
    return found.mean if found else None


def spread(values: list[float | None]) -> Spread | None:
    """Of the values that are there."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(float(np.mean(known)), deviation, len(known))


def group_by_recipe(runs: list[Run]) -> list[Group]:
    """Groups in the order of their first runs, labelled by the settings in which they differ."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(json.dumps(_computed(run), sort_keys=True, default=str), []).append(run)
    differing = differing_settings(runs)
    differing.sort(key=lambda name: name not in ("method.name", "data.name"))  # these first
    described = [_words(_computed(group[0]), differing) for group in members.values()]
    # The fewest words that tell the groups apart: of methods compared, their names alone.
    enough = next((n for n in (1, 2) if len({tuple(words[:n]) for words in described}) == len(described)), 3)
    labels: list[str] = []
    for group, words in zip(members.values(), described, strict=True):
        label = ", ".join(words[:enough]) or f"{group[0].method} on {group[0].data}"
        labels.append(label if label not in labels else f"{label} ({group[0].name})")
    return [Group(label, group) for label, group in zip(labels, members.values(), strict=True)]


def _words(settings: dict[str, Any], names: list[str]) -> list[str]:
    return [
        f"{settings[name]}" if name.endswith(".name") else f"{name.split('.')[-1]} {settings[name]}"
        for name in names
        if name in settings
    ]


def differing_settings(runs: list[Run]) -> list[str]:
    """Dotted names of the settings, but for those set aside, that are not the same in all runs."""
    recipes = [_computed(run) for run in runs]
    names = dict.fromkeys(name for recipe in recipes for name in recipe)
    return [name for name in names if any(recipe.get(name) != recipes[0].get(name) for recipe in recipes)]


def _computed(run: Run) -> dict[str, Any]:
    """The settings that decide what a run computes."""
    own = run.setting("data.name") in ("folder", "npz")  # where the data lie is then which data they are
    aside = ASIDE - {"data.path"} if own else ASIDE
    return {name: value for name, value in flat(run.recipe).items() if name not in aside}


def _judged_alike(found: list[Finding]) -> bool:
    """With the same settings, but for what each run has of its own, and by the same labels; earlier versions
    did not note by which."""
    own = ("seed", "epsilon", "path")  # drawn, learned, and where the data of a transfer lie
    settings = [
        {name: value for name, value in flat(one.settings).items() if name.split(".")[-1] not in own}
        for one in found
    ]
    labels = {one.labels for one in found} - {""}
    return all(one == settings[0] for one in settings) and len(labels) <= 1


def marks_of(groups: list[Group], finding: str, names: list[str]) -> list[Marks]:
    """The scores of these names, a mark for each recipe."""
    return [
        Marks(group.label, style, group.means(finding, names), group.deviations(finding, names))
        for style, group in enumerate(groups)
    ]


@dataclass(frozen=True)
class Look:
    """How the lines of a run are drawn among others."""

    run: Run
    style: int
    label: str


def looks(groups: list[Group]) -> list[Look]:
    """Where there are several recipes, runs of one look alike."""
    by_group = 1 < len(groups) < sum(len(group.runs) for group in groups)
    found: list[Look] = []
    for style, group in enumerate(groups):
        shared = f"{group.label} ({len(group.runs)} runs)" if by_group and len(group.runs) > 1 else ""
        for run in group.runs:
            found.append(Look(run, style if by_group else len(found), shared or run.name))
    return found


def told_apart(groups: list[Group]) -> list[Group]:
    """The recipes or, where there is but one, its runs."""
    return groups if len(groups) > 1 else [Group(run.name, [run]) for run in groups[0].runs]
