"""Shapes, taken apart again as XML."""

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from varcon.reports.svg import COLOURS, DASHES, MARKS, Canvas, Drawing, fitting, short, width_of

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def paths(svg: str, colour: str = "") -> list[str]:
    """The steps of every path that has a colour in its style."""
    return [path.get("d", "") for path in parsed(svg).iter(f"{SVG}path") if colour in path.get("style", "")]


def pixels(element: ElementTree.Element) -> np.ndarray:
    encoded = element.get("href", "").removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


def test_a_line_goes_through_its_points_and_breaks_where_one_is_missing() -> None:
    canvas = Canvas(10, 10)
    canvas.line(np.array([0.0, 1, 2, 3]), np.array([5.0, np.nan, 4.123456, 3]), "ink")
    assert paths(canvas.svg()) == ["M0 5M2 4.12L3 3"]


def test_an_area_goes_there_and_back() -> None:
    canvas = Canvas(10, 10)
    canvas.area(np.array([0.0, 1]), np.array([2.0, 3]), np.array([5.0, 6]), "ink", 0.5)
    assert paths(canvas.svg()) == ["M0 2L1 3L1 6L0 5z"]


def test_marks_differ_in_shape_and_lines_in_dashes() -> None:
    assert len(set(MARKS)) == len(MARKS) >= 10
    assert len(set(DASHES)) == len(DASHES)
    canvas = Canvas(10, 10)
    canvas.marks([1.0, 2.0, np.nan], [3.0, 4.0, 5.0], 1, size=10)
    (steps,) = paths(canvas.svg())
    assert steps == "M1 3m-4.5 -4.5h9v9h-9zM2 4m-4.5 -4.5h9v9h-9z"


def test_forty_recipes_look_different() -> None:
    def look(style: int) -> tuple[str, str]:
        canvas = Canvas(10, 10)
        canvas.marks([0.0], [0.0], style)
        return canvas.svg(), DASHES[style % len(DASHES)]

    assert len({look(style) for style in range(40)}) == 40


def test_a_round_mark_has_its_size() -> None:
    canvas = Canvas(10, 10)
    canvas.rings([5.0], [5.0], 8, 1)
    assert paths(canvas.svg()) == ["M5 5m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0"]


def test_words_arrive_as_they_are() -> None:
    names = ["$x_1$", "<script>a()", "a & b", "--> <b>", "数字", "%d", ' id="a" x="1"', "it's"]
    canvas = Canvas(10, 10)
    for name in names:
        canvas.text(0, 0, name)
    assert texts(canvas.svg()) == names


def test_an_image_keeps_its_pixels() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    canvas = Canvas(10, 10)
    canvas.image(0, 0, 5, 4, picture)
    (image,) = parsed(canvas.svg()).iter(f"{SVG}image")
    np.testing.assert_array_equal(pixels(image), picture)


def test_colours_are_left_to_the_page_and_settled_in_a_file() -> None:
    canvas = Canvas(30, 20)
    canvas.rectangle(0, 0, 1, 1, "series-0")
    canvas.text(0, 0, "var(--ink,#123456)? no: a name")
    svg = canvas.svg()
    assert "fill:var(--series-0,#0072b2)" in svg
    assert set(re.findall(r"style=\"[^\"]*var\(--([\w-]+)", svg)) <= set(COLOURS)
    alone = Drawing("a", "b", svg).standalone()
    root = parsed(alone)
    assert (root.get("width"), root.get("height")) == ("30", "20")
    assert "fill:#0072b2" in alone
    assert "Helvetica" in root.get("font-family", "")
    assert "var(--series" not in alone


def test_names_are_cut_to_a_length_or_a_width() -> None:
    assert short("a rather long name of a class", 10) == "a rather…"
    assert short("short\nname", 10) == "short name"
    name = "a rather long name of a class"
    for width in (20, 60, 100, 1000):
        assert width_of(fitting(name, width)) <= width
    assert fitting(name, 1000) == name
    assert fitting("", 10) == ""


def test_widths_are_not_less_than_those_of_a_wide_font() -> None:
    """DejaVu Sans is the widest font that a page is likely to meet; its advances at 2048 units an em."""
    advances = {
        "a": 1255,
        "m": 1995,
        "i": 569,
        "W": 2025,
        "0": 1303,
        "t": 803,
        "r": 842,
        "e": 1260,
        "_": 1024,
    }
    for word in ("attire", "mimi", "Write", "wit", "100", "t_rate", "maria"):
        wide = sum(advances.get(letter, 0) for letter in word) / 2048
        assert width_of(word, 1.0) > wide
