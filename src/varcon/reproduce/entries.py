"""What a table is made of: entries, each with where our number comes from and what the paper has there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from varcon.reproduce.paper import Value
from varcon.reproduce.setup import Runs, Setup


@dataclass(frozen=True)
class Reading:
    """A score that an evaluation, or the journal, of some runs holds."""

    runs: Runs
    finding: str
    score: str


@dataclass(frozen=True)
class Entry:
    row: str
    column: str
    ours: Reading | None = None
    less: Reading | None = None  # where ours is a difference: what is taken away
    measured: float | None = None  # where ours comes from no run
    paper: Value | None = None
    decimals: int = 2
    x: float | None = None  # the row's place on the axis of a figure


Content = Callable[[Setup], list[Entry]]


@dataclass(frozen=True)
class Column:
    title: str
    finding: str
    score: str
    paper: Mapping[str, Value] = field(default_factory=dict)  # by row
    decimals: int = 2


@dataclass(frozen=True)
class Compared:
    """A row for each kind of run and a column for each score; then columns that only the paper has."""

    rows: Mapping[str, Runs]
    columns: tuple[Column, ...]
    beside: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    def __call__(self, setup: Setup) -> list[Entry]:
        return [
            Entry(row, column.title, Reading(runs, column.finding, column.score), None, None,
                  column.paper.get(row), column.decimals)
            for column in self.columns
            for row, runs in self.rows.items()
        ] + [
            Entry(row, title, paper=values[row])
            for title, values in self.beside.items()
            for row in self.rows
            if row in values
        ]  # fmt: skip


@dataclass(frozen=True)
class Swept:
    """A row for each value of a setting and a column for each method."""

    title: str  # of the setting
    setting: str
    values: Mapping[str, tuple[Any, ...]]  # by scale
    methods: Mapping[str, str]  # by the column's title
    paper: Mapping[str, Mapping[Any, float | Value]]  # by column and value
    with_it: Callable[[Any, str], Mapping[str, Any]] = lambda value, method: {}  # settings that follow
    most: Callable[[Setup], float] = lambda setup: math.inf  # that these data allow
    limit: str = ""  # in words what sets it, with the number at {}
    finding: str = "linear"
    score: str = "last"

    def __call__(self, setup: Setup) -> list[Entry]:
        ours = [value for value in self.values[setup.scale.name] if value <= self.most(setup)]
        entries = []
        for column, method in self.methods.items():
            theirs = self.paper.get(column, {})
            for value in sorted({*ours, *theirs}):
                settings = {self.setting: value, **self.with_it(value, method)}
                reading = Reading(Runs(method, settings), self.finding, self.score)
                found = theirs.get(value)
                entries.append(
                    Entry(
                        f"{self.title} {value:g}",
                        column,
                        reading if value in ours else None,
                        paper=Value(found) if isinstance(found, int | float) else found,
                        x=value,
                    )
                )
        return sorted(entries, key=lambda entry: entry.x or 0.0)

    def left_out(self, setup: Setup) -> list[str]:
        """A note on the values that the data do not allow, if there are any."""
        most = self.most(setup)
        beyond = [f"{value:g}" for value in self.values[setup.scale.name] if value > most]
        return [f"Left out: {self.title} {', '.join(beyond)}; {self.limit.format(most)}."] if beyond else []


@dataclass(frozen=True)
class Within:
    """A row for each of several scores of a finding and a column for each kind of run."""

    runs: Mapping[str, Runs]  # by the column's title
    finding: str
    rows: Mapping[str, tuple[float, str]]  # by the row's title: its place on the axis, and the score
    paper: Mapping[str, Mapping[Any, float]] = field(default_factory=dict)  # by column and place
    decimals: int = 2

    def __call__(self, setup: Setup) -> list[Entry]:
        entries = []
        for row, (place, score) in self.rows.items():
            for column, runs in self.runs.items():
                found = self.paper.get(column, {}).get(place)
                reading = Reading(runs, self.finding, score)
                paper = None if found is None else Value(found)
                entries.append(
                    Entry(row, column, reading, paper=paper, decimals=self.decimals, x=float(place))
                )
        return entries


@dataclass(frozen=True)
class Several:
    """One content after another, in one table."""

    parts: tuple[Content, ...]

    def __call__(self, setup: Setup) -> list[Entry]:
        return [entry for part in self.parts for entry in part(setup)]
