"""Run folders made by hand, and what is read out of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from varcon.core import InputError
from varcon.reports.collect import Run, read_run, read_runs


def make_run(folder: Path, seed: int = 0, classes: int = 3, tests: int = 12, **method: Any) -> Path:
    """A trained run without findings; `method` adds to the method's settings."""
    (folder / "findings").mkdir(parents=True)
    record = {
        "recipe": {
            "data": {"name": "digits", "path": ""},
            "method": {"name": "varcon", "temperature": 0.1, "epsilon_range": [0.0, 0.08], **method},
            "train": {"epochs": 2, "batch_size": 100, "seed": seed},
        },
        "command": f"varcon train recipes/digits/varcon.toml --train.seed {seed}",
        "versions": {"varcon": "0.1.0", "torch": "2.13.0"},
        "device": "cpu, 2 threads",
        "classes": [f"class {label}" for label in range(classes)],
        "train_images": 1297,
        "test_images": tests,
        "started": "2026-11-15T09:00:00",
    }
    (folder / "recipe.json").write_text(json.dumps(record))
    rows = [
        {"step": 5, "epoch": 1.0, "loss": 3.5, "kl": 1.5, "nll": 2.0, "confidence": 0.2, "tau2": 0.09},
        {"step": 10, "epoch": 2.0, "loss": 0.75, "kl": 0.25, "nll": 0.5, "confidence": 0.7, "tau2": 0.11},
    ]
    speeds = [{"epsilon": 0.02, "images_per_second": 500.0, "seconds": 1.0 + 41 * row} for row in range(2)]
    lines = [json.dumps(row | speed) for row, speed in zip(rows, speeds, strict=True)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def add_finding(folder: Path, name: str, scores: dict[str, Any], **arrays: np.ndarray) -> None:
    record = {"scores": scores, "settings": {"k": 5}, "seconds": 1.2}
    (folder / "findings" / f"{name}.json").write_text(json.dumps(record))
    if arrays:
        np.savez(folder / "findings" / f"{name}.npz", **arrays)


def read(folder: Path) -> Run:
    return read_run(folder, folder.name)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "first", seed=7)
    add_finding(folder, "knn", {"top1": 91.5}, predictions=np.arange(4))
    run = read(folder)
    assert (run.name, run.method, run.data, run.seed) == ("first", "varcon", "digits", 7)
    assert run.command.endswith("--train.seed 7")
    assert run.metrics["loss"].tolist() == [3.5, 0.75]
    assert run.score("knn", "top1") == 91.5
    assert run.score("knn", "top5") is None
    assert run.score("linear", "last") is None
    assert run.array("knn", "predictions").tolist() == [0, 1, 2, 3]
    assert run.findings["knn"].seconds == 1.2


def test_the_temperature_of_varcon_beside_another_method_is_its_own(tmp_path: Path) -> None:
    assert read(make_run(tmp_path / "alone")).tau1 == 0.1
    both = make_run(tmp_path / "both", name="varcon-gpaco", temperature=0.2, varcon_temperature=0.1)
    assert read(both).tau1 == 0.1


@pytest.mark.parametrize(
    ("kind", "path", "wanted"),
    [("folder", "photos/pets.v2/", "pets.v2"), ("npz", "a/leaves.npz", "leaves"), ("folder", ".", "folder")],
)
def test_a_users_own_data_go_by_their_own_name(tmp_path: Path, kind: str, path: str, wanted: str) -> None:
    folder = make_run(tmp_path / "own")
    record = json.loads((folder / "recipe.json").read_text())
    record["recipe"]["data"] = {"name": kind, "path": path}
    (folder / "recipe.json").write_text(json.dumps(record))
    assert read(folder).data == wanted


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 15, "epo')
    assert read(folder).metrics["step"].tolist() == [5, 10]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 15, "epo\n{"step": 20}\n')
    with pytest.raises(InputError, match=r"line 3 of .*metrics\.jsonl .* delete that line"):
        read(folder)


