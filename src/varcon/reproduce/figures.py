"""The figures: each says what it draws, and draws it from the runs as one SVG file."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from varcon.core import InputError
from varcon.engine.journal import read_rows
from varcon.reports import drawings
from varcon.reports.charts import WIDE, Band, Line, Panel, curves
from varcon.reports.epochs import epoch_means
from varcon.reports.figures.maps import small_maps
from varcon.reports.svg import Drawing
from varcon.reproduce.entries import Entry
from varcon.reproduce.gather import PARTS, Gathered, at_part, scores, temperatures
from varcon.reproduce.memory import row_of, sizes
from varcon.reproduce.paper import CONVERGENCE, TAU2_SCORES, Value
from varcon.reproduce.setup import Runs, Setup

ACCURACY = "top-1 accuracy, %"


class Figure(Protocol):
    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        """`theirs` says what the paper's values are of. None where there is nothing to draw."""
        ...


@dataclass(frozen=True)
class Curve:
    """The table's columns over its rows: ours on the left, the paper's on the right."""

    x_label: str
    logarithmic: bool = False
    columns: tuple[str, ...] = ()  # of the table; empty: all
    difference: str = ""  # a column that gets a panel of its own

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        columns = self.columns or tuple(dict.fromkeys(entry.column for entry in entries))
        ours = [one for style, name in enumerate(columns) for one in our_line(entries, gathered, name, style)]
        paper = [one for style, name in enumerate(columns) for one in paper_line(entries, name, style)]
        panels = [
            Panel(lines, ACCURACY, self.x_label, title, ticks=self.ticks(lines), dots=True)
            for title, lines in ((f"ours: {setup.where}", ours), (f"paper: {theirs}", paper))
            if lines
        ]
        if self.difference:
            lines = our_line(entries, gathered, self.difference, 2, f"ours: {setup.where}")
            lines += paper_line(entries, self.difference, 3, f"paper: {theirs}")
            panels.append(Panel(lines, "points of accuracy", self.x_label, self.difference, dots=True))
        return file(curves(panels, (WIDE, 360))) if panels else None

    def ticks(self, lines: list[Line]) -> list[int]:
        return sorted({int(x) for one in lines for x in one.x}) if self.logarithmic else []


@dataclass(frozen=True)
class Tau2:
    """Mean and quartiles of tau2 over training, ours and the paper's, and its density at five moments."""

    runs: Runs
    paper: Mapping[str, list[Value]]

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        folder = gathered.first(self.runs)
        if folder is None:
            return None
        found = temperatures(folder)
        quartiles = Band(found.epochs, found.quantiles[:, 2], found.quantiles[:, 4])
        mean = line(found.epochs, found.mean, 0, "mean (grey: the middle half)")
        table = np.array([[value.value for value in row] for row in self.paper.values()])
        epochs = np.array([float(epoch) for epoch in self.paper])
        low, high = (table[:, TAU2_SCORES.index(name)] for name in ("25 %", "75 %"))
        theirs_mean = line(epochs, table[:, 0], 0, mean.label)
        places = dict.fromkeys(at_part(len(found.epochs), part) for part in PARTS)
        densities = [
            line(found.places[place], found.density[place], style, f"after epoch {found.epochs[place]}")
            for style, place in enumerate(places, start=1)
        ]
        name = setup.base.data.name
        panels = [
            Panel([mean], "τ₂", title=f"ours: {name}", bands=[quartiles], dots=True),
            Panel(densities, "density of the images", "τ₂", title=f"ours: {name}"),
            Panel(
                [theirs_mean],
                "τ₂",
                title="paper: ImageNet, ResNet-50",
                bands=[Band(epochs, low, high)],
                dots=True,
            ),
        ]
        return file(curves(panels, (1.25 * WIDE, 380)))


@dataclass(frozen=True)
class Losses:
    """The losses over training, VarCon's with its terms."""

    runs: Mapping[str, Runs]  # by the name that a label begins with

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        terms_of = {"SupCon, loss": "loss", "VarCon, loss": "loss"}
        terms_of |= {"VarCon, KL term": "kl", "VarCon, NLL term": "nll"}
        at = {"first": 1, "20 %": 10, "last": 50}  # of the paper's epochs
        ours, paper = [], []
        for style, (label, term) in enumerate(terms_of.items()):
            if folder := gathered.first(self.runs[label.split(",")[0]]):
                epochs, terms = epoch_means(read_rows(folder / "metrics.jsonl"))
                ours.append(line(epochs, terms[term], style, label))
            points = {at[part]: value for part, value in CONVERGENCE[label].items()}
            if "20 %" not in CONVERGENCE[label]:
                points = {1: points[1], 10: np.nan, 50: points[50]}  # no straight line between the ends
            paper.append(line(list(points), list(points.values()), style, label))
        panels = [
            Panel(ours, "loss", title=f"ours: {setup.where}", dots=True),
            Panel(paper, "loss", title=f"paper: {theirs}", dots=True),
        ]
        return file(curves(panels, (WIDE, 380))) if ours else None


