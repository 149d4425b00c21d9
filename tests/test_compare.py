import html
import json
import shutil
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F
from torch import nn

from varcon import InputError, budget, run
from varcon.budget import full_views
from varcon.cli import main
from varcon.compare import plan
from varcon.core import Batch, Method, StepOutput
from varcon.engine.interrupt import Interrupted
from varcon.evaluations.clustering import Clustering
from varcon.methods import METHODS
from varcon.recipe import load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"


def ignore(done, total, what): ...


def write_images(path, number=48):
    """Two kinds of them, dark and bright."""
    chance = np.random.default_rng(0)
    labels = np.arange(number) % 2
    images = (chance.integers(0, 60, (number, 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)


def write_recipe(folder):
    """A brief recipe for such images, and one of ce's beside it."""
    path = folder / "few.npz"
    write_images(path)
    recipe = folder / "base.toml"
    recipe.write_text(
        f"[data]\nname = 'npz'\npath = '{path}'\n[train]\nepochs = 2\nbatch_size = 16\ndevice = 'cpu'\n"
        "[evaluate.knn]\nk = 1\nalso = []\n[evaluate.linear]\nepochs = 2\n[evaluate.map2d]\npoints = 20\n"
    )
    (folder / "ce.toml").write_text("[augment]\nviews = 1\n[method]\nname = 'ce'\nlabel_smoothing = 0.1\n")
    return recipe


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(capsys, out, arguments, *words):
    """compare fails with one sentence that has these words, and changes no file."""
    before = contents(out)
    capsys.readouterr()
    assert main(["compare", *map(str, arguments), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    for word in words:
        assert word in error
    assert contents(out) == before


def rows(out):
    """method, seed and kNN accuracy of each run in the table."""
    return [
        (r["method"], r["seed"], r.get("kNN top-1")) for r in json.loads((out / "compare.json").read_text())
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A recipe and the folder of its finished comparison, for tests that only read or copy them."""
    folder = tmp_path_factory.mktemp("compared")
    recipe = write_recipe(folder)
    out = folder / "out"
    flags = ["--methods", "varcon, ce", "--seeds", "0,1,0", "--out", str(out)]
    assert main(["compare", str(recipe), *flags]) == 0
    return recipe, out


@pytest.fixture
def reported(monkeypatch):
    """The names of the runs in the last report, which is not drawn: it would take a second a run."""
    names = []

    def report(folders, page, note):
        names[:] = [folder.name for folder in folders]
        return page

    monkeypatch.setattr(run, "report", report)
    return names


@pytest.fixture
def copied(compared, tmp_path):
    shutil.copytree(compared[0].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "base.toml", tmp_path / "out"


def test_every_method_gets_one_budget():
    """On digits: equal images seen, the same everything else, own settings from the recipe beside."""
    base = load_recipe(RECIPES / "digits/varcon.toml")
    planned = plan(RECIPES / "digits/varcon.toml", list(METHODS), [0, 7], Path("out"), "images", ignore)
    assert [(one.label, one.seed) for one in planned] == [(name, seed) for name in METHODS for seed in (0, 7)]
    for one in planned:
        assert one.recipe.data == base.data
        assert one.recipe.encoder == base.encoder
        views, epochs = one.recipe.augment.views, one.recipe.train.epochs
        assert views * epochs == base.augment.views * base.train.epochs
        assert replace(one.recipe.augment, views=2) == base.augment
        assert replace(one.recipe.train, epochs=base.train.epochs, seed=0) == base.train
        assert one.recipe.method_name == one.label
    queues = {one.label: one.recipe.method.queue for one in planned if one.label == "moco"}
    assert queues == {"moco": 1024}


def test_small_views_count_by_their_pixels():
    augment = load_recipe(RECIPES / "digits/varcon.toml").augment
    assert full_views(replace(augment, small_views=4, small_size=16), 32) == 2 + 4 * 0.25


def test_equal_time_gives_the_quick_more_epochs(tmp_path, monkeypatch):
    recipe = write_recipe(tmp_path)
    cost = {"supcon": 4.0, "varcon": 1.0}
    monkeypatch.setattr(budget, "seconds_per_epoch", lambda recipe: cost[recipe.method_name])
    planned = plan(recipe, ["varcon", "supcon"], [0], tmp_path, "time", ignore)
    assert {one.label: one.recipe.train.epochs for one in planned} == {"varcon": 8, "supcon": 2}


def test_an_epoch_is_really_timed(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path))
    later = replace(recipe.train, epochs=40, snapshots=(0, 30))  # beyond the epochs that are timed
    assert 0 < budget.seconds_per_epoch(replace(recipe, train=later)) < 60


def test_from_one_command(compared):
    """Names may have spaces after their commas, and a seed named twice is one run."""
    _, out = compared
    results = json.loads((out / "compare.json").read_text())
    assert [(r["method"], r["seed"]) for r in results] == [
        (method, seed) for method in ("varcon", "ce") for seed in (0, 1)
    ]
    assert all(r["kNN top-1"] == 100 for r in results)
    assert [("own classifier" in r) for r in results] == [False, False, True, True]
    assert "| ce | 100.00 ± 0.00 |" in (out / "compare.md").read_text()
    assert "varcon-seed1" in (out / "report.html").read_text()
    stored = json.loads((out / "ce-seed1/recipe.json").read_text())["recipe"]
    assert (stored["augment"]["views"], stored["train"]["epochs"], stored["train"]["seed"]) == (1, 4, 1)
    assert stored["method"]["label_smoothing"] == 0.1
    lines = (out / "ce-seed1/metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["images_per_second"] for line in lines]
    assert results[3]["data set images/s"] == statistics.median(speeds)


def test_the_table_says_on_what_terms(compared):
    _, out = compared
    note = "as base.toml says (augmentation sim, learning rate 0.4, weight decay 0.002); only method settings"
    assert note in (out / "compare.md").read_text()
    assert (
        "Epochs are such that all see equally many images: varcon 2, ce 4."
        in (out / "compare.md").read_text()
    )
    assert note in html.unescape((out / "report.html").read_text())


def test_what_is_there_is_not_trained_again_and_what_is_missing_is(copied, reported):
    """Also where the checkpoint of a finished run has been deleted to save room."""
    recipe, out = copied
    before = rows(out)
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}
    shutil.rmtree(out / "ce-seed1")
    (out / "varcon-seed0/last.ckpt").unlink()
    assert main(["compare", str(recipe), "--methods", "varcon,ce", "--seeds", "0,1", "--out", str(out)]) == 0
    for path, time in times.items():
        assert (path.stat().st_mtime_ns == time) == (path.parent.name != "ce-seed1")
    assert rows(out) == before


def test_earlier_runs_stay_in_the_table(copied, capsys, reported):
    """A later call with other methods or seeds adds to it; an unfinished run it leaves out is no row."""
    recipe, out = copied
    before = rows(out)
    (out / "ce-seed1/encoder.safetensors").unlink()
    assert main(["compare", str(recipe), "--methods", "supcon", "--out", str(out)]) == 0
    assert rows(out) == [*before[:2], ("supcon", 0, 100.0), before[2]]
    assert {"varcon", "supcon"} <= set(capsys.readouterr().out.split())
    assert reported == ["varcon-seed0", "varcon-seed1", "supcon-seed0", "ce-seed0"]


@pytest.mark.parametrize("asked", ["varcon", "supcon"])
def test_runs_of_another_recipe_are_not_taken_for_this_one(copied, capsys, asked):
    """Finished or begun, and whether this call asks for them or not."""
    recipe, out = copied
    command = [recipe, "--methods", asked]
    text = recipe.read_text()
    recipe.write_text(text.replace("epochs = 2\nbatch", "epochs = 5\nbatch"))
    refused(capsys, out, command, "-seed", "was begun with train.epochs = ", "cannot go on with ")
    for path in out.glob("*/encoder.safetensors"):
        path.unlink()
    refused(capsys, out, command, "-seed", "was begun with train.epochs = ", "cannot go on with ")
    recipe.write_text(text)
    refused(capsys, out, [*command, "--budget", "time"], "not timed", "--out")
    write_images(recipe.parent / "few.npz", number=50)
    flags = ["--data.path", recipe.parent / "few.npz"]  # where the first one's recipe has them is elsewhere
    refused(capsys, out, [*command, *flags], "was trained on other data")


def test_the_recipe_of_a_method_changed(copied, capsys):
    recipe, out = copied
    recipe.with_name("ce.toml").write_text("[augment]\nviews = 1\n[method]\nname = 'ce'\n")
    refused(capsys, out, [recipe, "--methods", "varcon,ce"], "ce-seed0 was begun with method.label_smoothing")


@pytest.mark.parametrize("asked", [["varcon", "2"], ["ce", "0"]])
def test_runs_of_another_seed_or_method_are_of_the_same_recipes(copied, capsys, asked):
    recipe, out = copied
    method, seed = asked
    text = recipe.read_text()
    recipe.write_text(text + "[method]\nname = 'varcon'\ntemperature = 1.0\n")
    words = "was begun with method.temperature = 0.1"
    refused(capsys, out, [recipe, "--methods", method, "--seeds", seed], words)


def test_images_that_were_made_anew(copied, capsys):
    recipe, out = copied
    path = recipe.with_name("few.npz")
    with np.load(path) as file:
        arrays = {**file}
    flags = ["--methods", "varcon", "--data.path", path]
    for other in (arrays["train_images"] // 2, arrays["train_images"].repeat(2, axis=1).repeat(2, axis=2)):
        np.savez(path, **arrays | {"train_images": other, "test_images": other})
        refused(capsys, out, [recipe, *flags], "was trained on other data than lie at")


def test_labels_that_were_corrected(copied, capsys):
    recipe, out = copied
    with np.load(recipe.with_name("few.npz")) as file:
        arrays = {**file}
    arrays["train_labels"][:2] = arrays["train_labels"][:2][::-1].copy()
    np.savez(recipe.with_name("few.npz"), **arrays)
    flags = ["--methods", "varcon", "--data.path", recipe.with_name("few.npz")]
    refused(capsys, out, [recipe, *flags], "was trained on other data than lie at")


def test_all_that_vectors_can_have(tmp_path, reported):
    """As for `varcon evaluate`: what is of images alone is left out, not failed after training."""
    recipe = write_recipe(tmp_path)
    with np.load(tmp_path / "few.npz") as file:
        arrays = {name: array.reshape(48, -1).astype(np.float32) for name, array in file.items()}
    labels = {name: array[:, 0].astype(int) for name, array in arrays.items() if "labels" in name}
    np.savez(tmp_path / "few.npz", **{**arrays, **labels})
    recipe.write_text("[encoder]\nname = 'mlp'\n[augment]\npolicy = 'vectors'\n" + recipe.read_text())
    command = ["compare", str(recipe), "--methods", "varcon", "--only", "all", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    (found,) = json.loads((tmp_path / "out/compare.json").read_text())
    assert found["Ward ARI"] == 1


def test_other_evaluation_settings_judge_anew(copied, reported):
    """All runs, and the column is named for the probe that was taken."""
    recipe, out = copied
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}
    recipe.write_text(
        recipe.read_text().replace("[evaluate.linear]\n", "[evaluate.linear]\naugment = 'resized-crop'\n")
    )
    assert main(["compare", str(recipe), "--methods", "ce", "--out", str(out)]) == 0
    results = json.loads((out / "compare.json").read_text())
    assert len(results) == 4
    assert all("linear-augmented probe, last" in r and "linear probe, last" not in r for r in results)
    head = (out / "compare.md").read_text().splitlines()[0]
    assert "| linear-augmented probe, last |" in head
    assert "| linear probe" not in head
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}

    judged = (out / "ce-seed0/findings/knn.json").stat().st_mtime_ns
    assert main(["compare", str(recipe), "--methods", "ce", "--out", str(out)]) == 0
    assert (out / "ce-seed0/findings/knn.json").stat().st_mtime_ns == judged


def test_a_finding_by_other_labels_is_made_again(copied, reported):
    recipe, out = copied
    path = out / "varcon-seed0/findings/knn.json"
    right = json.loads(path.read_text())
    path.write_text(json.dumps(right | {"labels": "corrected", "scores": {"top1": 1.0}}))
    assert main(["compare", str(recipe), "--methods", "varcon", "--out", str(out)]) == 0
    again = json.loads(path.read_text())
    assert (again["scores"], again["labels"]) == (right["scores"], right["labels"])


def test_judged_by_what_is_asked_for(copied, capsys, reported):
    """All runs of the folder, without training one again; a table of so many scores has one line for each."""
    recipe, out = copied
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}
    evaluations, data = "knn,clustering,fewshot,transfer,finetune", recipe.with_name("few.npz")
    only = ["--only", evaluations, "--target", f"twin={data}", "--target", f"double={data}"]
    command = ["compare", str(recipe), "--methods", "varcon,ce", "--out", str(out), *only]
    assert main(command) == 0
    results = json.loads((out / "compare.json").read_text())
    assert len(results) == 4
    for found in results:
        assert found["kNN top-1"] == found["transfer, twin (top-1)"] == found["few-shot centroid@2"] == 100
        assert found["Ward ARI"] == 1
        assert found["fine-tuned on twin, last top-1"] == found["fine-tuned on double, last top-1"] == 100
        assert "effective rank" in found  # which the call that trained the runs has found
    table = (out / "compare.md").read_text()
    assert table.splitlines()[0] == "| method | varcon | ce |"
    assert "| Ward ARI | 1.000 ± 0.000 | 1.000 ± 0.000 |" in table
    assert "\n| few-shot logistic@1 | " in table
    assert "error" not in table
    assert times == {path: path.stat().st_mtime_ns for path in out.glob("*/encoder.safetensors")}

    findings = [out / f"ce-seed0/findings/{name}.json" for name in ("transfer", "finetune-double")]
    judged = [finding.stat().st_mtime_ns for finding in findings]
    assert main(command) == 0
    assert [finding.stat().st_mtime_ns for finding in findings] == judged

    assert main([*command[:-6], "--only", "centroid"]) == 0
    table = (out / "compare.md").read_text()
    assert all(
        title in table for title in ("nearest centroid", "kNN top-1", "Ward ARI", "few-shot logistic@1")
    )
    assert "transfer" not in table  # to what, this call does not say


def test_the_recipes_own_method_is_as_it_says(tmp_path):
    """Its settings and its views, whether or not a recipe of the method's name lies beside."""
    recipe = write_recipe(tmp_path)
    recipe.write_text(
        recipe.read_text() + "[augment]\nviews = 3\n[method]\nname = 'varcon'\ntemperature = 0.33\n"
    )
    for _ in range(2):
        (one,) = plan(recipe, ["varcon"], [0], tmp_path / "out", "images", ignore)
        assert one.recipe == load_recipe(recipe)
        (tmp_path / "varcon.toml").write_text("[method]\ntemperature = 0.2\n")


def test_a_recipe_beside_must_be_its_methods(tmp_path, capsys):
    recipe = write_recipe(tmp_path)
    for text, holds in (("[method]\nname = 'supcon'\n", "supcon"), ("[train]\nepochs = 3\n", "varcon")):
        (tmp_path / "ce.toml").write_text(text)
        refused(capsys, tmp_path / "out", [recipe, "--methods", "ce"], f"ce.toml holds the method {holds}")


def test_small_views_of_the_recipe_are_counted(tmp_path):
    recipe = write_recipe(tmp_path)
    recipe.write_text(
        recipe.read_text()
        + "[augment]\nsmall_views = 4\nsmall_size = 4\n[method]\nname = 'swav'\nprototypes = 8\n"
    )
    planned = plan(recipe, ["swav", "supcon"], [0], tmp_path / "out", "images", ignore)
    assert {one.label: one.recipe.train.epochs for one in planned} == {"swav": 2, "supcon": 3}


def test_the_timed_plan_is_kept(tmp_path, capsys, monkeypatch, reported):
    """A second timing would give other epochs, with which no begun run could go on."""
    recipe = write_recipe(tmp_path)
    out = tmp_path / "out"
    cost = {"supcon": 4.0, "varcon": 1.0, "ce": 1.0}
    monkeypatch.setattr(budget, "seconds_per_epoch", lambda recipe: cost[recipe.method_name])
    command = [str(recipe), "--budget", "time", "--methods"]
    assert main(["compare", *command, "varcon,supcon", "--out", str(out)]) == 0
    cost |= {"supcon": 1.0, "varcon": 3.0}
    assert main(["compare", *command, "supcon", "--seeds", "0,1", "--out", str(out)]) == 0
    assert [row[:2] for row in rows(out)] == [("varcon", 0), ("supcon", 0), ("supcon", 1)]
    stored = [
        json.loads((out / f"{name}/recipe.json").read_text()) for name in ("varcon-seed0", "supcon-seed1")
    ]
    assert [facts["recipe"]["train"]["epochs"] for facts in stored] == [8, 2]

    refused(capsys, out, [*command, "varcon,ce"], "timed for varcon, supcon and not for ce")
    refused(capsys, out, [recipe, "--methods", "varcon"], "varcon-seed0 was begun with train.epochs = 8")
    plan_file, text = out / "plan.json", recipe.read_text()
    recipe.write_text(text.replace("batch_size = 16", "batch_size = 8"))
    refused(capsys, out, [*command, "varcon"], "begun with train.batch_size = 16 and cannot go on with 8")
    recipe.write_text(text)
    kept = plan_file.read_text()
    plan_file.write_text(kept.replace('"device": "cpu",\n  "ep', '"device": "cuda",\n  "ep'))
    refused(capsys, out, [*command, "varcon"], "was timed on cuda, not on cpu")
    plan_file.write_text(kept[:50])
    refused(capsys, out, [*command, "varcon"], "plan.json cannot be read")


def test_the_two_budgets_have_folders_of_their_own(tmp_path, monkeypatch, reported):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "seconds_per_epoch", lambda recipe: 1.0)
    recipe = write_recipe(tmp_path)
    for flags, folder in (([], "compare-base"), (["--budget", "time"], "compare-base-time")):
        assert main(["compare", str(recipe), "--methods", "varcon", *flags]) == 0
        assert (tmp_path / "runs" / folder / "compare.md").exists()


def diverging(method, batch):
    loss = method.encoder(batch.views[0]).sum() * float("nan")
    return StepOutput(loss, {"loss": loss.detach()})


def test_a_run_that_diverges_is_listed_and_the_rest_goes_on(tmp_path, capsys, monkeypatch, reported):
    recipe = write_recipe(tmp_path)
    out = tmp_path / "out"
    command = ["compare", str(recipe), "--methods", "supcon,varcon,ce", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["supcon"], "forward", diverging)
        for _ in range(2):  # it fails again and what has succeeded stays
            assert main(command) == 1
            shown = capsys.readouterr()
            assert "1 of 3 runs failed (supcon, seed 0)" in shown.err
            assert shown.err.count("\n") == 1
            assert "supcon, seed 0: training diverged" in shown.out
            assert rows(out) == [("varcon", 0, 100.0), ("supcon", 0, None), ("ce", 0, 100.0)]
            assert "diverged" in json.loads((out / "compare.json").read_text())[1]["failed"]
            text = (out / "compare.md").read_text()
            assert "0, 1 failed |" in text
            assert "supcon, seed 0 failed: training diverged at step" in text
            assert reported == ["varcon-seed0", "ce-seed0"]
        assert main([*command, "--out", str(tmp_path / "none"), "--methods", "supcon"]) == 1
    assert main(command) == 0
    assert "failed" not in (out / "compare.md").read_text()


def test_an_evaluation_that_fails_leaves_the_others_in_the_table(tmp_path, capsys, monkeypatch, reported):
    recipe = write_recipe(tmp_path)
    out = tmp_path / "out"
    command = ["compare", str(recipe), "--methods", "varcon,ce", "--out", str(out)]
    command += ["--only", "standard,centroid,clustering"]

    def failing(self, encoder, data):
        raise InputError("its file is broken")

    with monkeypatch.context() as patch:
        patch.setattr(Clustering, "__call__", failing)
        assert main(command) == 1
    assert "2 of 2 runs failed (varcon, seed 0; ce, seed 0)" in capsys.readouterr().err
    assert rows(out) == [("varcon", 0, 100.0), ("ce", 0, 100.0)]
    head, *body = (line for line in (out / "compare.md").read_text().splitlines() if "|" in line)
    assert "nearest centroid" in head
    assert "Ward" not in head
    assert all(line.endswith("| 1, 1 judged in part |") for line in body[1:])
    assert "varcon, seed 0 failed: its file is broken" in (out / "compare.md").read_text()
    assert reported == ["varcon-seed0", "ce-seed0"]
    assert main(command) == 0
    assert "Ward NMI" in (out / "compare.md").read_text()
    assert "failed" not in (out / "compare.json").read_text()


def test_what_a_method_cannot_have_is_no_failure(tmp_path, reported):
    """VarCon trains no classifier of its own."""
    command = ["compare", str(write_recipe(tmp_path)), "--methods", "varcon,ce", "--only", "classifier"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert reported == ["varcon-seed0", "ce-seed0"]
    text = (tmp_path / "out/compare.md").read_text()
    assert "own classifier" in text
    assert "failed" not in text


def interrupting(what):
    def stop(*arguments, **settings):
        raise what

    return stop


def test_stopping_says_how_to_go_on(tmp_path, capsys, monkeypatch, reported):
    """While timing, training or judging; the table then holds what was finished before."""
    recipe = write_recipe(tmp_path)
    out = tmp_path / "out"
    command = ["compare", str(recipe), "--methods", "varcon,ce", "--out", str(out), "--budget", "time"]
    signalled = Interrupted("stopped and saved at step 1 of 6", signal.SIGINT)

    def stopped(words):
        assert main(command) == 130
        assert capsys.readouterr().err == f"varcon: {words}; continue with: varcon {' '.join(command)}\n"

    with monkeypatch.context() as patch:
        patch.setattr(run, "train", interrupting(signalled))
        stopped("stopped while timing the methods")
        assert not out.exists()
    with monkeypatch.context() as patch:
        patch.setattr(run, "evaluate", interrupting(KeyboardInterrupt()))
        stopped("stopped")
        assert (out / "plan.json").exists()
        assert (out / "varcon-seed0/encoder.safetensors").exists()
    with monkeypatch.context() as patch:
        patch.setattr(run, "train", interrupting(signalled))
        stopped("stopped and saved at step 1 of 6")
        assert rows(out) == [("varcon", 0, 100.0)]
    assert main(command) == 0
    assert len(rows(out)) == 2


def test_several_processes_are_sent_elsewhere(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    recipe = write_recipe(tmp_path)
    refused(
        capsys,
        tmp_path / "out",
        [recipe, "--methods", "varcon"],
        "torchrun --nproc-per-node",
        "varcon report",
    )


def test_a_run_is_no_place_for_a_comparison(copied, capsys):
    recipe, out = copied
    refused(capsys, out / "ce-seed0", [recipe, "--methods", "varcon"], "ce-seed0 is a run", "--out FOLDER")


@pytest.mark.parametrize(("views", "expected"), [(1, (1, 1, 2)), (2, (2, 2, 2))])
def test_a_method_without_a_recipe_has_the_views_of_the_given_one(views, expected, tmp_path):
    """Where it can: half the steps of twice the views would not be equal terms."""
    recipe = write_recipe(tmp_path)
    (tmp_path / "ce.toml").unlink()
    recipe.write_text(recipe.read_text() + f"[augment]\nviews = {views}\n")
    planned = plan(recipe, ["varcon", "ce", "simclr"], [0], tmp_path / "runs", "images", ignore)
    assert tuple(one.recipe.augment.views for one in planned) == expected
    assert {one.recipe.train.epochs * one.recipe.augment.views for one in planned} == {2 * views}


def test_a_method_without_a_recipe_beside_is_named(copied, reported, capsys):
    """For its defaults may be other views than its own recipe has elsewhere."""
    recipe, out = copied
    for methods, said in (("varcon,ce", False), ("ce,supcon", True), ("ce", True)):  # also of earlier calls
        assert main(["compare", str(recipe), "--methods", methods, "--seeds", "0", "--out", str(out)]) == 0
        told = "lies no recipe of supcon: method settings are the defaults, and views"
        assert (told in capsys.readouterr().out) == said


def test_data_and_device_for_every_run(copied, reported):
    recipe, out = copied
    recipe.write_text(recipe.read_text().replace("few.npz", "none.npz").replace("'cpu'", "'cuda:99'"))
    (recipe.parent / "few.npz").rename(recipe.parent / "moved.npz")
    shutil.rmtree(out / "ce-seed0/findings")  # so that judging has to find the data too
    flags = ["--data.path", str(recipe.parent / "moved.npz"), "--devices", "cpu", "--out", str(out)]
    assert main(["compare", str(recipe), "--methods", "ce", "--seeds", "0,2", *flags]) == 0
    stored = json.loads((out / "ce-seed2/recipe.json").read_text())["recipe"]
    assert (stored["data"]["path"], stored["train"]["device"]) == (str(recipe.parent / "moved.npz"), "cpu")
    assert ("ce", 0, 100.0) in rows(out)


def test_mistakes_are_found_before_anything_is_trained(tmp_path, capsys):
    recipe = write_recipe(tmp_path)
    (tmp_path / "moco.toml").write_text("[method]\nname = 'moco'\nqueue = 8\n")
    (tmp_path / "taken/ce-seed0").mkdir(parents=True)
    (tmp_path / "taken/ce-seed0/notes.txt").write_text("mine")
    for folder, flags, words in (
        ("out", ["--methods", "varcon,supcom"], "there is no method 'supcom'; did you mean 'supcon'?"),
        ("out", ["--seeds", "0,x"], "--seeds is '0,x'"),
        ("out", ["--methods", "varcon,moco"], "moco: a queue of 8 is smaller than a batch of 16"),
        ("out", ["--methods", "varcon", "--devices", "gpu"], "there is no device 'gpu'"),
        ("out", ["--only", "clusters"], "there is no evaluation 'clusters'"),
        ("out", ["--only", "transfer"], "say where to with --target NAME=PATH"),
        ("out", ["--only", "transfer", "--target", "flowers"], "NAME=PATH"),
        (
            "out",
            ["--only", "transfer", "--target", "flowers=nowhere"],
            "there is no nowhere; correct the path",
        ),
        ("out", ["--only", "knn", "--target", f"x={recipe}"], "--target is for transfer and finetune"),
        ("out", ["--only", "knn,real"], "varcon evaluate RUN --only real --real.labels FILE"),
        ("out", ["--methods", "varcon", "--only", "maps"], "set train.snapshots in the recipe"),
        ("taken", ["--methods", "varcon,ce"], "ce-seed0 exists and is not a run"),
        ("few.npz", ["--methods", "varcon"], "few.npz is a run or a file"),
    ):
        refused(capsys, tmp_path / folder, [recipe, *flags], words)
    assert not (tmp_path / "out").exists()


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