def test_rows_without_a_column_hold_nan_and_columns_without_numbers_go(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = [{"step": 1, "note": "text"}, {"step": 2, "loss": 1.5}, {"step": 3, "loss": float("nan")}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    metrics = read(folder).metrics
    assert list(metrics) == ["step", "loss"]
    np.testing.assert_array_equal(metrics["loss"], [np.nan, 1.5, np.nan])


def test_a_run_may_lack_its_journal_and_its_findings(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    (folder / "findings").rmdir()
    run = read(folder)
    assert run.metrics == {}
    assert run.findings == {}
    assert run.training_seconds is None
    assert run.images_per_second is None


def test_training_time_is_the_last_reading_of_the_clock(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps({"seconds": time}) for time in (10.0, 25.5)))
    assert read(folder).training_seconds == 25.5


def test_accuracy_by_k_is_sorted_by_number_and_keeps_zero(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(
        folder,
        "knn",
        {"top1@20": 3.0, "top1@5": 2.0, "top1@100": 0.0, "top5@5": 9.0, "top1@x": 1.0, "top1@0": 1.0},
    )
    assert list(read(folder).accuracy_by_k("knn").items()) == [(5, 2.0), (20, 3.0), (100, 0.0)]
    assert read(folder).accuracy_by_k("pixels") == {}


def test_confused_pairs_agree_with_counting_one_by_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(0, 4, (2, 60))
    confusion = np.zeros((4, 4), dtype=int)
    counted: dict[tuple[str, str], int] = {}
    for true, taken in zip(labels, predictions, strict=True):
        confusion[true, taken] += 1
        if true != taken:
            pair = (f"class {true}", f"class {taken}" if taken < 3 else "3")
            pair = (pair[0] if true < 3 else "3", pair[1])  # the run names three classes only
            counted[pair] = counted.get(pair, 0) + 1
    folder = make_run(tmp_path / "run")
    add_finding(folder, "knn", {}, confusion=confusion)
    pairs = read(folder).confused_pairs()
    assert {(true, taken): count for true, taken, count, _ in pairs} == counted
    assert [count for *_, count, _ in pairs] == sorted(counted.values(), reverse=True)
    true, _, count, percent = pairs[0]
    label = 3 if true == "3" else int(true[-1])
    assert percent == pytest.approx(100 * count / (labels == label).sum())


def test_a_folder_given_twice_counts_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert len(read_runs([folder, tmp_path / "other" / ".." / "run"])) == 1


def test_folders_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = read_runs([make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run")])
    assert [run.name for run in runs] == [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")]


def test_no_folders_at_all() -> None:
    with pytest.raises(InputError, match="name at least one run folder"):
        read_runs([])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*nowhere; give the folder of a run"):
        read_runs([tmp_path / "nowhere"])


def test_a_folder_that_is_not_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a run, for it has no recipe\.json; give a folder"):
        read_runs([tmp_path])
    (tmp_path / "table.md").touch()
    with pytest.raises(InputError, match=r"table\.md is a file; give the folder of a run"):
        read_runs([tmp_path / "table.md"])
    make_run(tmp_path / "first")
    assert [run.name for run in read_runs([*tmp_path.iterdir()])] == ["first"]  # as `runs/*` has files too
    with pytest.raises(InputError, match=r"is not a run, .*; name a run in it, for example .*first"):
        read_runs([tmp_path])


@pytest.mark.parametrize("text", ['{"recipe": ', "[1, 2]", "{}", '{"recipe": {"train": 3}}', "\xff"])
def test_a_corrupt_recipe_is_named(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "recipe.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"recipe\.json .*; restore the file, or train the run again"):
        read(folder)


@pytest.mark.parametrize("text", ['{"scores"', "3", '{"settings": {}}', '{"scores": [1]}'])
def test_a_corrupt_finding_is_named(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "findings" / "knn.json").write_text(text)
    with pytest.raises(InputError, match=r"knn\.json .*; delete it and run `varcon evaluate .*run`"):
        read(folder)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_corrupt_arrays_are_named(tmp_path: Path, content: bytes) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, "knn", {})
    (folder / "findings" / "knn.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"knn\.npz cannot be read .*; delete it"):
        read(folder)


def test_arrays_that_would_run_code_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    add_finding(folder, "knn", {}, predictions=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match=r"knn\.npz cannot be read"):
        read(folder)


def test_samples_are_read_epoch_by_epoch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    of_one = {
        "mean": 0.5,
        "deviation": 0.1,
        "quantiles": [0, 0.1, 0.2, 0.5, 0.7, 0.9, 1],
        "density": [1.0, 1.0],
    }
    rows = [{"step": 5 * epoch, "epoch": epoch, "confidence": of_one} for epoch in (1, 2)]
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 15, "ep')
    samples = read(folder).samples["confidence"]
    assert samples.epoch.tolist() == [1, 2]
    assert samples.quantiles.tolist() == [of_one["quantiles"]] * 2
    assert samples.density.shape == (2, 2)


@pytest.mark.parametrize(
    "broken",
    [{"quantiles": [0, 1]}, {"mean": "high"}, {"density": [1.0, [2.0]]}, {"density": None}, {"mean": None}],
)
def test_broken_samples_are_named(tmp_path: Path, broken: dict[str, Any]) -> None:
    folder = make_run(tmp_path / "run")
    whole = {"mean": 0.5, "quantiles": [0, 0.1, 0.2, 0.5, 0.7, 0.9, 1], "density": [1.0, 1.0]}
    rows = [{"epoch": 1, "confidence": whole}, {"epoch": 2, "confidence": whole | broken}]
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=r"samples\.jsonl does not hold .* of 'confidence' in every line"):
        read(folder)


def test_classes_without_a_name_go_by_their_numbers(tmp_path: Path) -> None:
    run = read(make_run(tmp_path / "run"))
    assert run.names_of(np.array([1, 10**12]), None, np.array([0, 1])) == {
        0: "class 0",
        1: "class 1",
        10**12: "1000000000000",
    }
