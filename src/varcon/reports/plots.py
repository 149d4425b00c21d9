"""The figures of a report: numbers in, one inline SVG out.

Colours leave here as CSS variables, so that one drawing serves a light page, a dark one and paper.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

# Name: on a light page, on a dark one. The hues are Okabe and Ito's, then Tol's: safe for colour-blind eyes.
COLOURS = {
    "ink": ("#1f2430", "#e6e9ef"),
    "muted": ("#667085", "#98a2b3"),
    "faint": ("#dfe3e9", "#343b48"),
    "series-0": ("#0072b2", "#4c9fe0"),
    "series-1": ("#d55e00", "#f07b2c"),
    "series-2": ("#009e73", "#2fc097"),
    "series-3": ("#cc79a7", "#de93bb"),
    "series-4": ("#e69f00", "#f0b429"),
    "series-5": ("#56b4e9", "#8fd0f8"),
    "series-6": ("#882255", "#d0638f"),
    "series-7": ("#999933", "#c4c45a"),
    "series-8": ("#332288", "#9c8cf0"),
    "series-9": ("#777777", "#b0b0b0"),
}
INK, MUTED, FAINT, *SERIES = [light for light, _ in COLOURS.values()]
ALARM = SERIES[1]  # errors, wherever they are drawn
DASHES = (
    "solid",
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (9, 3)),
    (0, (3, 1.5, 1.2, 1.5, 1.2, 1.5)),
)
MARKERS = "os^DvPX<>p"
NUMBERED_CLASSES = 30  # a larger confusion matrix is drawn without its numbers
CLASSES_TO_NAME = 20  # a map of more classes has smaller names, and only those that find room
NAMED_ERRORS = 40  # a map with more misjudged images rings them without saying what they were taken for
POINTS_OF_A_LINE = 400
CENTRED: dict[str, Any] = {"horizontalalignment": "center", "verticalalignment": "center"}

STYLE = {
    "svg.fonttype": "none",  # text stays text: a tenth of the size, in the font of the page, and searchable
    "svg.hashsalt": "varcon",
    "text.parse_math": False,  # a class may be called $x$
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "legend.borderaxespad": 0.2,
}


@dataclass(frozen=True)
class Line:
    x: np.ndarray
    y: np.ndarray
    style: int = 0  # which colour and which dashes
    label: str = ""  # for the legend, where lines of one label stand once


@dataclass(frozen=True)
class Panel:
    lines: list[Line]
    y_label: str
    x_label: str = "epoch"
    baseline: Line | None = None  # what the lines are to be compared with
    band: tuple[np.ndarray, np.ndarray] | None = None  # lower and upper edge over the first line's x
    ticks: list[int] = field(default_factory=list)  # of a logarithmic x axis
    height: float = 1.0  # in proportion to the other panels
    dots: bool = False


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        # The page's font may have a character that the font measured with here has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


@_style()
def curves(panels: list[Panel], stacked: bool = False, size: tuple[float, float] = (4.8, 3.3)) -> str:
    """Panels over or beside each other under one legend."""
    figure = Figure(figsize=size, layout="constrained")
    shape = (len(panels), 1) if stacked else (1, len(panels))
    ratios = [panel.height for panel in panels] if stacked else [1.0]
    grid = figure.subplots(*shape, squeeze=False, sharex=stacked, height_ratios=ratios)
    entries: dict[str, Line2D] = {}
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw_panel(axes, panel, entries)
        if not stacked or panel is panels[-1]:
            axes.set_xlabel(panel.x_label)
    if entries:
        columns = max(1, int(size[0] * 14 / (6 + max(map(len, entries)))))
        figure.legend(
            list(entries.values()), list(entries), loc="outside upper left", ncols=min(columns, len(entries))
        )
    return _svg(figure)


def _draw_panel(axes: Axes, panel: Panel, entries: dict[str, Line2D]) -> None:
    axes.set_ylabel(panel.y_label)
    axes.yaxis.set_major_locator(MaxNLocator(5 if panel.height >= 1 else 3, steps=[1, 2, 2.5, 5, 10]))
    if panel.band is not None:
        lower, upper = (_thin(edge) for edge in panel.band)
        axes.fill_between(_thin(panel.lines[0].x), lower, upper, color=FAINT, linewidth=0, alpha=0.7)
    for line in panel.lines:
        colour, dashes = SERIES[line.style % len(SERIES)], DASHES[line.style % len(DASHES)]
        marker = MARKERS[line.style % len(MARKERS)] if panel.dots else ""
        (drawn,) = axes.plot(_thin(line.x), _thin(line.y), color=colour, linestyle=dashes, marker=marker)
        if line.label:
            entries[_short(line.label, 40)] = drawn
    if panel.baseline is not None:
        x, y = _thin(panel.baseline.x), _thin(panel.baseline.y)
        (drawn,) = axes.plot(x, y, color=MUTED, linestyle=DASHES[2], marker="x" if panel.dots else "")
        entries[_short(panel.baseline.label, 40)] = drawn
    if panel.ticks:
        axes.set_xscale("log")
        axes.set_xticks(panel.ticks, [str(tick) for tick in panel.ticks])
        axes.set_xticks([], minor=True)


@_style()
def map_2d(points: np.ndarray, labels: np.ndarray, predictions: np.ndarray | None, classes: list[str]) -> str:
    """Points coloured by class, each class named at its middle, the misjudged ones in rings."""
    present = np.unique(labels)
    many = len(present) > CLASSES_TO_NAME
    figure = Figure(figsize=(8.4, 7.6) if many else (7.6, 5.8), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    middles = np.array([_middle(points[labels == label]) for label in present])
    colours = _map_colours(middles)
    dots: dict[str, Any] = {"linestyle": "none", "markersize": 3 if many else 4, "markeredgewidth": 0}
    for place, label in enumerate(present):
        marker, colour = MARKERS[label % len(MARKERS)], SERIES[colours[place]]
        axes.plot(*points[labels == label].T, **dots, marker=marker, color=colour)
    wrong = np.zeros(len(points), dtype=bool) if predictions is None else predictions != labels
    ring = {**dots, "marker": "o", "markersize": 6 if many else 9, "markeredgewidth": 0.5 if many else 1.0}
    axes.plot(*points[wrong].T, **ring, markerfacecolor="none", markeredgecolor=INK)
    if predictions is not None and wrong.sum() <= NAMED_ERRORS:
        beside: dict[str, Any] = {
            "xytext": (5.5, 0),
            "textcoords": "offset points",
            "verticalalignment": "center",
        }
        for point, taken in zip(points[wrong], predictions[wrong], strict=True):
            axes.annotate(f"→ {_short(classes[taken], 12)}", point, **beside, fontsize=7, gid="halo-error")
    size = 12.0 if not many else 9.0 if len(present) <= 50 else 6.5
    names = [_short(classes[label], 14) for label in present]
    unit = max(np.ptp(points, axis=0) / (72 * figure.get_size_inches()))  # a point of type on the map
    for place in _with_room(middles, names, size * unit) if many else range(len(names)):
        x, y = middles[place]
        axes.text(x, y, names[place], fontsize=size, weight="bold", gid="halo-class", **CENTRED)
    return _svg(figure)


def _middle(points: np.ndarray) -> np.ndarray:
    """The point nearest to the median: the median itself may lie between two clusters of a class."""
    return points[np.square(points - np.median(points, axis=0)).sum(1).argmin()]


def _with_room(middles: np.ndarray, names: list[str], height: float) -> list[int]:
    """Which names can be written without running into one written before."""
    widths = np.array([0.62 * height * len(name) for name in names])
    chosen: list[int] = []
    for place in range(len(names)):
        apart = np.abs(middles[chosen] - middles[place])
        if np.all((apart[:, 0] > (widths[chosen] + widths[place]) / 2) | (apart[:, 1] > height)):
            chosen.append(place)
    return chosen


def _map_colours(middles: np.ndarray) -> list[int]:
    """A colour for each class: its own while they suffice, then the one whose last use is farthest away."""
    colours: list[int] = []
    for place, middle in enumerate(middles):
        away = np.linalg.norm(middles[:place] - middle, axis=1)
        nearest = [
            min(away[np.array(colours) == colour]) for colour in range(len(SERIES)) if colour in colours
        ]
        colours.append(place if place < len(SERIES) else int(np.argmax(nearest)))
    return colours


@_style()
def confusion(counts: np.ndarray, classes: list[str]) -> str:
    """Rows are true classes; the diagonal is grey, so that what is coloured is an error."""
    size = len(counts)
    errors = counts * (1 - np.eye(size, dtype=counts.dtype))
    strength = errors / max(1, errors.max())
    figure = Figure(figsize=(8, 6.4) if size <= NUMBERED_CLASSES else (8, 7), layout="constrained")
    axes = figure.subplots()
    axes.grid(False)
    axes.set(
        xlim=(-0.5, size - 0.5),
        ylim=(size - 0.5, -0.5),
        aspect="equal",
        xlabel="taken for",
        ylabel="true class",
    )
    axes.spines[:].set(visible=True, color=FAINT)
    if size > NUMBERED_CLASSES:
        picture = np.zeros((size, size, 4))
        picture[..., :3] = [int(ALARM[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        picture[..., 3] = np.where(errors > 0, 0.25 + 0.75 * strength, 0)
        picture[np.diag_indices(size)] = (0.5, 0.5, 0.5, 0.25)
        axes.imshow(picture, interpolation="none", extent=(-0.5, size - 0.5, size - 0.5, -0.5))
        return _svg(figure)
    names = [_short(name, 16) for name in classes[:size]]
    axes.set_xticks(range(size), names, rotation=90 if max(map(len, names)) > 3 else 0, color=INK)
    axes.set_yticks(range(size), names, color=INK)
    font_size = 9 if size <= 15 else 6.5
    for row, column in zip(*np.nonzero(counts), strict=True):
        corner, count = (column - 0.5, row - 0.5), str(counts[row, column])
        if row == column:
            axes.add_patch(Rectangle(corner, 1, 1, linewidth=0, color=FAINT, alpha=0.6))
            axes.text(column, row, count, color=MUTED, fontsize=font_size, **CENTRED)
        else:
            alpha = 0.2 + 0.6 * strength[row, column]
            axes.add_patch(Rectangle(corner, 1, 1, linewidth=0, color=ALARM, alpha=alpha))
            axes.text(column, row, count, color=INK, fontsize=font_size, weight="bold", **CENTRED)
    return _svg(figure)


def _thin(values: np.ndarray) -> np.ndarray:
    """Means over equal stretches of a long curve: no screen shows more, and the page stays small."""
    if len(values) <= POINTS_OF_A_LINE:
        return values
    return np.array([part.mean() for part in np.array_split(values, POINTS_OF_A_LINE)])


def _short(name: str, length: int) -> str:
    name = " ".join(name.split())
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def _svg(figure: Figure) -> str:
    """The drawing without prologue and metadata, with identifiers that no other drawing has."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", _tidy, text)  # tags only: what a class is called stays as it is
    # The markers of a line repeat their style; their group can carry it once.
    text = re.sub(
        r'<g( clip-path="[^"]*")?>\s*((?:<use [^>]*?( style="[^"]*")/>\s*)(?:<use [^>]*?\3/>\s*)*)</g>',
        lambda found: f"<g{found[1] or ''}{found[3]}>{found[2].replace(found[3], '')}</g>",
        text,
    )
    prefix = "f" + hashlib.sha256(text.encode()).hexdigest()[:7]
    for order, identifier in enumerate(dict.fromkeys(re.findall(r'<\w+ id="([^"]+)"', text))):
        text = re.sub(rf'(?<=["(#]){identifier}(?=[")])', f"{prefix}-{order}", text)
    return re.sub(r"\n\s*", "\n", text)


def _tidy(found: re.Match[str]) -> str:
    """A tag with rounded coordinates, the page's colours and fonts, and only identifiers that are used."""
    tag = re.sub(r'<g id="halo-(\w+)"', r'<g class="halo \1"', found[0])
    tag = re.sub(r'<g id="[^"]*"', "<g", tag)
    tag = re.sub(r'(?<= )(width|height)="[^"]*pt" ?', "", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r' transform="rotate\(-?0 [^"]*"', "", tag)
    if tag.startswith(("<path", "<use", "<text")):
        tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    for name, (light, _) in COLOURS.items():
        tag = tag.replace(f": {light}", f": var(--{name})")
    return tag
