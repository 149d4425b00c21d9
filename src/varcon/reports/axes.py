"""Scales, ticks and legends: what a chart needs around its lines."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from varcon.reports.svg import DASHES, Canvas, fitting, number, series, short, widest, width_of

TICK_SIZE = 11.0
LABEL_ROOM = 20.0  # that an axis's label takes
MINUS = "\N{MINUS SIGN}"
GAP = 6.0  # between an axis and its ticks' words
MOST_TICKS = 5


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    label: str = ""
    ticks: list[tuple[float, str]] = field(default_factory=list)
    log: bool = False

    @property
    def tick_width(self) -> float:
        return widest([words for _, words in self.ticks], TICK_SIZE)


def axis_of(
    values: Sequence[np.ndarray],
    label: str,
    limits: tuple[float | None, float | None] = (None, None),
    most: int = MOST_TICKS,
) -> Axis:
    """An axis that holds all values with a little room around them, or ends where a limit says."""
    known = np.concatenate([np.ravel(part) for part in values] or [np.empty(0)]).astype(float)
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    low = low - room if limits[0] is None else limits[0]
    high = high + room if limits[1] is None else limits[1]
    high = high if high > low else low + max(1.0, 0.1 * abs(low))
    return Axis(low, high, label, even_ticks(low, high, most))


def log_axis(places: Sequence[float], label: str) -> Axis:
    """From the first to the last of the places, which are its ticks."""
    low, high = min(places), max(places)
    factor = max((high / low) ** 0.04, 1.1)
    return Axis(low / factor, high * factor, label, [(place, number(place)) for place in places], log=True)


def even_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """At most `most` + 1 round numbers between two ends, and their texts."""
    rough = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    places = [step * place for place in range(first, last + 1)]
    if max(abs(low), abs(high)) >= 1e6 or step < 1e-6:
        # As many digits as tell the ticks apart: far from zero three may be the same for all.
        texts = ([f"{place:.{digits}g}" for place in places] for digits in range(3, 18))
        exact = (
            found
            for found in texts
            if all(abs(float(text) - place) < step / 100 for text, place in zip(found, places, strict=True))
        )
        return list(zip(places, next(exact, [repr(place) for place in places]), strict=True))
    digits = next(d for d in range(9) if abs(step * 10**d - round(step * 10**d)) < 1e-6 * step * 10**d)
    return [(place, f"{place + 0.0:,.{digits}f}".replace("-", MINUS)) for place in places]


class Axes:
    """A frame on a canvas, with ticks, into which values are drawn."""

    def __init__(
        self,
        canvas: Canvas,
        box: tuple[float, float, float, float],  # left, top, right, bottom of the frame alone
        x: Axis,
        y: Axis,
        bare_x: bool = False,  # leave the x axis without words
        margin: float | None = None,  # left of the frame, at whose edge the y axis's label stands
    ) -> None:
        self.canvas, self.x_axis, self.y_axis = canvas, x, y
        self.left, self.top, self.right, self.bottom = box
        self._ticks(bare_x, margin or left_margin(y))

    def x(self, values: np.ndarray | float) -> np.ndarray:
        return self.left + (self.right - self.left) * _share(values, self.x_axis)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        return self.bottom - (self.bottom - self.top) * _share(values, self.y_axis)

    def _ticks(self, bare_x: bool, margin: float) -> None:
        canvas, grid = self.canvas, []
        for place, words in self.y_axis.ticks:
            down = float(self.y(place))
            grid.append(f"M{number(self.left)} {number(down)}H{number(self.right)}")
            canvas.text(self.left - GAP, down, words, TICK_SIZE, "end", "muted")
        free = -math.inf  # from where on the next word has room
        for place, words in sorted(self.x_axis.ticks):
            across, width = float(self.x(place)), width_of(words, TICK_SIZE)
            grid.append(f"M{number(across)} {number(self.top)}V{number(self.bottom)}")
            if not bare_x and across - width / 2 >= free:
                canvas.text(across, self.bottom + GAP + TICK_SIZE / 2, words, TICK_SIZE, "middle", "muted")
                free = across + width / 2 + 4
        canvas.path("".join(grid), stroke="faint", width=0.8)
        corner = f"M{number(self.left)} {number(self.top)}V{number(self.bottom)}H{number(self.right)}"
        canvas.path(corner, stroke="muted", width=0.9)
        if self.y_axis.label:
            across, middle = self.left - margin + LABEL_ROOM / 2, (self.top + self.bottom) / 2
            canvas.text(across, middle, self.y_axis.label, anchor="middle", colour="muted", upward=True)
        if self.x_axis.label and not bare_x:
            middle = (self.left + self.right) / 2
            down = self.bottom + GAP + TICK_SIZE + LABEL_ROOM / 2
            canvas.text(middle, down, self.x_axis.label, anchor="middle", colour="muted")


def _share(values: np.ndarray | float, axis: Axis) -> np.ndarray:
    """Where values lie between an axis's ends, from 0 to 1."""
    if not axis.log:
        return (np.asarray(values, dtype=float) - axis.low) / (axis.high - axis.low)
    return np.log(np.asarray(values, dtype=float) / axis.low) / math.log(axis.high / axis.low)


