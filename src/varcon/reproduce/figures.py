"""The figures: each says what it draws, and draws it from the runs as one SVG that stands alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from varcon.reproduce.entries import Entry
from varcon.reproduce.gather import PARTS, Gathered, at_part, temperatures
from varcon.reproduce.paper import CONVERGENCE, TAU2_SCORES, Value
from varcon.reproduce.setup import Runs, Setup

if TYPE_CHECKING:  # matplotlib takes a second to import; only those who draw wait for it
    from varcon.reports.plots import Line, Panel

WIDE = (9.0, 3.5)  # inches, of two panels
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

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        from varcon.reports.plots import curves

        columns = self.columns or tuple(dict.fromkeys(entry.column for entry in entries))
        ours: dict[str, dict[float, float]] = {column: {} for column in columns}
        paper: dict[str, dict[float, float]] = {column: {} for column in columns}
        for entry in entries:
            if entry.column in columns and entry.x is not None:
                if cell := gathered.cell(entry):
                    ours[entry.column][entry.x] = cell.mean
                if entry.paper:
                    paper[entry.column][entry.x] = entry.paper.value
        panels = [
            panel
            for title, points in ((f"ours: {setup.where}", ours), (f"paper: {theirs}", paper))
            if (panel := self.panel(title, points))
        ]
        return standalone(curves(panels, size=WIDE)) if panels else None

    def panel(self, title: str, points: dict[str, dict[float, float]]) -> Panel | None:
        from varcon.reports.plots import Panel

        lines = [
            line(list(found), list(found.values()), style, column)
            for style, (column, found) in enumerate(points.items())
            if found
        ]
        ticks = sorted({int(x) for one in lines for x in one.x}) if self.logarithmic else []
        label = f"{self.x_label}\n{title}"
        return Panel(lines, ACCURACY, label, ticks=ticks, dots=True) if lines else None


@dataclass(frozen=True)
class Tau2:
    """Mean and quartiles of tau2 over training, its density at five moments, and the paper's mean."""

    runs: Runs
    paper: Mapping[str, list[Value]]

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        from varcon.reports.plots import Panel, curves

        folders = gathered.folders.get(self.runs, [])
        if not folders:
            return None
        found = temperatures(folders[0])
        quartiles = (found.quantiles[:, 2], found.quantiles[:, 4])
        mean = line(found.epochs, found.mean, 0, "mean (grey: the middle half)")
        table = np.array([[value.value for value in row] for row in self.paper.values()])
        low, high = (table[:, TAU2_SCORES.index(name)] for name in ("25 %", "75 %"))
        theirs_mean = line([int(epoch) for epoch in self.paper], table[:, 0], 0)
        chosen = [at_part(len(found.epochs), part) for part in PARTS]
        densities = [
            line(found.places[place], found.density[place], style, f"after epoch {found.epochs[place]}")
            for style, place in enumerate(dict.fromkeys(chosen))
        ]
        panels = [
            Panel([mean], "τ₂", f"epoch\nours: {setup.base.data.name}", band=quartiles),
            Panel(densities, "density of the images", f"τ₂\nours: {setup.base.data.name}"),
            Panel([theirs_mean], "τ₂", "epoch\npaper: ImageNet, ResNet-50", band=(low, high), dots=True),
        ]
        return standalone(curves(panels, size=(11.0, 3.6)))


@dataclass(frozen=True)
class Losses:
    """The losses over training, VarCon's with its terms."""

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        from varcon.engine.journal import read_rows
        from varcon.evaluations.decomposition import epoch_means
        from varcon.reports.plots import Panel, curves

        columns = {"SupCon, loss": ("supcon", "loss"), "VarCon, loss": ("varcon", "loss")}
        columns |= {"VarCon, KL term": ("varcon", "kl"), "VarCon, NLL term": ("varcon", "nll")}
        ours, paper = [], []
        for style, (label, (method, term)) in enumerate(columns.items()):
            folders = gathered.folders.get(Runs(method), [])
            if folders:
                epochs, terms = epoch_means(read_rows(folders[0] / "metrics.jsonl"))
                ours.append(line(epochs, terms[term], style, label))
            points = {{"first": 1, "20 %": 10, "last": 50}[part]: v for part, v in CONVERGENCE[label].items()}
            paper.append(line(list(points), list(points.values()), style, label))
        panels = [
            Panel(ours, "loss", f"epoch\nours: {setup.where}"),
            Panel(paper, "loss", f"epoch\npaper: {theirs}", dots=True),
        ]
        return standalone(curves(panels, size=WIDE)) if ours else None


