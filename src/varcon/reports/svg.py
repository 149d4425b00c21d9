"""A canvas whose shapes become SVG text, in the page's own font and colours.

No plotting library draws here: a page holds twenty drawings and more, some of which would take a second each,
and its bytes would change with the library's version. Nothing in a drawing has an identifier, so any number
of them can stand in one page.
"""

from __future__ import annotations

import base64
import functools
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Name: on a light page, on a dark one. The hues are Okabe and Ito's, then Tol's: safe for colour-blind eyes.
COLOURS = {
    "ink": ("#1f2430", "#e6e9ef"),
    "muted": ("#667085", "#98a2b3"),
    "faint": ("#dfe3e9", "#343b48"),
    "paper": ("#ffffff", "#14171d"),
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
SERIES = [name for name in COLOURS if name.startswith("series")]
ALARM = "series-1"  # errors, wherever they are drawn
# Lines and marks differ in more than colour: they must tell apart in black and white.
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "13 4", "4 2 2 2 2 2")
# Of size 1, from the mark's middle.
MARKS = (
    "m-.5 0a.5.5 0 1 0 1 0a.5.5 0 1 0-1 0",
    "m-.45-.45h.9v.9h-.9z",
    "m0-.56l.58 1h-1.16z",
    "m0-.62l.5.62l-.5.62l-.5-.62z",
    "m0 .56l.58-1h-1.16z",
    "m-.2-.55h.4v.35h.35v.4h-.35v.35h-.4v-.35h-.35v-.4h.35z",
    "m-.5-.3l.2-.2l.3.3l.3-.3l.2.2l-.3.3l.3.3l-.2.2l-.3-.3l-.3.3l-.2-.2l.3-.3z",
    "m-.58 0l1-.58v1.16z",
    "m.58 0l-1-.58v1.16z",
    "m0-.55l.52.38l-.2.62h-.64l-.2-.62z",
)
FONTS = "Helvetica, Arial, sans-serif"  # of a drawing outside the page
TEXT_SIZE = 12.0


@dataclass(frozen=True)
class Drawing:
    title: str
    caption: str  # one line that says what to see
    svg: str  # for an HTML page: in its font, and in its colours where it defines them as variables
    shape: str = "half"  # of the page's width: half, wide or large

    def standalone(self) -> str:
        """The drawing as an SVG file of its own, in the colours for paper."""
        box = re.match(r'<svg xmlns="[^"]*" viewBox="0 0 ([\d.]+) ([\d.]+)"', self.svg)
        size = f' width="{box[1]}" height="{box[2]}"' if box else ""
        plain = re.sub(r"var\(--[\w-]+,(#\w+)\)", r"\1", self.svg)
        return plain.replace("<svg", f'<svg{size} font-family="{FONTS}"', 1) + "\n"


def series(style: int) -> str:
    return SERIES[style % len(SERIES)]


