"""Curves and rows of marks, held against the numbers they show."""

import functools
import re

import numpy as np
import pytest
from reports.test_svg import paths, texts

from varcon.reports import charts
from varcon.reports.axes import Entry, axis_of, even_ticks, legend_height, log_axis, shortened
from varcon.reports.charts import Band, Line, Marks, Panel, curves, rows_of_marks


@functools.cache
def two_lines(scale: float = 1.0) -> str:
    x = np.linspace(0, 30, 60)
    lines = [Line(x, scale * np.exp(-x / 5), 0, "loss"), Line(x, scale * np.exp(-x / 9), 1, "KL term")]
    return curves([Panel(lines, "loss", height=2), Panel(lines[:1], "again", height=1)], stacked=True)


def points(steps: str) -> np.ndarray:
    return np.array([[float(x), float(y)] for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", steps)])


def test_curves_name_their_lines_and_axes() -> None:
    found = texts(two_lines())
    assert {"loss", "KL term", "again", "epoch"} <= set(found)
    assert found.count("epoch") == 1  # stacked panels share their x axis
    assert "stroke-dasharray" in two_lines()  # black and white tells the lines apart too


def test_curves_go_through_the_values() -> None:
    x, y = np.array([0.0, 1, 4]), np.array([1.0, 3.0, 2.0])
    *_, line = paths(curves([Panel([Line(x, y)], "y")]), "stroke:var(--series-0")
    across, down = points(line).T
    # Two points fix each scale, the third must follow; SVG counts downwards.
    assert (across[1] - across[0]) / (across[2] - across[0]) == pytest.approx(0.25, abs=1e-3)
    assert (down[0] - down[2]) / (down[0] - down[1]) == pytest.approx(0.5, abs=1e-3)
    assert down[1] < down[0]


def test_a_logarithmic_axis_spaces_by_ratio() -> None:
    ks = np.array([1, 10, 100])
    lines, baseline = [Line(ks, ks, 0, "embedding")], Line(ks, ks / 2, label="raw pixels")
    svg = curves([Panel(lines, "%", "neighbours K", baseline=baseline, ticks=[1, 10, 100], dots=True)])
    assert {"1", "10", "100", "neighbours K", "embedding", "raw pixels"} <= set(texts(svg))
    line = next(steps for steps in paths(svg, "stroke:var(--series-0") if len(points(steps)) == 3)
    across = points(line)[:, 0]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.02)


def test_bars_reach_as_far_as_the_error() -> None:
    x, y, error = np.array([0.0, 1, 2]), np.array([1.0, 2, 4]), np.array([0.5, 0.0, np.nan])
    drawn = [
        points(steps)
        for steps in paths(curves([Panel([Line(x, y, error=error)], "y")]), "stroke:var(--series-0")
    ]
    line, bar = next(p for p in drawn if len(p) == 3), drawn[0]
    scale = (line[0, 1] - line[1, 1]) / (y[1] - y[0])
    assert abs(bar[0, 1] - bar[1, 1]) == pytest.approx(2 * 0.5 * scale, abs=0.05)
    assert len([p for p in drawn if len(p) == 2]) == 2  # none where the error is not known


def test_bands_and_steps_are_areas() -> None:
    x = np.arange(4.0)
    panel = Panel(
        [Line(np.arange(5.0), x, steps=True)], "y", bands=[Band(x, x - 1, x + 1)], y_limits=(0, None)
    )
    svg = curves([panel])
    (band,) = paths(svg, "fill:var(--faint")
    assert len(points(band)) == 2 * 4
    (steps,) = paths(svg, "fill:var(--series-0")
    assert len(points(steps)) == 2 * 8


def test_long_curves_are_averaged() -> None:
    values = np.arange(4000.0)
    thin = charts.thin(values)
    assert len(thin) == charts.POINTS_OF_A_LINE
    np.testing.assert_allclose(thin, values.reshape(charts.POINTS_OF_A_LINE, -1).mean(1))
    np.testing.assert_array_equal(charts.thin(values[:300]), values[:300])


@pytest.mark.parametrize("values", [[5.0], [np.nan], [], [0.0, 0.0], [1e17, 1e17], [-1e-9, 1e-9], [1e8, 3e8]])
def test_any_values_have_an_axis(values: list[float]) -> None:
    axis = axis_of([np.array(values)], "y")
    assert axis.low < axis.high
    assert 1 <= len(axis.ticks) <= 7
    assert len({words for _, words in axis.ticks}) == len(axis.ticks)
    svg = curves([Panel([Line(np.arange(len(values)), np.array(values))], "y")])
    assert "nan" not in svg


def test_ticks_are_round_and_inside() -> None:
    assert [words for _, words in even_ticks(0.0, 1.0, 5)] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    minus = "\N{MINUS SIGN}"
    assert [words for _, words in even_ticks(-60, 110, 4)] == [f"{minus}50", "0", "50", "100"]
    assert [words for _, words in even_ticks(0.02, 0.02015, 3)] == [
        "0.02000",
        "0.02005",
        "0.02010",
        "0.02015",
    ]
    assert [words for _, words in even_ticks(0.02, 0.02 + 1.5e-7, 3)] == [
        "0.02",
        "0.02000005",
        "0.0200001",
        "0.02000015",
    ]
    assert [words for _, words in even_ticks(2e6, 2.0075e6, 3)] == [
        "2e+06",
        "2.0025e+06",
        "2.005e+06",
        "2.0075e+06",
    ]
    assert [words for _, words in even_ticks(0, 12_000, 3)] == ["0", "5,000", "10,000"]
    assert [place for place, _ in log_axis([1, 5], "K").ticks] == [1, 5]


def test_ticks_of_a_narrow_panel_do_not_overlap() -> None:
    panels = [Panel([Line(np.array([0.0, 12345.0]), np.zeros(2))], "y") for _ in range(8)]
    svg = curves(panels, (600, 200))
    ends: dict[str, float] = {}
    for x, y, words in re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)"[^>]*text-anchor:middle[^>]*>([\d,]+)<', svg
    ):
        half = 0.3 * 11 * len(words)
        assert float(x) - half > ends.get(y, -1.0)
        ends[y] = float(x) + half


