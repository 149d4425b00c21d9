"""The charts that several findings share: curves in panels, and marks in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from varcon.reports.axes import (
    Axes,
    Axis,
    Entry,
    axis_of,
    bottom_margin,
    left_margin,
    legend,
    legend_height,
    log_axis,
)
from varcon.reports.svg import DASHES, Canvas, fitting, series, short, widest

# Pixels: one column of the page, both, and a figure that stands alone.
HALF, WIDE, LARGE = 480.0, 996.0, 840.0
POINTS_OF_A_LINE = 400
Limits = tuple[float | None, float | None]


@dataclass(frozen=True)
class Line:
    x: np.ndarray
    y: np.ndarray
    style: int = 0  # which colour, dashes and mark
    label: str = ""  # for the legend, where lines of one label stand once
    error: np.ndarray | None = None  # half the length of a bar through each point
    steps: bool = False  # y holds bars, and x their edges, one more
    filled: bool = True  # of steps


@dataclass(frozen=True)
class Band:
    """A stretch between two curves, behind the lines."""

    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    colour: str = "faint"
    opacity: float = 0.8


@dataclass(frozen=True)
class Panel:
    lines: list[Line]
    y_label: str
    x_label: str = "epoch"
    title: str = ""
    baseline: Line | None = None  # what the lines are to be compared with
    bands: list[Band] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)  # of a logarithmic x axis
    x_limits: Limits = (None, None)
    y_limits: Limits = (None, None)
    height: float = 1.0  # in proportion to the other panels
    dots: bool = False

    @property
    def all_lines(self) -> list[Line]:
        return [*self.lines, *([self.baseline] if self.baseline else [])]

    def axes(self) -> tuple[Axis, Axis]:
        across = [line.x for line in self.all_lines] + [band.x for band in self.bands]
        up = [edge for band in self.bands for edge in (band.low, band.high)]
        for line in self.all_lines:
            spread = np.zeros(len(line.y)) if line.error is None else np.nan_to_num(line.error)
            up += [line.y - spread, line.y + spread]
        x = (
            log_axis(self.ticks, self.x_label)
            if self.ticks
            else axis_of(across, self.x_label, self.x_limits, 6)
        )
        return x, axis_of(up, self.y_label, self.y_limits, most=5 if self.height >= 1 else 2)


def curves(
    panels: list[Panel], size: tuple[float, float] = (HALF, 340), stacked: bool = False, columns: int = 0
) -> str:
    """Panels over each other, or side by side in `columns`, under one legend."""
    width, height = size
    panels = [thinned(panel) for panel in panels]
    canvas, entries = Canvas(width, height), entries_of(panels)
    top = legend_height(entries, width - 4)
    legend(canvas, entries, 4, 0, width - 4)
    scales = [panel.axes() for panel in panels]
    margin = max(left_margin(y) for _, y in scales)
    foot = max(bottom_margin(x) for x, _ in scales)
    if stacked:
        total = sum(panel.height for panel in panels)
        inner = height - top - foot - 14 * (len(panels) - 1) - 6
        y0 = top + 6
        for place, (panel, (x, y)) in enumerate(zip(panels, scales, strict=True)):
            y1 = y0 + inner * panel.height / total
            last = place + 1 == len(panels)
            fill(Axes(canvas, (margin, y0, width - 12, y1), x, y, bare_x=not last, margin=margin), panel)
            y0 = y1 + 14
        return canvas.svg()
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    head = 20 if any(panel.title for panel in panels) else 6
    cell = (width + 10) / columns
    weights = [max(panel.height for panel in panels[columns * row :][:columns]) for row in range(rows)]
    inner = (height - top - rows * (head + foot)) / sum(weights)
    tops = [top + inner * sum(weights[:row]) + row * (head + foot) for row in range(rows)]
    for place, (panel, (x, y)) in enumerate(zip(panels, scales, strict=True)):
        left, row = place % columns * cell, place // columns
        upper = tops[row]
        box = (left + margin, upper + head, left + cell - 22, upper + head + inner * weights[row])
        if panel.title:
            title = fitting(panel.title, box[2] - box[0] + 10, bold=True)
            canvas.text(box[0], upper + head / 2 - 2, title, bold=True)
        fill(Axes(canvas, box, x, y), panel)
    return canvas.svg()


def fill(axes: Axes, panel: Panel) -> None:
    canvas = axes.canvas
    for band in panel.bands:
        canvas.area(axes.x(band.x), axes.y(band.low), axes.y(band.high), band.colour, band.opacity)
    if panel.baseline is not None:
        line = panel.baseline
        canvas.line(axes.x(line.x), axes.y(line.y), "muted", dash=DASHES[2])
    for line in panel.lines:
        colour, dash = series(line.style), DASHES[line.style % len(DASHES)]
        x, y = line.x, line.y
        if line.steps:
            x, y = np.repeat(x, 2)[1:-1], np.repeat(y, 2)
            if line.filled:
                canvas.area(axes.x(x), axes.y(np.full(len(x), axes.y_axis.low)), axes.y(y), colour, 0.2)
        if line.error is not None:
            bars(axes, line.x, line.y, line.error, colour)
        canvas.line(axes.x(x), axes.y(y), colour, dash=dash)
        if panel.dots and not line.steps:
            canvas.marks(axes.x(x), axes.y(y), line.style)


def bars(axes: Axes, x: np.ndarray, y: np.ndarray, error: np.ndarray, colour: str) -> None:
    for across, low, high in zip(axes.x(x), axes.y(y - error), axes.y(y + error), strict=True):
        axes.canvas.line(np.array([across, across]), np.array([low, high]), colour, width=1.2)


def entries_of(panels: list[Panel]) -> list[Entry]:
    found: dict[str, Entry] = {}
    for panel in panels:
        for line in panel.lines:
            if line.label:
                found[line.label] = Entry(line.label, line.style, dots=panel.dots and not line.steps)
        if panel.baseline is not None and panel.baseline.label:
            found[panel.baseline.label] = Entry(panel.baseline.label, 0, baseline=True)
    return list(found.values())


def thinned(panel: Panel) -> Panel:
    """Means over equal stretches of long curves: no screen shows more, and the page stays small."""
    lines = [
        line if line.steps or line.error is not None else replace(line, x=thin(line.x), y=thin(line.y))
        for line in panel.lines
    ]
    bands = [replace(band, x=thin(band.x), low=thin(band.low), high=thin(band.high)) for band in panel.bands]
    base = panel.baseline
    base = base and replace(base, x=thin(base.x), y=thin(base.y))
    return replace(panel, lines=lines, bands=bands, baseline=base)


def thin(values: np.ndarray) -> np.ndarray:
    if len(values) <= POINTS_OF_A_LINE:
        return values
    return np.array([part.mean() for part in np.array_split(values, POINTS_OF_A_LINE)])


@dataclass(frozen=True)
class Marks:
    """Of one recipe or run: a value and a spread in each row, NaN where there is none."""

    label: str
    style: int
    values: np.ndarray
    spread: np.ndarray


def rows_of_marks(names: Sequence[str], marks: Sequence[Marks], label: str) -> str:
    """A row for each score and in it a mark for each recipe, one under the other; a bar is its spread."""
    entries = [Entry(one.label, one.style, line=False, dots=True) for one in marks]
    top = legend_height(entries, HALF - 4)
    line = 15.0 if len(marks) < 7 else max(7.0, 90 / len(marks))
    row = line * len(marks) + 10
    reach = [one.values + sign * np.nan_to_num(one.spread) for one in marks for sign in (-1, 1)]
    x = axis_of(reach, label)
    names = [short(name, 26) for name in names]
    left = widest(names) + 14
    height = top + row * len(names) + bottom_margin(x) + 4
    canvas = Canvas(HALF, height)
    legend(canvas, entries, 4, 0, HALF - 4)
    axes = Axes(canvas, (left, top + 4, HALF - 14, height - bottom_margin(x)), x, Axis(0, 1))
    for place, name in enumerate(names):
        begin = axes.top + row * place
        canvas.text(left - 8, begin + row / 2, name, anchor="end")
        if place:
            canvas.line(np.array([4, axes.right]), np.array([begin, begin]), "faint", width=0.8)
        for order, one in enumerate(marks):
            value, spread, down = one.values[place], one.spread[place], begin + 5 + line * (order + 0.5)
            ends = axes.x(np.array([value - spread, value + spread]))
            canvas.line(ends, np.array([down, down]), series(one.style), width=1.2)
            canvas.marks([float(axes.x(value))], [down], one.style, 8)
    return canvas.svg()