class Canvas:
    """Coordinates are pixels of the page at its full width, counted from the upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._elements: list[str] = []

    def svg(self) -> str:
        box = f'viewBox="0 0 {number(self.width)} {number(self.height)}" font-size="{number(TEXT_SIZE)}"'
        elements = "\n".join(self._elements)
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n{elements}\n</svg>'

    def path(
        self,
        steps: str,
        stroke: str = "",
        width: float = 1.0,
        dash: str = "",
        fill: str = "",
        opacity: float = 1.0,
    ) -> None:
        style = [f"fill:{paint(fill)}" if fill else "fill:none"]
        if stroke:
            style += [f"stroke:{paint(stroke)}", f"stroke-width:{number(width)}", "stroke-linejoin:round"]
        style += [f"stroke-dasharray:{dash}"] if dash else []
        style += [f"opacity:{number(opacity)}"] if opacity < 1 else []
        if steps:
            self._elements.append(f'<path d="{steps}" style="{";".join(style)}"/>')

    def line(self, x: np.ndarray, y: np.ndarray, stroke: str, width: float = 1.8, dash: str = "") -> None:
        """Through the points, with a gap where one is not a number."""
        known = np.isfinite(x) & np.isfinite(y)
        steps = [
            f"{'L' if place and known[place - 1] else 'M'}{number(x[place])} {number(y[place])}"
            for place in np.flatnonzero(known)
        ]
        self.path("".join(steps), stroke, width, dash)

    def area(self, x: np.ndarray, low: np.ndarray, high: np.ndarray, fill: str, opacity: float) -> None:
        known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
        around = np.concatenate([x[known], x[known][::-1]]), np.concatenate([low[known], high[known][::-1]])
        corners = [f"{number(across)} {number(down)}" for across, down in zip(*around, strict=True)]
        self.path(f"M{'L'.join(corners)}z" if corners else "", fill=fill, opacity=opacity)

    def rectangle(
        self, x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0
    ) -> None:
        steps = f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"
        self.path(steps, fill=fill, opacity=opacity)

    def marks(
        self,
        x: Iterable[float],
        y: Iterable[float],
        style: int,
        size: float = 7.0,
        mark: int | None = None,  # None: that of the style
    ) -> None:
        """One path for all: a map has thousands."""
        mark = style + 3 * (style // len(SERIES)) if mark is None else mark  # another where a colour recurs
        shape = scaled(MARKS[mark % len(MARKS)], size)
        points = [(a, b) for a, b in zip(x, y, strict=True) if np.isfinite(a) and np.isfinite(b)]
        steps = "".join(f"M{number(across, 1)} {number(down, 1)}{shape}" for across, down in points)
        self.path(steps, fill=series(style))

    def rings(self, x: Iterable[float], y: Iterable[float], size: float, width: float) -> None:
        shape = scaled(MARKS[0], size)
        steps = "".join(f"M{number(a, 1)} {number(b, 1)}{shape}" for a, b in zip(x, y, strict=True))
        self.path(steps, stroke="ink", width=width)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = TEXT_SIZE,
        anchor: str = "start",  # where x is: at the start, middle or end
        colour: str = "ink",
        bold: bool = False,
        upward: bool = False,  # read from below
        halo: bool = False,  # a rim of the page's colour, where the words lie on other shapes
    ) -> None:
        """With half of the letters' height above y and half below."""
        style = [f"fill:{paint(colour)}"]
        style += [f"font-size:{number(size)}px"] if size != TEXT_SIZE else []
        style += [f"text-anchor:{anchor}"] if anchor != "start" else []
        style += ["font-weight:600"] if bold else []
        if halo:
            style += [f"paint-order:stroke;stroke:{paint('paper')};stroke-width:3;stroke-linejoin:round"]
        down = 0.35 * size  # of a capital's height of 0.7
        place = f'x="{number(x)}" y="{number(y + down)}"'
        if upward:
            place = f'transform="translate({number(x + down)} {number(y)}) rotate(-90)"'
        self._elements.append(f'<text {place} style="{";".join(style)}">{html.escape(words)}</text>')

    def image(self, x: float, y: float, width: float, height: float, pixels: np.ndarray) -> None:
        """Pixels [h, w, 3] or [h, w, 4] in bytes; each stays a square of its own."""
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        style = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
        self._elements.append(f'<image {box} {style} href="{data_uri(pixels)}"/>')


def paint(name: str) -> str:
    """A colour that the page may set, with the one for paper where it does not."""
    return f"var(--{name},{COLOURS[name][0]})"


def number(value: float, digits: int = 2) -> str:
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return "0" if text == "-0" else text


@functools.cache
def scaled(steps: str, size: float) -> str:
    """A relative path at another size; the two flags of an arc, 1 0 or 0 1, stay as they are."""

    def larger(command: re.Match[str]) -> str:
        values = [float(value) for value in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", command[2])]
        flags = range(2, 5) if command[1] == "a" else range(0)
        texts = [number(value if at in flags else size * value) for at, value in enumerate(values)]
        return command[1] + " ".join(texts)

    return re.sub(r"([mlhvaz])([^mlhvaz]*)", larger, steps)


def data_uri(pixels: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def width_of(words: str, size: float = TEXT_SIZE, bold: bool = False) -> float:
    """About how wide the words are in the widest of the usual fonts: rather too wide than too narrow."""
    return size * (1.13 if bold else 1.0) * sum(_width_of_letter(letter) for letter in words)


def _width_of_letter(letter: str) -> float:
    if letter in "iljI.,:;|!'":
        return 0.33
    if letter in "ftr-()[] ":
        return 0.42
    if letter in "mwMW%@—→" or ord(letter) >= 0x2E80:  # Chinese, Japanese, Korean
        return 1.0
    return 0.76 if letter.isupper() else 0.64


def short(name: str, length: int) -> str:
    name = " ".join(name.split())
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def fitting(name: str, width: float, size: float = TEXT_SIZE, bold: bool = False) -> str:
    """As much of a name as a width has room for."""
    name = " ".join(name.split())
    lengths = range(len(name), 1, -1)
    return next(
        (cut for cut in (short(name, n) for n in lengths) if width_of(cut, size, bold) <= width), name[:1]
    )


def widest(names: Sequence[str], size: float = TEXT_SIZE) -> float:
    return max((width_of(name, size) for name in names), default=0.0)
