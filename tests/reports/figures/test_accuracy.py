"""Classifiers, few labels, corrupted images and other data."""

from pathlib import Path

import numpy as np
from reports.test_collect import add_finding, make_run, read
from reports.test_svg import texts

from varcon.reports.collect import read_runs
from varcon.reports.figures import classifiers, fewshot, robustness, transfer
from varcon.reports.groups import group_by_recipe
from varcon.reports.svg import Drawing
from varcon.reports.tables import Table


def rows(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_all_classifiers_are_in_one_table(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, "knn", {"k": 5.0, "top1": 91.0, "top5": 99.0})
    add_finding(folder, "logistic", {"top1": 92.0, "mean_per_class": 92.5})
    add_finding(folder, "linear-augmented", {"last": 90.0, "best": 90.5}, accuracy=np.array([80.0, 90.0]))
    reassessed = {"knn_top1": 95.0, "linear-augmented_top1": 94.0, "judged": 1000.0, "left_out": 20.0}
    add_finding(folder, "real", reassessed)
    (table,) = classifiers.scores(read(folder))
    assert rows(table) == [
        ["kNN, K = 5", "91.00", "99.00", "—"],
        ["linear probe on augmented images, last epoch", "90.00", "—", "—"],
        ["linear probe on augmented images, best epoch", "90.50", "—", "—"],
        ["logistic regression", "92.00", "—", "92.50"],
        ["kNN by reassessed labels (ReaL)", "95.00", "—", "—"],
        ["linear probe on augmented images by reassessed labels (ReaL)", "94.00", "—", "—"],
    ]
    assert "so it flatters: quote the last. ReaL judges 1,000 images; 20 have no label" in table.caption
    assert "discriminants" not in table.caption
    (probe,) = classifiers.probes(read(folder))
    assert "on augmented images" in texts(probe.svg)
    add_finding(
        folder, "discriminant", {"top1": 93.0, "top5": 99.5, "mean_per_class": 92.9, "shrinkage": 0.03}
    )
    (table,) = classifiers.scores(read(folder))
    assert ["linear discriminants (varcon predict)", "93.00", "99.50", "92.90"] in rows(table)
    assert "suits the other half of them (0.03 of a sphere for all). ReaL" in table.caption


def few(folder: Path, one: float, error: float = 0.5) -> Path:
    scores = {"logistic@1": one, "logistic_error@1": error, "logistic@10": 90.0, "centroid@1": 60.0}
    add_finding(folder, "fewshot", scores)
    return folder


def test_few_labels_have_their_standard_errors(tmp_path: Path) -> None:
    run = read(few(make_run(tmp_path / "run"), 70.0))
    drawing, table = fewshot.of_run(run)
    assert isinstance(table, Table)
    assert rows(table) == [["1", "70.00 ± 0.50", "60.00"], ["10", "90.00", "—"]]
    assert isinstance(drawing, Drawing)
    assert {"1", "10", "logistic regression", "nearest centroid"} <= set(texts(drawing.svg))


def test_few_labels_of_several_runs_have_the_spread_of_their_seeds(tmp_path: Path) -> None:
    folders = [few(make_run(tmp_path / f"run-{seed}", seed), 70.0 + seed) for seed in range(2)]
    folders.append(few(make_run(tmp_path / "hot", temperature=0.2), 50.0, 0.25))
    groups = group_by_recipe(read_runs(folders))
    (line,), (hot,) = fewshot.line_of(groups[0], "logistic", 0), fewshot.line_of(groups[1], "logistic", 1)
    np.testing.assert_allclose(line.y, [70.5, 90.0])
    np.testing.assert_allclose(line.error, [np.sqrt(0.5), 0.0])
    np.testing.assert_allclose(hot.error, [0.25, 0.0])  # of a single run, that over its subsets
    _, logistic, centroid = fewshot.of_groups(groups)
    assert isinstance(logistic, Table)
    assert rows(logistic) == [
        ["temperature 0.1", "70.50 ± 0.71", "90.00 ± 0.00"],
        ["temperature 0.2", "50.00", "90.00"],
    ]
    assert isinstance(centroid, Table)
    assert centroid.head == ["recipe", "N = 1"]


def test_scores_of_no_labels_are_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, "fewshot", {"logistic@0": 1.0, "logistic@x": 2.0, "other@5": 3.0, "logistic@5": None})
    assert fewshot.of_run(read(folder)) == []


def test_corruptions_are_shown_by_severity(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    accuracy = np.array([[90.0, 70.0], [80.0, 10.0]])
    scores = {
        "clean": 95.0,
        "severity1": 85.0,
        "severity5": 40.0,
        "mean": 62.5,
        "mce": 37.5,
        "images": 2000.0,
    }
    names, severities = np.array(["fog", "shot_noise"]), np.array([1, 5])
    add_finding(folder, "robustness", scores, accuracy=accuracy, corruptions=names, severities=severities)
    run = read(folder)
    (cells,) = robustness.cells(run)
    found = texts(cells.svg)
    assert [text for text in found if "." in text] == ["90.0", "70.0", "80.0", "10.0"]
    assert {"fog", "shot noise", "1", "5", "severity"} <= set(found)
    (table,) = robustness.scores(run)
    assert ["mCE, %", "37.50"] in rows(table)
    assert table.caption.startswith("2,000 test images")
    assert [item.title for item in robustness.of_run(run)] == [
        "Accuracy by corruption and severity",
        "Accuracy by severity",
        "Clean and corrupted images",
    ]


def test_transfer_names_the_measure_of_each_target(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(
        folder,
        "transfer",
        {"food": 50.0, "pets": 70.0, "mean": 60.0},
        names=np.array(["food", "pets"]),
        measures=np.array(["top1", "mean-per-class"]),
        values=np.array([50.0, 70.0]),
        top1=np.array([50.0, 71.5]),
        mean_per_class=np.array([49.0, np.nan]),
    )
    add_finding(folder, "finetune-pets", {"last": 80.0, "best": 81.0}, accuracy=np.array([81.0, 80.0]))
    frozen, tuned, drawing = transfer.of_run(read(folder))
    assert isinstance(frozen, Table)
    assert isinstance(tuned, Table)
    assert rows(frozen) == [
        ["food", "top-1", "50.00", "50.00", "49.00"],
        ["pets", "mean per class", "70.00", "71.50", "—"],
        ["mean", "", "60.00", "—", "—"],
    ]
    assert rows(tuned) == [["its own data", "80.00", "81.00", "—"]]
    assert drawing.title == "Fine-tuning"
    add_finding(folder, "finetune-voc", {"last": 60.0, "best": 61.0}, map=np.array([61.0, 60.0]))
    table, drawing = transfer.of_run(read(folder))[1:]
    assert isinstance(table, Table)
    assert rows(table)[1] == ["its own data (mAP, 11 points)", "60.00", "61.00", "—"]
    assert "mAP, 11 points" in drawing.svg
    other = make_run(tmp_path / "other", temperature=0.2)
    add_finding(other, "transfer", {"food": 40.0, "mean": 40.0})
    compared = transfer.of_groups(group_by_recipe(read_runs([folder, other])))
    assert isinstance(compared[0], Table)
    assert compared[0].head == ["recipe", "food (top-1)", "pets (mean per class)", "mean"]
    assert rows(compared[0])[1] == ["temperature 0.2", "40.00", "—", "40.00"]
