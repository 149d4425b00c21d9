"""The tables that open a page about several runs: recipes with their spread, then every run."""

from __future__ import annotations

from varcon.reports.groups import Group
from varcon.reports.tables import NONE, Cell, Column, Table, plain, score_cell, spread_cell

RECIPES = (
    Column("kNN top-1, %", "knn", "top1"),
    Column("linear probe, last, %", "linear", "last"),
    Column("augmented probe, last, %", "linear-augmented", "last"),
    Column("own classifier, %", "classifier", "top1"),
    Column("effective rank", "rank", "effective_rank"),
)
RUNS = (
    Column("kNN top-1, %", "knn", "top1"),
    Column("linear probe, last, %", "linear", "last"),
    Column("linear probe, best, %", "linear", "best"),
    Column("augmented probe, last, %", "linear-augmented", "last"),
    Column("own classifier, %", "classifier", "top1"),
    Column("raw input, %", "pixels", "top1"),
)
ALWAYS = ("knn", "linear", "pixels")  # shown even where nothing is there yet
HINT = (
    "Means of runs that differ in the seed, and perhaps in how they were carried out, such as the device; "
    "the spread is their sample standard deviation. Runs that were judged with different settings or labels "
    "have none."
)
FLATTERS = "The best epoch of a probe is picked on the test images, so it flatters: quote the last."


def tables(groups: list[Group], note: str = "") -> list[Table]:
    several = len(groups) > 1
    repeated = sum(len(group.runs) for group in groups) > len(groups)
    return [
        *([recipes(groups, note)] if several else []),
        *([every_run(groups)] if repeated or not several else []),
    ]


def there(columns: tuple[Column, ...], groups: list[Group]) -> list[Column]:
    return [
        one
        for one in columns
        if one.finding in ALWAYS or any(g.runs_with(one.finding, one.score) for g in groups)
    ]


def recipes(groups: list[Group], note: str) -> Table:
    columns = there(RECIPES, groups)
    rows = []
    for group in groups:
        names = tuple(run.name for run in group.runs)
        speed = group.images_per_second
        cost = (duration(group.training_seconds), NONE if speed is None else f"{round(speed):,}")
        row = [Cell(group.label, names), Cell(str(group.seeds), names)]
        row += [spread_cell(group, one) for one in columns]
        rows.append([*row, *(Cell(text, names) for text in cost)])
    head = ["recipe", "seeds", *(one.head for one in columns), "training", "data set images/s"]
    return Table("Recipes", head, rows, f"{note} {HINT}".strip(), shape="wide")


def every_run(groups: list[Group]) -> Table:
    columns = there(RUNS, groups)
    rows = []
    for run in (run for group in groups for run in group.runs):
        row = [Cell(run.name, (run.name,)), Cell(plain(run.seed), (run.name,))]
        row += [score_cell(run, one.finding, one.score) for one in columns]
        rows.append([*row, Cell(duration(run.training_seconds), (run.name,))])
    if len(groups) == 1:
        (group,) = groups
        names = tuple(run.name for run in group.runs)
        seeds = f"{group.seeds} seed{'s' if group.seeds != 1 else ''}"
        row = [Cell("mean ± standard deviation", names), Cell(seeds, names)]
        row += [spread_cell(group, one) for one in columns]
        rows.append([*row, Cell(duration(group.training_seconds), names)])
    head = ["run", "seed", *(one.head for one in columns), "training"]
    caption = f"{HINT} {FLATTERS}" if len(groups) == 1 else FLATTERS
    return Table("Every run", head, rows, caption, shape="wide")


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min {int(seconds % 60)} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
