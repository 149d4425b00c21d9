"""What a report shows, one file for each kind of finding; this is the list of them, in the page's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from varcon.reports.collect import Run, flat
from varcon.reports.figures import (
    calibration,
    classifiers,
    clustering,
    confusion,
    fewshot,
    maps,
    outliers,
    robustness,
    similarity,
    temperature,
    training,
    transfer,
)
from varcon.reports.groups import Group
from varcon.reports.svg import Drawing
from varcon.reports.tables import Cell, Table, plain

Items = list[Drawing | Table]


class Kind(NamedTuple):
    title: str
    findings: tuple[str, ...]  # that it shows; a star stands for any ending
    of_run: Callable[[Run], Items]
    of_groups: Callable[[list[Group]], Items]  # of several runs, by recipe


KINDS = (
    Kind("Training", (), training.of_run, training.of_groups),
    Kind(
        "Accuracy",
        (
            "knn",
            "pixels",
            "linear",
            "linear-augmented",
            "logistic",
            "discriminant",
            "centroid",
            "classifier",
            "real",
            "rank",
        ),
        classifiers.of_run,
        classifiers.of_groups,
    ),
    Kind("Few labels", ("fewshot",), fewshot.of_run, fewshot.of_groups),
    Kind("Maps", ("map2d", "maps"), maps.of_run, maps.of_groups),
    Kind("Classes", (), confusion.of_run, confusion.of_groups),
    Kind("Classes", ("similarity",), similarity.of_run, similarity.of_groups),
    Kind("Classes", ("clustering",), clustering.of_run, clustering.of_groups),
    Kind("Adaptive temperature", ("temperature",), temperature.of_run, temperature.of_groups),
    Kind("Calibration", ("calibration", "classifier-calibration"), calibration.of_run, calibration.of_groups),
    Kind("Outliers", ("outliers",), outliers.of_run, outliers.of_groups),
    Kind("Corrupted images", ("robustness",), robustness.of_run, robustness.of_groups),
    Kind("Other data", ("transfer", "finetune", "finetune-*"), transfer.of_run, transfer.of_groups),
)


class Section(NamedTuple):
    title: str
    items: Items


def sections_of_run(run: Run) -> list[Section]:
    found = [Section(kind.title, kind.of_run(run)) for kind in KINDS]
    return _together([*found, Section("Further findings", unknown(run))])


def sections_of_groups(groups: list[Group]) -> list[Section]:
    return _together([Section(kind.title, kind.of_groups(groups)) for kind in KINDS])


def _together(sections: list[Section]) -> list[Section]:
    """Sections of one title are one, and empty ones go."""
    items: dict[str, Items] = {}
    for section in sections:
        items.setdefault(section.title, []).extend(section.items)
    return [Section(title, found) for title, found in items.items() if found]


def unknown(run: Run) -> Items:
    """The scores of findings that nothing here draws."""
    from fnmatch import fnmatch

    known = [pattern for kind in KINDS for pattern in kind.findings]
    tables: Items = []
    for name, found in run.findings.items():
        if found.scores and not any(fnmatch(name, pattern) for pattern in known):
            rows = [
                [Cell(score), Cell(plain(value), (run.name,), name)]
                for score, value in flat(found.scores).items()
            ]
            tables.append(Table(name, ["score", "value"], rows))
    return tables


def drawings_in(sections: Iterable[Section]) -> list[Drawing]:
    return [item for section in sections for item in section.items if isinstance(item, Drawing)]
