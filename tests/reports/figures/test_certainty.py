"""Temperature, calibration and outliers."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from reports.test_charts import points
from reports.test_collect import add_finding, make_run, read
from reports.test_svg import SVG, parsed, paths, pixels, texts
from sklearn.metrics import roc_curve

from varcon.reports.collect import Run, Samples
from varcon.reports.figures import calibration, outliers, temperature


def hard_run(tmp_path: Path, shown: int) -> tuple[Run, np.ndarray]:
    folder = make_run(tmp_path / "run")
    pictures = np.random.default_rng(0).integers(0, 256, (shown, 8, 8, 3)).astype(np.uint8)
    arrays = {
        "labels": np.array([0, 1, 2]),
        "rivals": np.array([2, 0, 1]),
        "confidence": np.array([0.001, 0.25, 0.5]),
    }
    named = {f"hardest_{name}": values for name, values in arrays.items()}
    add_finding(folder, "temperature", {"tau2_mean": 0.1}, hardest_pictures=pictures, **named)
    return read(folder), pictures


def test_the_hardest_images_are_shown_with_label_rival_and_confidence(tmp_path: Path) -> None:
    run, pictures = hard_run(tmp_path, shown=2)
    (drawing,) = temperature.hardest(run)
    images = list(parsed(drawing.svg).iter(f"{SVG}image"))
    np.testing.assert_array_equal([pixels(image) for image in images], pictures)
    assert texts(drawing.svg) == ["class 0", "→ class 2", "p = 0.001", "class 1", "→ class 0", "p = 0.25"]
    assert drawing.caption.startswith("The 2 training images")


def test_the_hardest_images_are_listed_by_file_whatever_its_name(tmp_path: Path) -> None:
    run, _ = hard_run(tmp_path, shown=2)
    assert temperature.files(run) == []
    run.findings["temperature"].arrays["hardest_files"] = np.array(["a/1.png", "b/caf\udce9.png", "c|d.png"])
    (table,) = temperature.files(run)
    assert "| b/caf\\udce9.png | class 1 | class 0 | 0.250 |" in table.markdown()
    table.markdown().encode()


def sampled(run: Run, tau1: float = 0.1) -> Run:
    quantiles = np.array([[0, 0.1, 0.2, 0.5, 0.7, 0.9, 1], [0, 0.2, 0.4, 0.6, 0.8, 0.9, 1]])
    density = np.array([[2.0, 0.0], [0.5, 1.5]])
    run.samples["confidence"] = Samples(np.array([1.0, 2.0]), np.array([0.4, 0.6]), quantiles, density)
    return run


def test_tau2_over_training_is_where_confidence_and_epsilon_put_it(tmp_path: Path) -> None:
    """tau2 = (tau1 - epsilon) + 2 epsilon p, Eq. 13, with the epsilon of the epoch."""
    folder = make_run(tmp_path / "run")
    run = sampled(read(folder))
    run.metrics["epsilon"] = np.array([0.02, 0.04])
    found = temperature.tau2_samples(run)
    assert found is not None
    _, low, high = found
    np.testing.assert_allclose(low, [0.08, 0.06])
    np.testing.assert_allclose(high, [0.12, 0.14])
    (drawing,) = temperature.over_training(run)
    lines = {
        part.split(":var(--")[1][:8]: points(steps)
        for part, steps in styled(drawing.svg)
        if "stroke:" in part
    }
    mean, median = lines["series-0"], lines["series-1"]
    tau2 = {"mean": [0.08 + 0.04 * 0.4, 0.06 + 0.08 * 0.6], "median": [0.08 + 0.04 * 0.5, 0.06 + 0.08 * 0.6]}
    scale = (mean[1, 1] - mean[0, 1]) / (tau2["mean"][1] - tau2["mean"][0])
    assert median[0, 1] - mean[0, 1] == pytest.approx(scale * (tau2["median"][0] - tau2["mean"][0]), abs=0.05)
    assert len(paths(drawing.svg, "fill:var(--series-0")) == 2  # the two bands
    (ridges,) = temperature.ridges(run)
    assert {"epoch 1", "epoch 2"} <= set(texts(ridges.svg))


def test_where_tau1_moves_tau2_is_that_of_each_epochs_mean(tmp_path: Path) -> None:
    """As the confidences are: a row tells of the steps since the one before, and the last one of few."""
    folder = make_run(tmp_path / "run")
    rows = [
        {"step": step, "epoch": step / 10, "loss": 1.0, "epsilon": 0.02, "tau1": tau1}
        for step, tau1 in ((8, 0.30), (10, 0.25), (18, 0.20), (20, 0.15))
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = temperature.tau2_samples(sampled(read(folder)))
    assert found is not None
    np.testing.assert_allclose(found[1], [0.8 * 0.30 + 0.2 * 0.25 - 0.02, 0.8 * 0.20 + 0.2 * 0.15 - 0.02])
    np.testing.assert_allclose(found[2] - found[1], 0.04)


def styled(svg: str) -> list[tuple[str, str]]:
    found = [(path.get("style", ""), path.get("d", "")) for path in parsed(svg).iter(f"{SVG}path")]
    return [
        (re.sub("^fill:none;", "", style), steps)
        for style, steps in found
        if style.startswith("fill:none;stroke:var(--series")
    ][2:]  # after the legend's two


def test_without_a_temperature_there_is_no_tau2(tmp_path: Path) -> None:
    run = sampled(read(make_run(tmp_path / "run", temperature=None)))
    assert temperature.over_training(run) == temperature.ridges(run) == []


def test_reliability_shows_the_bins_that_have_images(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    bins = {"bin_edges": np.linspace(0, 1, 4), "bin_confidence": np.array([0.2, np.nan, 0.9])}
    bins |= {"bin_accuracy": np.array([0.5, np.nan, 1.0]), "bin_images": np.array([4, 0, 12])}
    add_finding(folder, "calibration", {"ece": 5.0, "fitted_ece": 4.0}, **bins)
    run = read(folder)
    line = calibration.reliability_line(run, "calibration", "")
    assert line is not None
    assert (line.x.tolist(), line.y.tolist()) == ([0.2, 0.9], [0.5, 1.0])
    np.testing.assert_allclose(line.error, [np.sqrt(0.25 / 4), 0])
    (drawing,) = calibration.reliability(run)
    assert drawing.shape == "half"  # of one posterior
    (table,) = calibration.scores(run)
    column = table.head.index("ECE, %")
    assert [(row[0].text, row[column].text) for row in table.rows] == [
        ("τ as set", "5.00"),
        ("τ by training", "4.00"),
    ]


def test_the_curve_is_the_receivers_operating_characteristic() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 300), rng.normal(0, 1, 400)
    inside[:20] = outside[:20] = 0.5  # ties
    truth = np.repeat([1, 0], [300, 400])
    false, true, _ = roc_curve(truth, np.concatenate([inside, outside]), drop_intermediate=False)
    found = outliers.false_positives(inside, outside)
    for share, rate in zip(outliers.THRESHOLDS, found, strict=True):
        assert rate == pytest.approx(false[np.argmax(true >= share - 1e-12)], abs=1e-12)


def test_histograms_count_every_image() -> None:
    edges = np.linspace(0, 1, 5)
    shares = outliers.shares(np.array([-100.0, 0.1, 0.3, 0.3, 0.9, 7.0]), edges)
    np.testing.assert_allclose(shares, 100 * np.array([2, 2, 0, 2]) / 6)


def test_outliers_are_tabulated_by_kind(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    scores = {
        "softmax_auroc": 90.0,
        "softmax_fpr95": 20.0,
        "softmax_auroc@noise": 91.0,
        "softmax_auroc@svhn": 89.0,
    }
    values = {f"softmax@{kind}": np.linspace(0, 1, 9) for kind in ("test", "noise", "svhn")}
    add_finding(folder, "outliers", scores, **values)
    run = read(folder)
    auroc, _, fpr95 = outliers.measures(run)
    assert auroc.head == ["score", "noise", "svhn", "mean"]
    assert [cell.text for cell in auroc.rows[0]] == ["softmax", "91.00", "89.00", "90.00"]
    assert [cell.text for cell in fpr95.rows[0]] == ["softmax", "—", "—", "20.00"]
    (drawing,) = outliers.histograms(run)
    assert {"test images", "noise", "svhn", "chance"} <= set(texts(drawing.svg))
