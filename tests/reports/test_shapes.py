"""Arrays that cannot be drawn are named, whatever is wrong with them."""

from pathlib import Path

import numpy as np
import pytest
from reports.test_collect import add_finding, make_run, read

from varcon.core import InputError
from varcon.reports.shapes import KINDS, SHAPES, fault

TREE = np.array([[0, 1, 0.5, 2], [2, 3, 0.7, 3]])


@pytest.mark.parametrize(
    ("finding", "arrays", "words"),
    [
        ("knn", {"confusion": np.zeros((2, 3), int)}, "confusion has 2 x 3 values and should have C x C"),
        ("map2d", {"points": np.zeros((4, 3))}, "points has 4 x 3 values and should have N x 2"),
        ("map2d", {"points": np.zeros((4, 2)), "labels": np.zeros(5, int)}, r"labels has 5 .* N \(N = 4\)"),
        ("map2d", {"points": np.full((4, 2), np.nan)}, "points holds other values than finite numbers"),
        ("map2d", {"points": np.eye(2), "labels": np.array([0, -1])}, "labels holds other values than whole"),
        ("map2d", {"labels": np.array([0.5, 1.0])}, "labels holds other values than whole numbers"),
        ("maps", {"points": np.zeros((4, 2)), "labels": np.zeros(4, int)}, "should have S x N x 2"),
        ("maps", {"points": np.zeros((2, 4, 2)), "epochs": np.arange(3)}, r"S \(S = 2\)"),
        ("clustering", {"class_linkage": TREE, "classes": np.arange(4)}, r"classes has 4 .* C \(C = 3\)"),
        ("clustering", {"class_linkage": TREE[[0, 0]]}, "class_linkage holds other values than a tree"),
        ("similarity", {"order": np.array([0, 2])}, "order holds other values than each place once"),
        ("temperature", {"density": np.ones(5), "edges": np.ones(5)}, r"edges has 5 .* B\+1 \(B = 5\)"),
        ("temperature", {"hardest_pictures": np.zeros((2, 8, 8, 3))}, "hardest_pictures holds .* than bytes"),
        ("calibration", {"fitted_bin_confidence": np.array(["a"])}, "fitted_bin_confidence holds other"),
        ("calibration", {"bin_accuracy": np.array([50.0])}, "bin_accuracy holds other .* from 0 to 1"),
        ("outliers", {"softmax@test": np.zeros((2, 2))}, "softmax@test has 2 x 2 values"),
        ("robustness", {"corruptions": np.arange(3)}, "corruptions holds other values than text"),
        ("finetune-flowers", {"accuracy": np.zeros((2, 2))}, "accuracy has 2 x 2"),
        ("linear", {"accuracy": np.array(90.0)}, "accuracy has no size values and should have E"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, finding: str, arrays: dict[str, np.ndarray], words: str
) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, finding, {}, **arrays)
    with pytest.raises(
        InputError, match=rf"{finding}\.npz does not fit together: .*{words}.*; delete it and run"
    ):
        read(folder)


def test_what_fits_has_no_fault_and_the_unknown_is_let_be() -> None:
    assert fault("clustering", {"class_linkage": TREE, "classes": np.arange(3)}) == ""
    assert fault("mystery", {"points": np.array(["anything"])}) == ""
    assert fault("knn", {"mystery": np.zeros((2, 3, 4))}) == ""
    assert fault("calibration", {"bin_accuracy": np.array([0.5, np.nan])}) == ""  # an empty bin has none


def test_every_kind_of_values_has_its_words() -> None:
    assert {words.split()[0] for shapes in SHAPES.values() for words in shapes.values()} == set(KINDS)


def test_an_empty_array_is_as_good_as_missing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, "map2d", {}, points=np.zeros((0, 2)), labels=np.arange(3))
    assert list(read(folder).findings["map2d"].arrays) == ["labels"]
