"""Runs of one recipe together, and what tells recipes apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from varcon.engine.state import FREE_ON_RESUME
from varcon.reports.charts import Marks
from varcon.reports.collect import Run, flat

# Which of its kind a run is, what it keeps on the way, and how it was carried out. How it is judged is none
# of these: scores of other settings have no common mean.
ASIDE = {"train.seed", "data.per_class_seed", "train.snapshots", *FREE_ON_RESUME} - {"evaluate"}
ZERO = {"data.image_size": "own", "data.per_class": "all"}  # what 0 means, which as a number tells nobody


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
        alike = _judged_alike([run for run in self.runs if finding in run.findings], finding)
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
        # A setting that is none is as one that the run's version did not have yet.
        given = {name: value for name, value in _computed(run).items() if value is not None}
        members.setdefault(json.dumps(given, sort_keys=True, default=str), []).append(run)
    recipes = [_computed(group[0]) for group in members.values()]
    telling = _telling_apart(recipes, differing_settings(runs))
    groups = [
        Group(", ".join(_words(recipe, telling)) or f"{group[0].method} on {group[0].data}", group)
        for recipe, group in zip(recipes, members.values(), strict=True)
    ]
    labels = [group.label for group in groups]
    return [
        group
        if labels.count(group.label) == 1
        else replace(group, label=f"{group.label} ({group.runs[0].name})")
        for group in groups
    ]


def _telling_apart(recipes: list[dict[str, Any]], differing: list[str]) -> list[str]:
    """Few settings, whose words are the same in no two recipes: the data and the method as far as they tell
    these apart, then in turn whichever splits most of what is still alike."""
    chosen: list[str] = []

    def kinds(names: list[str]) -> int:
        return len({tuple(_words(recipe, names)) for recipe in recipes})

    def worth(name: str) -> tuple[int, int]:
        unsaid = sum(name in ZERO and not recipe.get(name) for recipe in recipes)
        return kinds([*chosen, name]), -unsaid  # of equals, what says something of every recipe

    first = [name for name in differing if name in ("data.name", "method.name")]
    for names in filter(None, (first, differing)):
        while worth(best := max(names, key=worth))[0] > kinds(chosen):
            chosen.append(best)
    return sorted(chosen, key=lambda name: (name not in first, differing.index(name)))


def _words(recipe: dict[str, Any], names: list[str]) -> list[str]:
    """The settings of these names that a recipe has, with their sections only where two would be alike."""
    last = [name.split(".")[-1] for name in names]
    found = []
    for name, own in zip(names, last, strict=True):
        called = "" if own == "name" else f"{own} " if last.count(own) == 1 else f"{name} "
        found += [called + _said(name, recipe[name])] if name in recipe else []
    return found


def _said(name: str, value: Any) -> str:
    if name in ZERO and not value:
        return ZERO[name]
    return "none" if value in ("", None, []) else str(value)


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


def _judged_alike(runs: list[Run], finding: str) -> bool:
    """With the same settings, but for what each run has of its own, and by the same labels; earlier versions
    did not note by which. Of a part of the images, drawn by a seed of the run's own, the labels are its own
    too."""
    found = [run.findings[finding] for run in runs]
    own = ("seed", "epsilon", "path")  # drawn, learned, and where the data of a transfer lie
    settings = [
        {name: value for name, value in flat(one.settings).items() if name.split(".")[-1] not in own}
        for one in found
    ]
    labels = {(str(run.setting("data.per_class_seed")), run.findings[finding].labels) for run in runs}
    labels = {(drawn, label) for drawn, label in labels if label}
    return all(one == settings[0] for one in settings) and len({drawn for drawn, _ in labels}) == len(labels)


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
    """Where there are several recipes, runs of one look alike and go by what tells it from the others."""
    if len(groups) == 1:
        return [Look(run, style, run.name) for style, run in enumerate(groups[0].runs)]
    return [
        Look(run, style, f"{group.label} ({len(group.runs)} runs)" if len(group.runs) > 1 else group.label)
        for style, group in enumerate(groups)
        for run in group.runs
    ]


def told_apart(groups: list[Group]) -> list[Group]:
    """The recipes or, where there is but one, its runs."""
    return groups if len(groups) > 1 else [Group(run.name, [run]) for run in groups[0].runs]