@dataclass(frozen=True)
class Growth:
    """Memory and time of the losses over samples and over classes, on logarithmic axes."""

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        from varcon.reports.plots import Panel, curves

        panels = []
        for unit, label in (("MiB", "log₁₀ of extra MiB"), ("ms", "log₁₀ of milliseconds a step")):
            for along in ("samples", "classes"):
                lines = []
                for style, name in enumerate(("VarCon", "SupCon")):
                    points = {
                        entry.x: entry.measured
                        for entry in entries
                        if entry.column == f"{name}, {unit}"
                        and entry.x
                        and entry.measured
                        and entry.row.endswith("samples, 1,000 classes") == (along == "samples")
                    }
                    if points:
                        lines.append(line(list(points), np.log10(list(points.values())), style, name))
                ticks = sorted({int(x) for one in lines for x in one.x})
                panels.append(Panel(lines, label, along, ticks=ticks, dots=True))
        return standalone(curves(panels, size=(13.0, 3.4)))


@dataclass(frozen=True)
class Drawn:
    """The report's own drawing of a finding, for one run of each kind, side by side."""

    runs: Mapping[str, Runs]  # by what stands above it
    title: str  # of the report's drawing, or a word of it

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        found = {}
        for name, runs in self.runs.items():
            folders = gathered.folders.get(runs, [])
            drawing = drawn(folders[0], self.title) if folders else None
            if drawing:
                found[name] = drawing
        return beside(found) if found else None


@dataclass(frozen=True)
class Maps:
    """The maps over training, two in a row."""

    runs: Runs

    def draw(self, setup: Setup, entries: list[Entry], gathered: Gathered, theirs: str) -> str | None:
        from varcon.reports.plots import map_2d

        for folder in gathered.folders.get(self.runs, [])[:1]:
            with np.load(folder / "findings" / "maps.npz", allow_pickle=False) as arrays:
                points, labels, epochs = arrays["points"], arrays["labels"], arrays["epochs"]
            names = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["classes"]
            knn = {entry.x: cell.mean for entry in entries if (cell := gathered.cell(entry))}
            svgs = {
                f"epoch {epoch}: kNN {knn[epoch]:.2f} %": map_2d(each, labels, None, names)
                for each, epoch in zip(points, epochs.tolist(), strict=True)
                if epoch in knn
            }
            return beside(svgs, 2)
        return None


def line(x: object, y: object, style: int, label: str = "") -> Line:
    from varcon.reports.plots import Line

    return Line(np.asarray(x, float), np.asarray(y, float), style, label)


def drawn(folder: Path, title: str) -> str | None:
    """The drawing of that title that the report has of a run."""
    from varcon.reports import drawings

    for drawing in drawings(folder):
        if title.lower() in drawing.title.lower():
            return drawing.svg
    return None


def beside(svgs: Mapping[str, str], in_a_row: int = 2) -> str:
    """Drawings side by side, each under its name, as one."""
    parts, left, top, right, bottom = [], 0.0, 0.0, 0.0, 0.0
    for place, (name, svg) in enumerate(svgs.items()):
        if place and place % in_a_row == 0:
            left, top = 0.0, bottom + 10
        found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        assert found is not None
        width, tall = float(found[1]), float(found[2])
        parts.append(f'<text x="{left + width / 2:g}" y="{top + 14:g}" {TITLE}>{name}</text>')
        inner = svg.replace(
            "<svg", f'<svg x="{left:g}" y="{top + 20:g}" width="{width:g}" height="{tall:g}"', 1
        )
        parts.append(inner)
        right, bottom = max(right, left + width), max(bottom, top + tall + 20)
        left += width + 16
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {names} viewBox="0 0 {right:g} {bottom:g}">'
    return standalone(head + "\n".join(parts) + "</svg>")


TITLE = 'text-anchor="middle" style="font-size: 13px; font-weight: bold; fill: #1f2430"'
LOOKS = (
    "<style>text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; }"
    " .halo text { paint-order: stroke; stroke: #fff; stroke-width: 2.4px; }"
    " image { image-rendering: pixelated; }</style>"
)


def standalone(svg: str) -> str:
    """A page's drawing as a file: on white, with colours and fonts of its own, and a size."""
    from varcon.reports.plots import COLOURS

    for name, (light, _) in COLOURS.items():
        svg = svg.replace(f"var(--{name})", light)
    svg = svg.replace("var(--paper)", "#ffffff")
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found is not None
    end = svg.index(">", svg.index("<svg")) + 1
    size = f' width="{found[1]}pt" height="{found[2]}pt"'
    ground = f'<rect width="{found[1]}" height="{found[2]}" fill="#ffffff"/>'
    return f"{svg[: end - 1]}{size}>{LOOKS}{ground}{svg[end:].rstrip()}\n"
