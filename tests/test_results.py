"""The numbers that the project quotes are those of the runs that it keeps."""

import importlib
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from varcon.cli_train import parse_train
from varcon.recipe import load_recipe, recipe_from_dict

ROOT = Path(__file__).parents[1]
RUNS = sorted(path.parent for path in ROOT.glob("results/*/*/recipe.json"))


@pytest.fixture(scope="module")
def results():
    sys.path.insert(0, str(ROOT / "results"))
    yield importlib.import_module("results")
    sys.path.remove(str(ROOT / "results"))


@pytest.fixture(scope="module")
def train(results):
    return importlib.import_module("train")


def test_the_page_is_written_from_the_runs(results):
    assert results.written() == (ROOT / "RESULTS.md").read_text(encoding="utf-8")


def test_the_picture_is_drawn_from_the_runs(results):
    assert results.pictured() == results.PICTURE.read_text(encoding="utf-8")
    assert f"({results.PICTURE.relative_to(ROOT)})" in (ROOT / "README.md").read_text(encoding="utf-8")
    for pattern, method in results.PICTURED.values():
        assert results.has(pattern) or method  # one that is not trained yet has the paper's to wait for
        assert not method or 70 < results.published(method) < 80


def test_the_list_may_be_read_in_part(train, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert train.main(["--list"]) == 0


def test_every_kept_run_stands_on_the_page():
    """A row is lost without a word where two labels of a table are the same."""
    text = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert [
        folder for folder in RUNS if f"(results/{folder.relative_to(ROOT / 'results')})" not in text
    ] == []


def test_no_score_is_typed_into_the_template():
    """Numbers with two decimals come from runs, or from the package's copy of the paper's tables."""
    text = (ROOT / "results/RESULTS.template.md").read_text(encoding="utf-8")
    assert re.findall(r"\d\d\.\d\d", text) == []


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_a_kept_run_is_whole_and_small(folder):
    record = json.loads((folder / "recipe.json").read_text())
    assert record["recipe"]["data"]["path"] in ("", "data")
    assert folder.name.endswith(f"-seed{record['recipe']['train']['seed']}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, record["recipe"]["train"]["epochs"] + 1))
    for file in folder.glob("**/*.json*"):
        assert '"/' not in file.read_text()  # no path of the machine
    scores = json.loads((folder / "findings/knn.json").read_text())["scores"]
    assert 0 < scores["top1"] <= 100
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 300_000


@pytest.mark.parametrize(
    ("row", "pattern"),
    [
        ("cifar100/varcon", "cifar100/r50-varcon"),
        ("AutoAugment", "cifar100/r50-varcon-auto"),
        ("cifar100/varcon_small", "small/varcon"),
        ("cifar100/varcon_r18", "cifar100/r18-varcon"),
        ("cifar100/supcon", "cifar100/r18-supcon"),
        ("cifar100/ce", "cifar100/r18-ce"),
        ("the same", "cifar100/r18-ce-dn"),
    ],
)
def test_the_readme_quotes_them(results, row, pattern):
    line = next(line for line in (ROOT / "README.md").read_text().splitlines() if f"[{row}]" in line)
    assert results.quoted(pattern, "kNN") in line
    assert results.quoted(pattern, "linear, last") in line


def test_a_recipe_quotes_its_runs(results):
    head = (ROOT / "recipes/cifar100/varcon_small.toml").read_text().replace("\n# ", " ")
    for pattern in ("small/varcon", "small/falls"):
        knn, linear = (results.quoted(pattern, title) for title in ("kNN", "linear, last"))
        assert f"kNN (k = 20) {knn} %, linear probe {linear} % at its last epoch" in head


def test_the_best_recipe_is_the_one_that_held_out_images_chose(results):
    best = ROOT / "recipes/cifar100/varcon_best.toml"
    tried = [run for run in results.every_run() if run.setting("encoder.name") == "resnet50"]
    of_varcon = [run for run in tried if run.setting("data.held_out") and run.method == "varcon"]
    chosen = max(of_varcon, key=lambda run: run.score("linear", "last"))
    stored = recipe_from_dict(chosen.recipe)
    assert replace(stored, data=replace(stored.data, held_out=0.0)) == load_recipe(best)
    head = best.read_text().replace("\n# ", " ")
    assert f"results/search/{chosen.name}" in head
    for said, finding, score in (
        ("linear probe {:.2f} % at its last epoch", "linear", "last"),
        ("kNN (k = 20) {:.2f} %", "knn", "top1"),
        ("own classifier {:.2f} %", "classifier", "top1"),
    ):
        assert said.format(chosen.score(finding, score)) in head


@pytest.mark.parametrize("page", ["README.md", "docs/many-gpus.md"])
def test_the_speed_quoted_is_the_speed_measured(page):
    text = (ROOT / page).read_text()
    rows = re.findall(
        r"\| (\w+) \| bf16 \| (training step|data-loader[^|]*) \| [\d.]+ \| ([\d,]+) \| ([\d.]+) \|",
        (ROOT / "benchmarks/results/step_h200.md").read_text(),
    )
    assert len(rows) == 4
    for (encoder, _, views, share), (_, _, loaded, _) in zip(rows[::2], rows[1::2], strict=True):
        line = next(line for line in text.splitlines() if line.startswith(f"| ResNet-{encoder[6:]} |"))
        assert line.split(" | ")[1:] == [views, f"{100 * float(share):.1f} %", f"{loaded} |"]


def test_the_breakdown_quoted_is_the_one_measured():
    measured = "".join(
        (ROOT / f"benchmarks/results/{name}_h200.md").read_text() for name in ("breakdown", "augment")
    )
    page = (ROOT / "docs/many-gpus.md").read_text()
    paragraphs = page[page.index("Of ResNet-18's step") : page.index("The loss with its gradient")]
    quoted = re.findall(r"\d[\d,]*\.\d+|\d+,[\d,]*\d", paragraphs)
    assert len(quoted) == 16
    assert [number for number in quoted if number not in measured] == []


def test_keeping_a_run(results, tmp_path, monkeypatch):
    from varcon import Recipe, run
    from varcon.recipe import TrainSettings

    recipe = Recipe(train=TrainSettings(epochs=2, batch_size=64, device="cpu", seed=3))
    folder = run.train(recipe, tmp_path / "run")
    run.evaluate(folder, only=("knn",))
    monkeypatch.setattr(results, "HERE", tmp_path / "results")
    results.keep(folder, "digits/small-varcon-seed3")
    test_a_kept_run_is_whole_and_small(tmp_path / "results/digits/small-varcon-seed3")
    assert results.quoted("digits/small-varcon", "kNN")
    assert "| VarCon | 50.00 |" in results.table(
        {"VarCon": ["digits/small-varcon", "50.00"]}, "kNN", paper="the paper"
    )
    rows = {"VarCon": "digits/small-varcon", "to come": "digits/other"}
    assert results.table(rows, "kNN", so_far=True) == results.table({"VarCon": rows["VarCon"]}, "kNN")
    assert results.has("digits") and results.has("digits/small-varcon") and not results.has("digits/other")
    record = json.loads((tmp_path / "results/digits/small-varcon-seed3/recipe.json").read_text())
    assert re.fullmatch("[0-9a-f]{16}", record["code"])
    epsilon = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["epsilon"]
    assert results.quoted("digits/small-varcon", "epsilon at the end") == f"{epsilon:.4f}"
    run.evaluate(folder, only=("rank",))
    results.keep(folder, "digits/small-varcon-seed3")  # in place of what was there
    assert results.quoted("digits/small-varcon", "rank")
    assert [path.name for path in (tmp_path / "results/digits").iterdir()] == ["small-varcon-seed3"]
    with pytest.raises(SystemExit, match=r"no run is kept as results/digits/other-seed\*"):
        results.kept("digits/other")


def test_commands_are_kept_without_places(results):
    command = "varcon train a.toml --data.path '/my data/c' --train.epochs 5 --out '/x y/z' --target a=/b"
    assert results.without_places(command) == "varcon train a.toml --train.epochs 5"


def test_every_experiment_can_be_trained(train):
    for one in train.experiments(train.EXPERIMENTS):
        chosen = parse_train(load_recipe(ROOT / one.arguments[0]), [*one.arguments])
        assert one.name.endswith(f"-seed{chosen.settings.train.seed}")
        assert chosen.settings.data.held_out == (0.1 if "search" in one.name.partition("/")[0] else 0.0)


def test_how_long_a_run_takes_is_known_by_its_like(train):
    of_name = {one.name: one.recipe for one in train.experiments(train.EXPERIMENTS)}
    kept = of_name["cifar100/r50-varcon-auto-seed0"]
    of_search = of_name["search/r50-third-all-seed0"]  # as many epochs of one view, of nine in ten images
    seconds = train.expected_seconds(kept, "NVIDIA H200") - train.SECONDS_AROUND
    assert 600 < seconds < 750
    halved = train.expected_seconds(of_search, "NVIDIA H200") - train.SECONDS_AROUND
    assert halved == pytest.approx(0.45 * seconds)
    assert train.expected_seconds(kept, "another GPU") == 0


def test_a_kept_run_is_one_of_the_experiments(train):
    experiments = {one.name: one for one in train.experiments(train.EXPERIMENTS)}
    for folder in RUNS:
        record = json.loads((folder / "recipe.json").read_text())
        one = experiments[f"{folder.parent.name}/{folder.name}"]
        if record["command"].startswith("varcon compare "):  # of whose recipe it is, but for where it ran
            trained, listed = recipe_from_dict(record["recipe"]), one.recipe
            assert trained.augment == listed.augment and trained.encoder == listed.encoder
            assert trained.method == listed.method
            assert replace(trained.train, device="auto", precision=listed.train.precision) == listed.train
        else:
            assert record["command"] == one.command


def test_training_what_is_not_kept(results, train, tmp_path, monkeypatch, capsys):
    (tmp_path / "experiments.toml").write_text(
        """
        [digits]
        judge = "knn"
        [digits.brief]
        recipe = "recipes/digits/varcon.toml"
        settings = "--data.name npz --train.epochs 1 --train.device cpu --evaluate.linear.epochs 2"
        crops = true
        [digits.impossible]
        like = "digits/brief"
        settings = "--train.batch-size 5000"
        [digits.other]
        like = "digits/brief"
        settings = "--augment.flip 0.5"
        seeds = [4]
        """
    )
    monkeypatch.setattr(train, "EXPERIMENTS", tmp_path / "experiments.toml")
    monkeypatch.setattr(results, "HERE", tmp_path / "results")
    pixels, labels = load_digits(return_X_y=True)
    images = {"train_images": pixels.reshape(-1, 8, 8).astype("uint8"), "train_labels": labels}
    images |= {"test_images": images["train_images"], "test_labels": labels}
    np.savez(tmp_path / "digits.npz", **images)
    places = ["--data", str(tmp_path / "digits.npz"), "--runs", str(tmp_path / "runs")]
    assert train.main(["digits", *places]) == 1
    assert "not kept: digits/impossible-seed0\n" in capsys.readouterr().err
    for name in ("brief-seed0", "other-seed4"):
        test_a_kept_run_is_whole_and_small(tmp_path / "results/digits" / name)
    assert train.main(["digits/other-seed4", "digits/brief", "digits/other", *places]) == 0
    kept = "is kept; --again trains it again\n"
    assert capsys.readouterr().out == f"digits/other-seed4 {kept}digits/brief-seed0 {kept}"
    seen = [
        tmp_path / "results/digits/brief-seed0/findings" / file
        for file in ("knn.json", "linear-augmented.json")
    ]
    for file in seen:
        file.unlink()
    assert train.main(["--list", "digits/brief"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("digits/brief-seed0 (kept, without knn, linear-augmented): varcon train")
    assert train.main(["digits/brief", "--again", *places]) == 0
    assert all(file.exists() for file in seen)
    assert not (tmp_path / "results/digits/other-seed4/findings/linear-augmented.json").exists()
    capsys.readouterr()
    assert train.main(["--list", "digits/impossible"]) == 0
    assert "--evaluate.linear.epochs 2 --train.batch-size 5000\n" in capsys.readouterr().out
    for minutes in ("100", "0.01"):  # of one epoch, known by the run that is kept
        assert train.main(["digits/brief", "--again", "--minutes", minutes, *places]) == 0
        said = capsys.readouterr().out
        assert ("brief-seed0 is not begun: it takes 0.8 minutes and 0.0 are left\n" in said) == (
            minutes == "0.01"
        )
    varcon, kept_run = train.varcon, tmp_path / "results/digits/brief-seed0"
    shutil.rmtree(kept_run)
    monkeypatch.setattr(train, "varcon", lambda words: 130 if "--linear.augment" in words else varcon(words))
    assert train.main(["digits/brief", *places]) == 130  # in the last judge, and kept as it was before
    assert (kept_run / "findings/knn.json").exists()
    with pytest.raises(SystemExit):
        train.main(["digits/othr", *places])
    assert "no run or group 'digits/othr'" in capsys.readouterr().err
