import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import varcon
from varcon import InputError, Recipe, run
from varcon.data import DataSettings
from varcon.evaluations import KNN, EvaluateSettings, LinearProbe, Map2D
from varcon.recipe import TrainSettings

QUICK = TrainSettings(epochs=1, batch_size=16, device="cpu")
BRIEF = EvaluateSettings(KNN(k=1, also=()), LinearProbe(epochs=2), Map2D(points=20))


def write_npz(path):
    chance = np.random.default_rng(0)
    labels = np.arange(32) % 2
    images = (chance.integers(0, 60, (32, 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)


def test_python_reaches_the_same_verbs(tmp_path, monkeypatch):
    """Train on a file, move the file, judge, report; the command noted repeats the run."""
    monkeypatch.chdir(tmp_path)
    write_npz("here.npz")
    recipe = Recipe(data=DataSettings("npz", "here.npz"), train=QUICK, evaluate=BRIEF)
    seen = []
    folder = varcon.train(recipe, "the first", watch=lambda progress, row: seen.append((progress.step, row)))
    assert folder == Path("the first")
    assert [step for step, _ in seen] == [1, 2]
    assert seen[-1][1]["loss"] > 0

    Path("here.npz").rename("there.npz")
    with pytest.raises(InputError, match=r"here\.npz"):
        varcon.evaluate(folder)
    findings = varcon.evaluate(folder, data_path="there.npz")
    assert list(findings) == ["pixels", "knn", "linear", "rank", "discriminant", "map2d"]
    assert findings["knn"].scores["top1"] == 100  # dark and bright images
    stored = json.loads((folder / "findings/knn.json").read_text())
    assert stored["scores"] == findings["knn"].scores
    assert stored["settings"] == {"k": 1, "also": [], "temperature": 0.07}
    assert varcon.report(folder).read_text().startswith("<!doctype html>")

    Path("there.npz").rename("here.npz")
    words = shlex.split(json.loads((folder / "recipe.json").read_text())["command"])
    assert words == ["varcon", "train", "the first/recipe.json", "--out", "the first-again"]
    again = varcon.train(words[2], words[4])
    assert (again / "encoder.safetensors").read_bytes() == (folder / "encoder.safetensors").read_bytes()


def test_the_global_random_state_is_left_alone(tmp_path):
    write_npz(tmp_path / "few.npz")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    recipe = Recipe(data=DataSettings("npz", str(tmp_path / "few.npz")), train=QUICK, evaluate=BRIEF)
    varcon.evaluate(varcon.train(recipe, tmp_path / "run"))
    assert torch.equal(torch.rand(3), expected)


def test_a_failed_start_leaves_no_folder(tmp_path):
    recipe = Recipe(data=DataSettings("npz", str(tmp_path / "none.npz")), train=QUICK)
    with pytest.raises(InputError, match=r"none\.npz"):
        varcon.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_takes_one_run_at_a_time(tmp_path, monkeypatch):
    """While the first still reads its data, and while it trains; it ends as if it had been alone."""
    write_npz(tmp_path / "few.npz")
    recipe = Recipe(data=DataSettings("npz", str(tmp_path / "few.npz")), train=QUICK)
    other = replace(recipe, train=replace(QUICK, seed=1))
    read, refused = run.load, []

    def start_others(*_):
        for resume, one in ((True, recipe), (False, other)):
            with pytest.raises(InputError, match=r"another process|already holds a run") as caught:
                varcon.train(one, tmp_path / "run", resume)
            refused.append(str(caught.value))

    def slowly(*arguments):
        monkeypatch.setattr(run, "load", read)
        start_others()
        return read(*arguments)

    monkeypatch.setattr(run, "load", slowly)
    varcon.train(recipe, tmp_path / "run", watch=start_others)
    assert ["another" in message for message in refused] == [True, True] + [True, False] * 2
    varcon.train(recipe, tmp_path / "alone")
    files = [{path.name for path in (tmp_path / name).iterdir()} for name in ("run", "alone")]
    assert files[0] == files[1]
    weights = [(tmp_path / name / "encoder.safetensors").read_bytes() for name in ("run", "alone")]
    assert weights[0] == weights[1]


def test_a_kill_while_the_recipe_is_first_written_bars_no_folder(tmp_path):
    write_npz(tmp_path / "few.npz")
    recipe = Recipe(data=DataSettings("npz", str(tmp_path / "few.npz")), train=QUICK)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.recipe.json.varcon-xyz").write_text('{"recipe":')
    (tmp_path / "run/.varcon-lock").touch()
    varcon.train(recipe, tmp_path / "run")
    assert (tmp_path / "run/encoder.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("gpu", "there is no device 'gpu'"), ("cuda:99", "CUDA devices are here")]
)
def test_devices_that_are_not_there(name, message):
    with pytest.raises(InputError, match=message):
        run.pick_device(name)


def test_reports_need_runs():
    with pytest.raises(InputError, match="at least one run"):
        varcon.report([])


def test_a_report_replaces_only_a_page(tmp_path):
    script = tmp_path / "make.py"
    script.write_text("print(1)")
    with pytest.raises(InputError, match=r"make.py should end in .html or .htm"):
        varcon.report([tmp_path / "a", tmp_path / "b"], script)
    assert script.read_text() == "print(1)"


def test_settings_may_differ_from_the_recipe(tmp_path):
    write_npz(tmp_path / "few.npz")
    recipe = Recipe(data=DataSettings("npz", str(tmp_path / "few.npz")), train=QUICK, evaluate=BRIEF)
    folder = varcon.train(recipe, tmp_path / "run")
    varcon.evaluate(folder, replace(BRIEF, linear=LinearProbe(epochs=3, augment="resized-crop")))
    stored = json.loads((folder / "findings/linear-augmented.json").read_text())
    assert stored["settings"]["augment"] == "resized-crop"
    assert len(np.load(folder / "findings/linear-augmented.npz")["accuracy"]) == 3


def test_an_encoder_of_the_wrong_width_is_found_before_training(tmp_path, monkeypatch):
    """One whose `features` is not what it makes would break a head with a message about matrices."""
    write_npz(tmp_path / "few.npz")
    recipe = Recipe(data=DataSettings("npz", str(tmp_path / "few.npz")), train=QUICK)
    encoder = recipe.encoder.build()
    encoder.features = 100
    monkeypatch.setattr(type(recipe.encoder), "build", lambda settings, shape: encoder)
    with pytest.raises(InputError, match=r"features of shape \[1, 64\] from one image and says it makes 100"):
        varcon.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


VECTORS = """
[data]
name = "npz"
path = "table.npz"
[augment]
policy = "vectors"
[encoder]
name = "mlp"
[method]
references = "ema"
[train]
epochs = 20
batch_size = 64
device = "cpu"
"""


def test_a_recipe_trains_on_vectors(tmp_path, monkeypatch):
    """A table from start to report; evaluations that need images say so."""
    monkeypatch.chdir(tmp_path)
    chance = np.random.default_rng(0)
    labels = np.arange(240) % 3
    table = chance.normal(size=(240, 6)) * 10 + 5
    table[:, 0] += 60 * labels
    parts = {"train_images": table[:160], "test_images": table[160:]}
    np.savez("table.npz", **parts, train_labels=labels[:160], test_labels=labels[160:])
    Path("table.toml").write_text(VECTORS)
    folder = varcon.train("table.toml", "first")
    findings = varcon.evaluate(folder, BRIEF)
    assert findings["knn"].scores["top1"] >= 90
    assert findings["knn"].scores["top1"] > findings["pixels"].scores["top1"]
    more = varcon.evaluate(folder, only=("centroid", "logistic", "clustering", "temperature", "calibration"))
    assert more["centroid"].scores["top1"] >= 90
    assert [*varcon.evaluate(folder, only="rank")] == ["rank"]
    assert [*varcon.evaluate(folder, only=["rank", "standard"])] == [*findings]
    for wrong in ("knnn", ["rank", "knnn"]):
        with pytest.raises(InputError, match=r"there is no evaluation 'knnn'; did you mean 'knn'\?"):
            varcon.evaluate(folder, only=wrong)
    assert "first" in varcon.report(folder).read_text()
    for name in ("outliers", "robustness", "transfer", "finetune"):
        with pytest.raises(InputError, match=f"{name} is an evaluation of images and the data .* vectors"):
            varcon.evaluate(folder, only=(name,))
    with pytest.raises(InputError, match=r"augment\.policy is 'sim' and the data are vectors"):
        varcon.train(replace(varcon.load_recipe("table.toml"), augment=Recipe().augment), "second")
    with pytest.raises(InputError, match="encoder 'small' reads images and the data are vectors"):
        varcon.train(replace(varcon.load_recipe("table.toml"), encoder=Recipe().encoder), "second")
    assert not Path("second").exists()


def test_a_folder_below_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/quick.toml").write_text("[train]\nepochs = 1\n")
    folder = run.train("~/quick.toml", out="~/run")
    run.evaluate("~/run", only="rank")
    run.report("~/run", out="~/page.html")
    assert folder == tmp_path / "home/run"
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"quick.toml", "run", "page.html"}
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_gradients_may_be_off_and_other_types_the_default(tmp_path):
    """As a notebook may have left them."""
    recipe = Recipe(train=TrainSettings(epochs=1))
    with torch.no_grad():
        folder = run.train(recipe, tmp_path / "run")
        assert run.evaluate(folder, only="linear")["linear"].scores["last"] > 50
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InputError, match=r"torch\.float64 here .* call torch\.set_default_dtype"):
            run.train(recipe, tmp_path / "other")
    finally:
        torch.set_default_dtype(torch.float32)
    assert not (tmp_path / "other").exists()
