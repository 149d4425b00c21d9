"""The drawings, taken apart again as XML."""

import functools
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from varcon.reports import plots
from varcon.reports.plots import Line, Panel, confusion, curves, map_2d

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def marks(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}use"))


@functools.cache
def two_lines(scale: float = 1.0) -> str:
    x = np.linspace(0, 30, 60)
    lines = [Line(x, scale * np.exp(-x / 5), 0, "loss"), Line(x, scale * np.exp(-x / 9), 1, "KL term")]
    return curves([Panel(lines, "loss", height=2), Panel(lines[:1], "again", height=1)], stacked=True)


@functools.cache
def some_map(tests: int = 40, classes: int = 4) -> tuple[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(tests) % classes
    points = 10 * rng.normal(size=(classes, 2))[labels] + rng.normal(size=(tests, 2))
    predictions = np.where(np.arange(tests) % 10 == 3, (labels + 1) % classes, labels)
    return map_2d(points, labels, predictions, [f"class {c}" for c in range(classes)]), predictions != labels


def test_curves_name_their_lines_and_axes() -> None:
    found = texts(two_lines())
    assert {"loss", "KL term", "again", "epoch"} <= set(found)
    assert found.count("epoch") == 1  # stacked panels share their x axis


def test_curves_go_through_the_values() -> None:
    y = np.array([1.0, 3.0, 2.0])
    svg = curves([Panel([Line(np.arange(3), y)], "y")])
    (line,) = [
        path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if "series-0" in path.get("style", "")
    ]
    heights = [float(number) for number in re.findall(r"[\d.]+ ([\d.]+) \n?", line.get("d", ""))]
    assert len(heights) == 3
    # SVG counts downwards; two heights fix the scale, the third must follow.
    assert (heights[0] - heights[2]) / (heights[0] - heights[1]) == pytest.approx(0.5, abs=1e-3)


def test_long_curves_are_averaged() -> None:
    values = np.arange(4000.0)
    thin = plots._thin(values)
    assert len(thin) == plots.POINTS_OF_A_LINE
    np.testing.assert_allclose(thin, values.reshape(plots.POINTS_OF_A_LINE, -1).mean(1))
    np.testing.assert_array_equal(plots._thin(values[:300]), values[:300])


def test_neighbours_are_labelled_with_their_numbers() -> None:
    ks = np.array([1, 5, 20])
    lines, baseline = [Line(ks, ks, 0, "embedding")], Line(ks, ks / 2, label="raw pixels")
    svg = curves([Panel(lines, "%", "neighbours K", baseline, ticks=[1, 5, 20], dots=True)])
    assert {"1", "5", "20", "neighbours K", "embedding", "raw pixels"} <= set(texts(svg))


def test_one_neighbour_number_alone_can_be_drawn() -> None:
    one = Line(np.array([5]), np.array([90.0]), 0, "embedding")
    assert "5" in texts(curves([Panel([one], "%", ticks=[5], dots=True)]))


def test_lines_survive_black_and_white() -> None:
    dashes = [str(plots.DASHES[style]) for style in range(len(plots.DASHES))]
    assert len(set(dashes)) == len(dashes)
    svg = two_lines()
    assert "stroke-dasharray" in svg


def test_the_map_draws_every_point_and_rings_every_error() -> None:
    svg, wrong = some_map()
    assert len(marks(svg)) == 40 + wrong.sum()
    assert len({mark.get(LINK) for mark in marks(svg)}) == 4 + 1  # a marker for each class and the ring
    named = [text for text in texts(svg) if text.startswith("→ ")]
    assert len(named) == wrong.sum() == 4
    assert {f"class {c}" for c in range(4)} <= set(texts(svg))


def test_the_map_without_predictions_has_no_rings() -> None:
    svg = map_2d(np.random.default_rng(0).normal(size=(9, 2)), np.arange(9) % 3, None, ["a", "b", "c"])
    assert len(marks(svg)) == 9
    assert texts(svg) == ["a", "b", "c"]


def test_a_map_of_many_errors_does_not_name_them() -> None:
    svg, wrong = some_map(tests=600)
    assert wrong.sum() == 60 > plots.NAMED_ERRORS
    assert not [text for text in texts(svg) if text.startswith("→ ")]


def test_a_map_of_many_classes_leaves_out_names_that_overlap() -> None:
    labels = np.arange(50) % 25
    points = np.stack([np.where(labels < 20, 0.0, labels), 10.0 * labels * (labels >= 20)], axis=1)
    svg = map_2d(points, labels, labels, [f"class {c}" for c in range(25)])
    assert texts(svg) == ["class 0", *(f"class {c}" for c in range(20, 25))]


def test_neighbouring_classes_of_a_crowded_map_differ_in_colour() -> None:
    middles = np.stack([np.arange(40.0), np.zeros(40)], axis=1)
    colours = plots._map_colours(middles)
    assert colours[:10] == list(range(10))
    assert all(abs(one - other) > 1 for one, other in _pairs_of_one_colour(colours))


def _pairs_of_one_colour(colours: list[int]) -> list[tuple[int, int]]:
    places = range(len(colours))
    return [(a, b) for a in places for b in places if a < b and colours[a] == colours[b]]


def test_one_point_alone_can_be_drawn() -> None:
    assert texts(map_2d(np.zeros((1, 2)), np.array([0]), np.array([0]), ["only"])) == ["only"]


def test_the_matrix_shows_counts_and_no_zeros() -> None:
    counts = np.array([[47, 0, 3], [0, 51, 0], [11, 0, 60]])
    svg = confusion(counts, ["x", "y", "z"])
    assert sorted(text for text in texts(svg) if text.isdecimal()) == sorted(["47", "3", "51", "11", "60"])
    assert texts(svg).count("x") == 2  # on either axis
    boxes = [path.get("style", "") for path in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    assert len([box for box in boxes if "fill: var(--series-1)" in box]) == 2  # the errors stand out
    assert len([box for box in boxes if "fill: var(--faint)" in box]) == 3  # the diagonal does not


def test_a_large_matrix_is_a_picture() -> None:
    counts = np.full((40, 40), 777)
    svg = confusion(counts, [f"name {c}" for c in range(40)])
    assert "777" not in texts(svg)
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}image"))) == 1
    assert "name 0" not in texts(svg)


def test_a_faultless_matrix_can_be_drawn() -> None:
    assert "9" in texts(confusion(np.diag([9, 9]), ["a", "b"]))


def test_names_arrive_as_they_are() -> None:
    names = ["$x_1$", "$", "<script>a()", "a & b", "--> <b>", "_hidden", "数字", "%d"]
    labels = np.arange(8)
    points = np.random.default_rng(0).normal(size=(8, 2))
    assert texts(map_2d(points, labels, labels, names)) == names
    assert set(names) <= set(texts(confusion(np.eye(8, dtype=int), names)))
    lines = [Line(labels, labels + style, style, name) for style, name in enumerate(names)]
    assert set(names) <= set(texts(curves([Panel(lines, "y")])))


def test_names_that_look_like_markup_change_nothing_around_them() -> None:
    name = ' id="a" x="1.23456" : #0072b2'
    line = Line(np.arange(3), np.arange(3), 0, name)
    svg = curves([Panel([line], "y")])
    assert " ".join(name.split()) in texts(svg)


def test_long_names_are_cut() -> None:
    assert plots._short("a rather long name of a class", 10) == "a rather…"
    assert plots._short("short\nname", 10) == "short name"


def test_identifiers_are_unique_across_drawings_and_all_are_found() -> None:
    drawings = [two_lines(1.0), two_lines(2.0), some_map()[0], confusion(np.diag([1, 2]), ["a", "b"])]
    seen: set[str] = set()
    for svg in drawings:
        identifiers = [
            element.get("id", "") for element in ElementTree.fromstring(svg).iter() if element.get("id")
        ]
        assert len(identifiers) == len(set(identifiers))
        assert seen.isdisjoint(identifiers)
        seen.update(identifiers)
        assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)) <= {
            pair for name in identifiers for pair in ((name, ""), ("", name))
        }


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert two_lines.__wrapped__() == two_lines()
    assert some_map.__wrapped__()[0] == some_map()[0]


def test_colours_are_left_to_the_page() -> None:
    for svg in (two_lines(), some_map()[0], confusion(np.array([[5, 1], [0, 4]]), ["a", "b"])):
        assert set(re.findall(r"var\(--([\w-]+)\)", svg)) <= set(plots.COLOURS)
        assert not re.findall(r"(?:fill|stroke): #", svg)
        assert "font-family" not in svg


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(matplotlib.rcParams)
    confusion(np.diag([9, 9]), ["a", "b"])
    assert dict(matplotlib.rcParams) == before
