"""Confusion, similarity and the tree of the classes."""

from pathlib import Path

import numpy as np
import pytest
from reports.test_collect import add_finding, make_run, read
from reports.test_svg import SVG, parsed, paths, pixels, texts
from scipy.cluster.hierarchy import leaves_list, linkage

from varcon.reports.collect import Run
from varcon.reports.figures import clustering, similarity
from varcon.reports.figures.clustering import dendrogram
from varcon.reports.figures.confusion import confusion


def test_the_matrix_shows_counts_and_no_zeros() -> None:
    counts = np.array([[47, 0, 3], [0, 51, 0], [11, 0, 60]])
    svg = confusion(counts, ["x", "y", "z"])
    assert sorted(text for text in texts(svg) if text.isdecimal()) == sorted(["47", "3", "51", "11", "60"])
    assert texts(svg).count("x") == 2  # on either axis
    assert len(paths(svg, "fill:var(--series-1")) == 2  # the errors stand out
    assert len(paths(svg, "fill:var(--faint")) == 3  # the diagonal does not


def test_a_large_matrix_is_a_picture_with_small_names() -> None:
    counts = np.full((40, 40), 777)
    counts[0, 1] = 0
    svg = confusion(counts, [f"name {c}" for c in range(40)])
    assert "777" not in texts(svg)
    assert texts(svg).count("name 0") == 2
    (image,) = parsed(svg).iter(f"{SVG}image")
    picture = pixels(image)
    assert picture.shape == (40, 40, 4)
    assert picture[0, 1, 3] == 0
    assert (picture[0, 2, :3] == (0xD5, 0x5E, 0x00)).all()
    assert (picture[np.arange(40), np.arange(40), :3] == 128).all()
    assert "name 0" not in texts(confusion(np.eye(400, dtype=int), [f"name {c}" for c in range(400)]))


def test_a_faultless_matrix_can_be_drawn() -> None:
    assert "9" in texts(confusion(np.diag([9, 9]), ["a", "b"]))


@pytest.mark.parametrize("count", [2, 10, 100])
def test_the_tree_names_its_leaves_in_order(count: int) -> None:
    tree = linkage(np.random.default_rng(0).normal(size=(count, 3)), "ward")
    svg = dendrogram(tree, [f"class {c}" for c in range(count)])
    named = [text for text in texts(svg) if text.startswith("class")]
    assert named == [f"class {leaf}" for leaf in leaves_list(tree)]
    assert len(paths(svg, "stroke:var(--ink")) == count - 1  # a bracket for each merge
    size = [float(value) for value in parsed(svg).get("viewBox", "").split()[2:]]
    assert size[1] / count >= 11  # a line of type for each class


def test_the_tree_of_a_thousand_classes_fits_a_page_or_two() -> None:
    tree = linkage(np.random.default_rng(0).normal(size=(1000, 3)), "ward")
    svg = dendrogram(tree, [f"class {c}" for c in range(1000)])
    assert float(parsed(svg).get("viewBox", "").split()[3]) < 3000
    assert not [text for text in texts(svg) if text.startswith("class")]


def similar(tmp_path: Path, classes: int = 3) -> Run:
    folder = make_run(tmp_path / "run", classes=classes + 1)
    cosines = np.array([[1.0, 0.1, 0.8], [0.1, 1.0, 0.3], [0.8, 0.3, 1.0]])
    add_finding(
        folder,
        "similarity",
        {"mean": 0.4, "superclass_map": 0.5, "superclass_map_chance": 0.25},
        similarity=cosines,
        classes=np.array([0, 1, 3]),  # class 2 has no test images
        order=np.array([1, 0, 2]),
        pairs=np.array([[0, 3], [1, 3]]),
        pair_similarity=np.array([0.8, 0.3]),
        superclasses=np.array([7, 8, 7]),
    )
    return read(folder)


def test_similarities_are_in_the_order_of_the_tree(tmp_path: Path) -> None:
    (drawing,) = similarity.cosines(similar(tmp_path))
    found = texts(drawing.svg)
    assert found[:3] == ["class 1", "class 0", "class 3"]
    assert [text for text in found if text.startswith("0.")] == [
        "0.10",
        "0.30",
        "0.10",
        "0.80",
        "0.30",
        "0.80",
    ]
    assert "faintest 0.10, strongest 0.80" in drawing.caption


def test_the_closest_pairs_say_whether_they_belong_together(tmp_path: Path) -> None:
    (table,) = similarity.pairs(similar(tmp_path))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["class 0", "class 3", "yes", "0.800"],
        ["class 1", "class 3", "no", "0.300"],
    ]
    (table,) = similarity.recovery(similar(tmp_path / "again"))
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["mean average precision", "0.500", "0.250"]
    ]


def test_the_six_scores_of_the_clusters(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    scores = {
        "ari": 0.5,
        "nmi": 0.6,
        "homogeneity": 0.7,
        "completeness": 0.8,
        "v_measure": 0.9,
        "purity": 1.0,
    }
    add_finding(folder, "clustering", {**scores, "clusters": 3.0, "images": 1200.0})
    (table,) = clustering.scores(read(folder))
    assert [row[1].text for row in table.rows] == [f"{value:.4f}" for value in scores.values()]
    assert table.caption.startswith("1,200 images in 3 clusters.")
