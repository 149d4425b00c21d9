import functools
import re
from pathlib import Path

import numpy as np
from reports.test_collect import add_finding, make_run, read
from reports.test_svg import parsed, paths, texts

from varcon.reports.figures import maps
from varcon.reports.figures.maps import colours_of, map_2d, small_maps
from varcon.reports.svg import Drawing
from varcon.reports.tables import Table


@functools.cache
def some_map(tests: int = 40, classes: int = 4) -> tuple[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(tests) % classes
    points = 10 * rng.normal(size=(classes, 2))[labels] + rng.normal(size=(tests, 2))
    predictions = np.where(np.arange(tests) % 10 == 3, (labels + 1) % classes, labels)
    names = {label: f"class {label}" for label in range(classes)}
    return map_2d(points, labels, predictions, names), predictions != labels


def count(steps: list[str]) -> int:
    return sum(part.count("M") for part in steps)


def test_the_map_draws_every_point_and_rings_every_error() -> None:
    svg, wrong = some_map()
    assert count(paths(svg, "fill:var(--series")) == 40
    assert count(paths(svg, "fill:none")) == wrong.sum() == 4
    shapes = {re.sub(r"M[-\d.]+ [-\d.]+", "", steps)[:20] for steps in paths(svg, "fill:var(--series")}
    assert len(shapes) == 4  # black and white tells the classes apart too
    assert 0 < len([text for text in texts(svg) if text.startswith("→ ")]) <= 4  # where there is room
    assert {f"class {c}" for c in range(4)} <= set(texts(svg))


def test_the_map_keeps_its_proportions() -> None:
    points = np.array([[0.0, 0.0], [30.0, 0.0], [0.0, 10.0]])
    x, y = maps.fitted(points, (0, 0, 600, 600))
    assert (x[1] - x[0], y[0] - y[2]) == (600, 200)
    assert y[0] > y[2]  # up stays up


def test_the_map_without_predictions_has_no_rings() -> None:
    points = np.random.default_rng(0).normal(size=(9, 2))
    svg = map_2d(points, np.arange(9) % 3, None, {0: "a", 1: "b", 2: "c"})
    assert count(paths(svg)) == 9
    assert texts(svg) == ["a", "b", "c"]


def test_a_map_of_many_errors_does_not_name_them_and_of_most_does_not_ring_them() -> None:
    svg, wrong = some_map(tests=600)
    assert wrong.sum() == 60 > maps.NAMED_ERRORS
    assert not [text for text in texts(svg) if text.startswith("→ ")]
    assert count(paths(svg, "fill:none")) == 60
    labels = np.arange(60) % 3
    svg = map_2d(
        np.random.default_rng(0).normal(size=(60, 2)), labels, 1 - labels.clip(0, 1), {0: "a", 1: "b", 2: "c"}
    )
    assert count(paths(svg, "fill:none")) == 0


def test_no_two_names_of_a_map_lie_on_each_other() -> None:
    labels = np.arange(50) % 25
    points = np.stack([np.where(labels < 20, 0.0, labels), 10.0 * labels * (labels >= 20)], axis=1)
    names = {label: f"class {label}" for label in range(25)}
    assert texts(map_2d(points, labels, labels, names)) == ["class 0", *(f"class {c}" for c in range(20, 25))]


def test_what_errors_were_taken_for_is_unsaid_where_it_would_lie_on_other_words() -> None:
    points = np.concatenate([np.zeros((10, 2)), 50 * np.eye(2)])
    labels, predictions = np.zeros(12, int), np.zeros(12, int)
    predictions[1:5] = 1  # four errors in one place
    svg = map_2d(points, labels, predictions, {0: "a", 1: "b"})
    assert len([text for text in texts(svg) if text.startswith("→ ")]) == 2  # right of it, and left


def test_neighbouring_classes_of_a_crowded_map_differ_in_colour() -> None:
    colours = colours_of(np.stack([np.arange(40.0), np.zeros(40)], axis=1))
    assert colours[:10] == list(range(10))
    pairs = [(a, b) for a in range(40) for b in range(a) if colours[a] == colours[b]]
    assert all(a - b > 1 for a, b in pairs)


def test_one_point_alone_can_be_drawn() -> None:
    assert texts(map_2d(np.zeros((1, 2)), np.array([0]), np.array([0]), {0: "only"})) == ["only"]


def test_what_the_maps_are_of(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    scores = {"knn_top1@epoch10": 90.0, "knn_top1@epoch0": 40.0, "knn_top1@epochx": 1.0}
    points = np.random.default_rng(0).normal(size=(2, 6, 2))
    add_finding(folder, "maps", scores, points=points, labels=np.arange(6) % 3, epochs=np.array([0, 10]))
    drawing, table = maps.of_run(read(folder))
    assert isinstance(drawing, Drawing)
    assert texts(drawing.svg) == ["before training", "epoch 10"]
    assert isinstance(table, Table)
    assert [[cell.text for cell in row] for row in table.rows] == [["0", "40.00"], ["10", "90.00"]]


def test_maps_over_training_share_their_colours() -> None:
    points = np.random.default_rng(0).normal(size=(5, 30, 2))
    svg = small_maps(points, np.arange(30) % 3, [f"epoch {e}" for e in range(5)])
    assert texts(svg) == [f"epoch {e}" for e in range(5)]
    assert count(paths(svg, "fill:var(--series")) == 5 * 30
    assert len(paths(svg, "fill:var(--series-0")) == 5
    assert float(parsed(svg).get("viewBox", "").split()[2]) == 996