def test_a_legend_takes_the_rows_that_it_needs() -> None:
    entries = [Entry(f"a method with a long name {place}", place) for place in range(14)]
    assert legend_height([], 480) == 0
    assert legend_height(entries[:1], 480) < legend_height(entries, 996) < legend_height(entries, 480)
    assert set(
        texts(curves([Panel([Line(np.arange(2), np.arange(2), e.style, e.label) for e in entries], "y")]))
    ) >= {entry.label for entry in entries}


def test_long_names_are_cut_where_they_are_alike() -> None:
    long = "held_out-0.1-learning_rate-0.1-epochs-2-temperature-0.05"
    assert shortened(["raw  pixels", long], 480) == ["raw pixels", "held_out-0.1-learning_rate-0.1-epochs-2…"]
    seeds = shortened(["raw pixels", f"{long}-seed0", f"{long}-seed10"], 480)
    assert seeds == ["raw pixels", "…seed0", "…seed10"]
    # What is cut off at either end may be what tells them apart: then there is one in a row.
    grid = [f"temperature {t}, learning_rate 0.1, queue {q}" for t in (0.1, 0.2) for q in (16, 32)]
    assert shortened(grid, 480) == grid
    svg = curves(
        [Panel([Line(np.arange(2), np.arange(2), place, name) for place, name in enumerate(grid)], "y")]
    )
    assert set(grid) <= set(texts(svg))


def test_rows_hold_a_mark_for_each_recipe_in_its_place() -> None:
    marks = [
        Marks("one", 0, np.array([0.2, np.nan]), np.array([0.1, np.nan])),
        Marks("two", 1, np.array([0.4, 0.6]), np.full(2, np.nan)),
    ]
    svg = rows_of_marks(["first", "second"], marks, "score")
    assert {"one", "two", "first", "second", "score"} <= set(texts(svg))
    # Each recipe: one in the legend, then one for each value.
    assert len(paths(svg, "fill:var(--series-0")) == 1 + 1
    legend, first, second = (points(steps)[0] for steps in paths(svg, "fill:var(--series-1"))
    assert first[0] < second[0]
    assert legend[1] < first[1] < second[1]
    (bar,) = (points(steps) for steps in paths(svg, "stroke:var(--series-0"))
    other = points(paths(svg, "fill:var(--series-0")[1])[0]
    assert bar[:, 0].mean() == pytest.approx(other[0], abs=0.06)
    assert (bar[1, 0] - bar[0, 0]) == pytest.approx(first[0] - other[0], abs=0.1)  # 0.2 wide, and 0.2 apart


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert two_lines.__wrapped__() == two_lines()


def test_no_drawing_has_identifiers_that_could_clash() -> None:
    assert " id=" not in two_lines()