def left_margin(axis: Axis) -> float:
    return GAP + axis.tick_width + (LABEL_ROOM + 4 if axis.label else 4)


def bottom_margin(axis: Axis) -> float:
    return GAP + TICK_SIZE + (LABEL_ROOM if axis.label else 4)


@dataclass(frozen=True)
class Entry:
    """One line of a legend: a line, marks or both."""

    label: str
    style: int
    line: bool = True
    dots: bool = False
    baseline: bool = False


def legend(canvas: Canvas, entries: Sequence[Entry], left: float, top: float, width: float) -> None:
    x, y = left, top + ROW / 2
    for entry, label in zip(entries, shortened([entry.label for entry in entries], width), strict=True):
        needed = SAMPLE + width_of(label) + 18
        if x > left and x + needed > left + width + 18:
            x, y = left, y + ROW
        colour = "muted" if entry.baseline else series(entry.style)
        if entry.line:
            dash = DASHES[2 if entry.baseline else entry.style % len(DASHES)]
            canvas.line(np.array([x, x + SAMPLE - 8]), np.array([y, y]), colour, dash=dash)
        if entry.dots and not entry.baseline:
            canvas.marks([x + (SAMPLE - 8) / 2], [y], entry.style)
        canvas.text(x + SAMPLE, y, label)
        x += needed


def legend_height(entries: Sequence[Entry], width: float) -> float:
    """With the gap below it; nothing where there is nothing to tell apart."""
    rows, x = 1, 0.0
    for label in shortened([entry.label for entry in entries], width):
        needed = SAMPLE + width_of(label) + 18
        rows, x = (rows + 1, needed) if x and x + needed > width + 18 else (rows, x + needed)
    return ROW * rows + 8 if entries else 0.0


def shortened(names: Sequence[str], width: float) -> list[str]:
    """Long names are cut at the end. Where some would then read alike, what they begin with goes instead; if
    they still do, each takes the room of a row."""
    names = [" ".join(name.split()) for name in names]
    same = os.path.commonprefix([name for name in names if len(name) > LONGEST_LABEL])  # noqa: RUF071
    part = max((found.end() for found in re.finditer("-|/|, ", same)), default=0)  # the first that differs
    ways = [
        [short(name, LONGEST_LABEL) for name in names],
        [short(f"…{name[part:]}" if len(name) > LONGEST_LABEL else name, LONGEST_LABEL) for name in names],
        [fitting(name, width - SAMPLE) for name in names],
    ]
    return next((way for way in ways if len(set(way)) == len(set(names))), ways[-1])


ROW, SAMPLE, LONGEST_LABEL = 18.0, 38.0, 40
