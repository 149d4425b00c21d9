"""Matrices in shades of one colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from varcon.reports.axes import GAP, TICK_SIZE
from varcon.reports.charts import LARGE
from varcon.reports.svg import COLOURS, TEXT_SIZE, Canvas, short, widest, width_of

SMALLEST_TEXT = 5.5  # smaller letters cannot be read
SHADES = 32  # of that image: no eye tells more, and it is a third of the size
RECTANGLES = 1000  # a matrix with more cells is one small image


@dataclass(frozen=True)
class Cells:
    """A matrix to be shaded: strengths in [0, 1] and, where there is room, a text in each."""

    strength: np.ndarray  # NaN: left empty
    texts: np.ndarray | None = None
    colour: str = "series-0"
    grey: np.ndarray | None = None  # cells of another kind, in grey
    bold: np.ndarray | None = None


def matrix(
    cells: Cells,
    rows: Sequence[str],
    columns: Sequence[str],
    row_label: str = "",
    column_label: str = "",
    width: float = LARGE,
    row_height: float | None = None,  # None: cells are square
) -> str:
    """Shades of one colour, whose lightness alone tells the value; names where they can be read."""
    height_in, width_in = cells.strength.shape
    rows, columns = [short(name, 20) for name in rows], [short(name, 20) for name in columns]
    beside = 22.0 if row_label else 0.0
    size = min(TEXT_SIZE, 0.8 * width / width_in)
    left = widest(rows, size) + GAP + 4 + beside
    side = (width - left - 8) / width_in
    tall = row_height or side
    named = size >= SMALLEST_TEXT
    if not named:
        left, side = 8 + beside, (width - 16 - beside) / width_in
        tall = row_height or side
    upright = named and widest(columns, size) > side - 4
    head = (widest(columns, size) if upright else size) + GAP + 4 if named else 4.0
    canvas = Canvas(width, head + tall * height_in + (24.0 if column_label else 4.0))
    x = [left + side * place for place in range(width_in + 1)]
    y = [head + tall * place for place in range(height_in + 1)]
    shade(canvas, cells, x, y)
    canvas.path(f"M{left:g} {head:g}H{x[-1]:.2f}V{y[-1]:.2f}H{left:g}z", stroke="muted", width=0.8)
    for place, name in enumerate(rows if named else []):
        canvas.text(left - GAP, y[place] + tall / 2, name, size, "end")
    for place, name in enumerate(columns if named else []):
        middle = x[place] + side / 2
        anchor = "start" if upright else "middle"
        canvas.text(
            middle, head - GAP if upright else head - GAP - size / 2, name, size, anchor, upward=upright
        )
    if row_label:
        canvas.text(10, (y[0] + y[-1]) / 2, row_label, anchor="middle", colour="muted", upward=True)
    if column_label:
        canvas.text((x[0] + x[-1]) / 2, y[-1] + 13, column_label, anchor="middle", colour="muted")
    if cells.texts is not None:
        largest = max((width_of(text, 1.0) for text in cells.texts.flat if text), default=1.0)
        size = min(TICK_SIZE, (side - 3) / largest, 0.8 * tall)
        for (row, column), text in np.ndenumerate(cells.texts):
            strong = np.nan_to_num(cells.strength[row, column]) > 0.62
            pale = cells.grey is not None and cells.grey[row, column]
            colour = "muted" if pale else "paper" if strong else "ink"
            bold = cells.bold is not None and bool(cells.bold[row, column])
            if text:
                canvas.text(x[column] + side / 2, y[row] + tall / 2, text, size, "middle", colour, bold)
    return canvas.svg()


def shade(canvas: Canvas, cells: Cells, x: list[float], y: list[float]) -> None:
    """Rectangles, or one small image of a large matrix, whose rectangles would fill the page."""
    wide, tall = x[1] - x[0], y[1] - y[0]
    strength = np.nan_to_num(cells.strength).clip(0, 1)
    grey = np.zeros(strength.shape, bool) if cells.grey is None else cells.grey
    if strength.size > RECTANGLES:
        picture = np.zeros((*strength.shape, 4), np.uint8)
        hue = COLOURS[cells.colour][0]
        picture[..., :3] = [int(hue[start : start + 2], 16) for start in (1, 3, 5)]
        picture[..., 3] = np.round(SHADES * strength) * (255 / SHADES)
        picture[grey] = (128, 128, 128, 64)
        canvas.image(x[0], y[0], x[-1] - x[0], y[-1] - y[0], picture)
        return
    for row, column in np.ndindex(*strength.shape):
        if grey[row, column]:
            canvas.rectangle(x[column], y[row], wide, tall, "faint", 0.7)
        elif strength[row, column] > 0:
            canvas.rectangle(x[column], y[row], wide, tall, cells.colour, strength[row, column])