@dataclass(frozen=True)
class Growth:
    """Memory and time of the losses over samples and over classes."""

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        panels = []
        found = {(entry.row, entry.column): entry.measured or 0.0 for entry in entries}
        for unit, label in (("MiB", "extra memory, log₁₀ MiB"), ("ms", "time of a step, log₁₀ ms")):
            for along, (grown, fixed) in enumerate(self.grown(setup)):
                lines = []
                for style, name in enumerate(("VarCon", "SupCon")):
                    column = f"{name}, {unit}"
                    points = {
                        size[along]: found[row_of(*size), column]
                        for size in grown
                        if found.get((row_of(*size), column))
                    }
                    lines.append(line(list(points), np.log10(list(points.values())), style, name))
                ticks = sorted({int(x) for one in lines for x in one.x})
                panels.append(Panel(lines, label, fixed, ticks=ticks, dots=True))
        return file(curves(panels, (WIDE, 640), columns=2))

    def grown(self, setup: Setup) -> list[tuple[list[tuple[int, int]], str]]:
        by_samples, by_classes = sizes(setup.scale.name)
        return [
            (by_samples, f"samples ({by_samples[0][1]:,} classes)"),
            (by_classes, f"classes ({by_classes[0][0]:,} samples)"),
        ]


@dataclass(frozen=True)
class Maps:
    """The maps over training, side by side."""

    runs: Runs

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        folder = gathered.first(self.runs)
        if folder is None:
            return None
        path = folder / "findings" / "maps.npz"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                points, labels, epochs = arrays["points"], arrays["labels"], arrays["epochs"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            beside = path.with_suffix(".json")  # by which it counts as judged
            raise InputError(f"{path} cannot be read; delete {beside}, and start the command again") from None
        found = scores(folder, "maps")  # of the run that is drawn, not the mean over the seeds
        titles = [f"epoch {epoch}: kNN {found[f'knn_top1@epoch{epoch}']:.2f} %" for epoch in epochs]
        return file(small_maps(points, labels, titles))


@dataclass(frozen=True)
class Drawn:
    """The report's own drawing of a finding, for one run of each kind, side by side."""

    runs: Mapping[str, Runs]  # by what stands above it
    title: str  # of the report's drawing

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        found: dict[str, str] = {}
        for name, runs in self.runs.items():
            folder = gathered.first(runs)
            svg = drawn(folder, self.title) if folder else None
            found |= {name: svg} if svg else {}
        if not found:
            return None
        return file(beside(found) if len(found) > 1 else next(iter(found.values())))


def our_line(
    entries: list[Entry], gathered: Gathered, column: str, style: int, label: str = ""
) -> list[Line]:
    """Of a column over its rows, with the deviation over the seeds; none where nothing is there."""
    mine = (entry for entry in entries if entry.column == column and entry.x is not None)
    cells = {entry.x: cell for entry in mine if (cell := gathered.cell(entry))}
    spread = [cell.deviation or 0.0 for cell in cells.values()]
    means = [cell.mean for cell in cells.values()]
    error = np.array(spread) if any(spread) else None
    return [line(list(cells), means, style, label or column, error)] if cells else []


def paper_line(entries: list[Entry], column: str, style: int, label: str = "") -> list[Line]:
    mine = (entry for entry in entries if entry.column == column and entry.x is not None)
    points = {entry.x: entry.paper.value for entry in mine if entry.paper}
    return [line(list(points), list(points.values()), style, label or column)] if points else []


def line(x: object, y: object, style: int, label: str, error: np.ndarray | None = None) -> Line:
    return Line(np.asarray(x, float), np.asarray(y, float), style, label, error)


def drawn(folder: Path, title: str) -> str | None:
    """The drawing of that title that the report has of a run."""
    return next((drawing.svg for drawing in drawings(folder) if drawing.title == title), None)


def beside(svgs: Mapping[str, str]) -> str:
    """Drawings side by side, each under its name, as one."""
    parts, left, bottom = [], 0.0, 0.0
    for name, svg in svgs.items():
        found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        assert found is not None
        width, height = float(found[1]), float(found[2])
        middle = f'x="{left + width / 2:g}" y="18" text-anchor="middle"'
        parts.append(f'<text {middle} font-size="18" font-weight="bold">{name}</text>')
        parts.append(
            svg.replace("<svg", f'<svg x="{left:g}" y="26" width="{width:g}" height="{height:g}"', 1)
        )
        left, bottom = left + width + 16, max(bottom, height + 26)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left - 16:g} {bottom:g}">'
    return "\n".join([head, *parts, "</svg>"])


def file(svg: str) -> str:
    return Drawing("", "", svg).standalone()
