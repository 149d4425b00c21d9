import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F
from torch import nn

from varcon import InputError, compare
from varcon.cli import main
from varcon.compare import Result, full_views, plan, table
from varcon.core import Batch, Method, StepOutput
from varcon.methods import METHODS
from varcon.recipe import load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"


def ignore(done, total, what): ...


def write_recipe(folder):
    """Two kinds of images, dark and bright, and a brief recipe for them."""
    chance = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = (chance.integers(0, 60, (48, 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    path = folder / "few.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    recipe = folder / "base.toml"
    recipe.write_text(
        f"[data]\nname = 'npz'\npath = '{path}'\n[train]\nepochs = 2\nbatch_size = 16\ndevice = 'cpu'\n"
        "[evaluate.knn]\nk = 1\nalso = []\n[evaluate.linear]\nepochs = 2\n[evaluate.map2d]\npoints = 20\n"
    )
    (folder / "ce.toml").write_text("[augment]\nviews = 1\n[method]\nname = 'ce'\nlabel_smoothing = 0.1\n")
    return recipe


def test_every_method_gets_one_budget():
    """On digits: equal images seen, the same everything else, own settings from the recipe beside."""
    base = load_recipe(RECIPES / "digits/varcon.toml")
    planned = plan(RECIPES / "digits/varcon.toml", list(METHODS), [0, 7], Path("out"), "images", ignore)
    assert [(one.method, one.seed) for one in planned] == [
        (name, seed) for name in METHODS for seed in (0, 7)
    ]
    for one in planned:
        assert one.recipe.data == base.data
        assert one.recipe.encoder == base.encoder
        views, epochs = one.recipe.augment.views, one.recipe.train.epochs
        assert views * epochs == base.augment.views * base.train.epochs
        assert replace(one.recipe.augment, views=2) == base.augment
        assert replace(one.recipe.train, epochs=base.train.epochs, seed=0) == base.train
        assert one.recipe.method_name == one.method
    queues = {one.method: one.recipe.method.queue for one in planned if one.method == "moco"}
    assert queues == {"moco": 1024}


def test_small_views_count_by_their_pixels():
    augment = load_recipe(RECIPES / "digits/varcon.toml").augment
    assert full_views(replace(augment, small_views=4, small_size=16), 32) == 2 + 4 * 0.25


def test_equal_time_gives_the_quick_more_epochs(tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path)
    cost = {"supcon": 4.0, "varcon": 1.0}
    monkeypatch.setattr(compare, "seconds_per_epoch", lambda recipe: cost[recipe.method_name])
    planned = plan(recipe, ["varcon", "supcon"], [0], tmp_path, "time", ignore)
    assert {one.method: one.recipe.train.epochs for one in planned} == {"varcon": 8, "supcon": 2}


def test_an_epoch_is_really_timed(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path))
    assert 0 < compare.seconds_per_epoch(recipe) < 60


def test_the_table_has_mean_spread_and_cost():
    results = [
        Result("a", seed, {"kNN top-1": value, "minutes": 2.0, "images/s": 1000.0})
        for seed, value in enumerate((90.0, 92.0, 97.0))
    ]
    head, row = table(results)
    assert head[0] == "method"
    assert row[1] == f"93.00 ± {statistics.stdev((90.0, 92.0, 97.0)):.2f}"
    assert row[-3:] == ["2.00", "1,000", "3"]
    assert row[2] == ""


def test_from_one_command_and_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    recipe = write_recipe(tmp_path)
    out = tmp_path / "out"
    command = ["compare", str(recipe), "--methods", "varcon,ce,simclr", "--seeds", "0,1", "--out", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    results = json.loads((out / "compare.json").read_text())
    assert [(r["method"], r["seed"]) for r in results] == [
        (method, seed) for method in ("varcon", "ce", "simclr") for seed in (0, 1)
    ]
    assert all(r["kNN top-1"] == 100 for r in results)
    assert [("own classifier" in r) for r in results] == [False, False, True, True, False, False]
    assert "| ce | 100.00 ± 0.00 |" in (out / "compare.md").read_text()
    assert "simclr" in shown
    assert "simclr" in (out / "report.html").read_text()
    stored = json.loads((out / "ce-seed1/recipe.json").read_text())["recipe"]
    assert (stored["augment"]["views"], stored["train"]["epochs"], stored["train"]["seed"]) == (1, 4, 1)
    assert stored["method"]["label_smoothing"] == 0.1

    # What is there is not trained again; what is missing is.
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}
    for path in (out / "ce-seed1").iterdir():
        if path.is_file():
            path.unlink()
    for path in (out / "ce-seed1/findings").iterdir():
        path.unlink()
    (out / "ce-seed1/findings").rmdir()
    assert main(command) == 0
    for path, time in times.items():
        assert (path.stat().st_mtime_ns == time) == (path.parent.name != "ce-seed1")
    kept = [{k: v for k, v in r.items() if k not in ("minutes", "images/s")} for r in results]
    again = json.loads((out / "compare.json").read_text())
    assert [{k: v for k, v in r.items() if k not in ("minutes", "images/s")} for r in again] == kept


def test_mistakes(tmp_path, capsys):
    recipe = write_recipe(tmp_path)
    out = str(tmp_path / "out")
    for flags, words in (
        (["--methods", "varcon,supcom"], "there is no method 'supcom'; did you mean 'supcon'?"),
        (["--seeds", "0,x"], "--seeds is '0,x'"),
        (["--methods", "moco"], ""),
    ):
        if "moco" in flags:
            (tmp_path / "moco.toml").write_text("[method]\nname = 'moco'\nqueue = 8\n")
            words = "a queue of 8 is smaller than a batch of 16; enlarge method.queue"
        assert main(["compare", str(recipe), "--out", out, *flags]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
        assert not list((tmp_path / "out").glob("*/*"))


@dataclass(frozen=True)
class MirrorSettings:
    strength: float = 1.0


class Mirror(Method):
    """A method of one's own: views of an image should have the same features."""

    Settings = MirrorSettings
    uses_labels = False

    def __init__(self, encoder, settings, num_classes):
        super().__init__(encoder, settings, num_classes)
        self.head = nn.Linear(encoder.features, 4)

    def forward(self, batch: Batch) -> StepOutput:
        first, second = (self.head(self.encoder(view)) for view in batch.views)
        return StepOutput(self.settings.strength * F.mse_loss(first, second), {"size": first.detach().norm()})


def test_a_new_method_is_one_file_and_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "mirror", Mirror)
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text() + "[method]\nname = 'mirror'\nstrength = 2.0\n")
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--method.strength", "3.0"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] >= 0
    assert rows[-1]["size"] > 0
    assert json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]["method"] == {
        "name": "mirror",
        "strength": 3.0,
    }
    with pytest.raises(InputError, match="method mirror has no setting 'strenth'; did you mean 'strength'"):
        recipe.write_text(recipe.read_text().replace("strength", "strenth"))
        load_recipe(recipe)


def test_help_names_every_method():
    done = subprocess.run(
        [sys.executable, "-m", "varcon", "compare", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert all(name in done.stdout.replace("\n", "") for name in ("varcon-gpaco", "barlow"))
