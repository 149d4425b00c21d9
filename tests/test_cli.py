"""The commands as a person types them: what they print, what they leave, how they fail."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from varcon import cli
from varcon.cli import VERBS, main
from varcon.core import Findings, RunError
from varcon.files import write_text

REPOSITORY = Path(__file__).parents[1]
QUICK = ["--train.epochs", "1", "--train.batch-size", "256", "--train.device", "cpu"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder with the digits recipe in it."""
    monkeypatch.chdir(tmp_path)
    recipes = tmp_path / "recipes/digits"
    recipes.mkdir(parents=True)
    (recipes / "varcon.toml").write_text((REPOSITORY / "recipes/digits/varcon.toml").read_text())
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, for tests that only read or copy it."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", str(REPOSITORY / "recipes/digits/varcon.toml"), "--out", str(folder), *QUICK]) == 0
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(capsys, here, arguments, *words, code=2):
    """The command fails with one sentence that has these words, and changes no file."""
    before = contents(here)
    capsys.readouterr()
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("varcon: ")
    assert error.count("\n") == 1, error
    for word in words:
        assert word in error
    assert contents(here) == before


def test_from_recipe_to_report(here, capsys):
    assert main(["train", "recipes/digits/varcon.toml", *QUICK, "--train.seed", "3"]) == 0
    folder = here / "runs/digits-varcon"
    stored = json.loads((folder / "recipe.json").read_text())
    assert stored["recipe"]["train"]["seed"] == 3
    assert (
        stored["command"] == "varcon train recipes/digits/varcon.toml " + " ".join(QUICK) + " --train.seed 3"
    )
    assert "varcon evaluate runs/digits-varcon" in capsys.readouterr().out

    assert main(["evaluate", "runs/digits-varcon", "--linear.epochs", "5", "--map2d.points", "100"]) == 0
    shown = capsys.readouterr().out
    knn = json.loads((folder / "findings/knn.json").read_text())["scores"]
    pixels = json.loads((folder / "findings/pixels.json").read_text())["scores"]
    rank = json.loads((folder / "findings/rank.json").read_text())["scores"]
    assert f"{knn['top1']:.2f}" in shown
    assert f"{pixels['top1']:.2f}" in shown
    assert f"{rank['effective_rank']:.4g}" in shown
    assert pixels["top1"] == pytest.approx(98.2)

    assert main(["report", "runs/digits-varcon"]) == 0
    assert "runs/digits-varcon/report.html" in capsys.readouterr().out
    assert f"{knn['top1']:.2f}" in (folder / "report.html").read_text()


def test_a_classifier_of_its_own_is_shown(here, capsys):
    classifier = ["--method.classifier-weight", "1"]
    assert main(["train", "recipes/digits/varcon.toml", *QUICK, *classifier, "--out", "both"]) == 0
    assert main(["evaluate", "both", "--linear.epochs", "5", "--map2d.points", "100"]) == 0
    own = json.loads((here / "both/findings/classifier.json").read_text())["scores"]
    assert re.search(rf"own classifier +{own['top1']:.2f}", capsys.readouterr().out)


def test_commands_that_are_shown_can_be_typed(here, capsys):
    """Also where a folder's name has a space and what looks like the markup of a colour."""
    assert main(["train", "recipes/digits/varcon.toml", *QUICK, "--out", "my [red] run"]) == 0
    shown = capsys.readouterr().out.split("next: ")[1]
    assert shlex.split(shown) == ["varcon", "evaluate", "my [red] run"]
    assert main([*shlex.split(shown)[1:], "--only", "centroid"]) == 0
    assert shlex.split(capsys.readouterr().out.split("next: ")[1]) == ["varcon", "report", "my [red] run"]
    (here / "my [red] run/encoder.safetensors").unlink()
    assert main(["evaluate", "my [red] run"]) == 2
    told = shlex.split(capsys.readouterr().err.split("go on with: ")[1])
    assert told == ["varcon", "train", "my [red] run/recipe.json", "--resume"]


def test_a_run_repeats_from_its_own_recipe(trained, here):
    assert main(["train", str(trained / "recipe.json"), "--out", "again"]) == 0
    assert (here / "again/encoder.safetensors").read_bytes() == (trained / "encoder.safetensors").read_bytes()


def test_a_run_is_never_written_over(trained, here, capsys):
    refused(
        capsys,
        trained,
        ["train", "recipes/digits/varcon.toml", "--out", str(trained), *QUICK],
        "already holds a run",
        "--resume",
    )
    (here / "notes").mkdir()
    (here / "notes/mine.txt").write_text("keep")
    refused(
        capsys, here, ["train", "recipes/digits/varcon.toml", "--out", "notes"], "exists and is not a run"
    )


def test_resuming_takes_nothing_for_a_beginning_that_is_none(trained, here, capsys):
    copy = shutil.copytree(trained, here / "copy")
    (copy / "last.ckpt").unlink()
    again = ["train", "recipes/digits/varcon.toml", "--resume", *QUICK, "--out"]
    refused(capsys, here, [*again, "copy"], "finished run without its checkpoint")
    (copy / "encoder.safetensors").unlink()  # as if killed before the first checkpoint
    refused(capsys, here, [*again, "copy", "--train.seed", "4"], "begun with train.seed = 0")
    assert main([*again, "copy"]) == 0
    (here / "notes").mkdir()
    (here / "notes/metrics.jsonl").write_text("mine")
    refused(capsys, here, [*again, "notes"], "exists and is not a run")
    assert main([*again, "copi"]) == 0  # which may be a mistake
    assert "there is no copi yet: the run begins" in "".join(capsys.readouterr())


def test_a_runs_own_recipe_resumes_it(trained, here):
    copy = shutil.copytree(trained, here / "copy")
    assert main(["train", "copy/recipe.json", "--resume"]) == 0
    assert (copy / "encoder.safetensors").read_bytes() == (trained / "encoder.safetensors").read_bytes()
    assert not (here / "runs").exists()


def test_settings_found_wrong_leave_no_folder(here, capsys):
    command = ["train", "recipes/digits/varcon.toml"]
    refused(
        capsys,
        here,
        [*command, "--augment.policy", "crop-flip", "--augment.shift", "8"],
        "augment.shift is 8",
    )
    refused(capsys, here, [*command, "--train.device", "meta"], "there is no device 'meta'")
    refused(capsys, here, toml(here, "[method]\ndimensions = 0"), "method.dimensions is 0")
    refused(capsys, here, toml(here, "[train]\nseed = 99999999999999999999"), "train.seed", "2**32")
    refused(capsys, here, toml(here, "[evaluate.map2d]\npoints = 0"), "map2d.points is 0")
    (here / "list.json").write_text('{"recipe": [1]}')
    refused(capsys, here, ["train", "list.json"], "the recipe is [1]")
    assert not (here / "runs").exists()


def test_resuming_a_finished_run_changes_nothing(trained, here):
    before = (trained / "encoder.safetensors").read_bytes()
    assert main(["train", "recipes/digits/varcon.toml", "--out", str(trained), "--resume", *QUICK]) == 0
    assert (trained / "encoder.safetensors").read_bytes() == before


def toml(here, text):
    (here / "mine.toml").write_text(text)
    return ["train", "mine.toml"]


def test_mistakes_in_recipes(here, capsys):
    refused(
        capsys, here, toml(here, "[method]\ntemprature = 1"), "'temprature'", "did you mean 'temperature'?"
    )
    refused(capsys, here, toml(here, "[method]\nname = 'supkon'"), "no method 'supkon'", "methods: varcon")
    refused(capsys, here, ["train", "mime.toml"], "there is no recipe mime.toml", "'mine.toml'")
    (here / "my pets").mkdir()
    words = "my pets is a folder, not a recipe", "varcon train --data 'my pets'"
    refused(capsys, here, ["train", "my pets"], *words)
    (here / "old").mkdir()
    (here / "old/recipe.json").write_text("{}")
    refused(capsys, here, ["train", "old"], "old is a folder", "the recipe of this run is old/recipe.json")
    (here / "mine").mkdir()
    (here / "mine/fast.toml").touch()
    refused(capsys, here, ["train", "mine"], "mine is a folder", "name one of its recipes", "mine/fast.toml")
    refused(capsys, here, ["train"], "train needs a recipe")
    refused(capsys, here, ["train", "--dat", "pets"], "train needs a recipe", "did you mean '--data'?")
    refused(capsys, here, ["trian"], "did you mean 'train'?")
    refused(capsys, here, toml(here, "[train]\nbatch_size = 5000"), "only 1297 training images", "lower it")
    refused(capsys, here, toml(here, "[train]\ndevice = 'gpu'"), "no device 'gpu'", "cuda")


def test_a_mistyped_flag_suggests_the_right_one(here, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "recipes/digits/varcon.toml", "--method.temprature", "0.2"])
    assert stopped.value.code == 2
    assert "--method.temperature" in capsys.readouterr().err
    command = ["train", "recipes/digits/varcon.toml", "--method.name"]
    refused(capsys, here, [*command, "ce"], "cannot change the method", "varcon compare RECIPE --methods")
    refused(capsys, here, [*command[:-1], "--method.name=ce"], "cannot change the method")
    assert not (here / "runs").exists()


def folder_of_images(here):
    for split in ("train", "test"):
        for label in ("ant", "bee"):
            folder = here / "images" / split / label
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")


def folder_recipe(here):
    return toml(
        here,
        "[data]\nname = 'folder'\npath = 'images'\n[train]\nbatch_size = 8\nepochs = 1\ndevice = 'cpu'",
    )


def test_bad_image_folders(here, capsys):
    folder_of_images(here)
    missing = toml(here, "[data]\nname = 'folder'\npath = 'imags'")
    refused(capsys, here, missing, "there is no folder imags", "data.path")
    (here / "imags").touch()
    refused(capsys, here, missing, "data.path imags is a file")
    command = folder_recipe(here)
    broken = here / "images/train/bee/2.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60])
    refused(capsys, here, command, "images/train/bee/2.png", "repair")
    broken.write_bytes(whole)
    (here / "images/train/cat").mkdir()
    refused(capsys, here, command, "images/train/cat", "holds no image")
    (here / "images/train/cat").rmdir()
    refused(
        capsys, here, toml(here, "[data]\nname = 'cifar100'\npath = 'c'"), "varcon download cifar100 --to c"
    )
    assert main(folder_recipe(here)) == 0  # and once mended it trains


def test_a_run_whose_data_lie_elsewhere_says_where_it_looks(here, capsys, monkeypatch):
    """For a relative path is told from where a command is started."""
    folder_of_images(here)
    assert main([*folder_recipe(here), "--out", "w/run"]) == 0
    monkeypatch.chdir(here / "w")
    words = (f"the data of run are looked for at {here / 'w/images'}", "lie now with --data.path")
    refused(capsys, here, ["evaluate", "run"], *words)
    refused(capsys, here, ["train", "run/recipe.json", "--resume"], *words)
    assert main(["evaluate", "run", "--only", "centroid", "--data.path", "../images"]) == 0
    assert main(["train", "run/recipe.json", "--resume", "--data.path", "../images"]) == 0


def test_a_label_out_of_range(here, capsys):
    images = np.zeros((8, 8, 8), dtype=np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 7])
    np.savez("bad.npz", train_images=images, train_labels=labels % 3, test_images=images, test_labels=labels)
    command = toml(here, "[data]\nname = 'npz'\npath = 'bad.npz'")
    refused(capsys, here, command, "test_labels of bad.npz hold 7 at position 7", "outside 0..2")


def test_divergence_is_a_failed_run(here, capsys):
    command = ["train", "recipes/digits/varcon.toml", *QUICK, "--train.learning-rate", "1e12"]
    assert main([*command, "--train.warmup-epochs", "0"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "training diverged at step" in error
    assert "lower train.learning_rate" in error


class Attack:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_bad_checkpoints(trained, here, capsys):
    again = ["train", "recipes/digits/varcon.toml", "--out", str(trained), "--resume", *QUICK]
    checkpoint = trained / "last.ckpt"
    whole = checkpoint.read_bytes()
    try:
        checkpoint.write_bytes(whole[:5000])
        refused(capsys, trained, again, "last.ckpt is truncated", "restore it")
        torch.save(Attack(), checkpoint)
        refused(capsys, trained, again, "asks to run posix.system", "was not loaded")
        assert not (here / "ran").exists()
    finally:
        checkpoint.write_bytes(whole)


@pytest.mark.parametrize("name", ["cats [old]", "y[/z]", "a :cat: b"])
def test_names_with_brackets_and_colons_are_printed_as_they_are(here, trained, capsys, name):
    folder = shutil.copytree(trained, here / name)
    capsys.readouterr()
    assert main(["report", name]) == 0
    assert capsys.readouterr().out == f"report: {name}/report.html\n"
    (folder / "encoder.safetensors").unlink()
    assert main(["train", f"{name}/recipe.json", "--resume"]) == 0
    assert f"trained {name}" in capsys.readouterr().out


def test_what_another_evaluation_is_meant_for(trained, here, capsys):
    """Flags that would have no effect are refused, with the command that has one."""
    words = f"judge it on another data set: varcon evaluate {trained} --only transfer --target NAME=PATH"
    refused(capsys, here, ["evaluate", str(trained), "--data.path", "photos"], words)
    refused(capsys, here, ["evaluate", str(trained), "--target", "x=photos"], "is for transfer and finetune")


def test_what_was_judged_before_an_error_is_shown(trained, tmp_path, capsys, monkeypatch):
    run = shutil.copytree(trained, tmp_path / "run")
    assert main(["evaluate", str(run), "--only", "rank,outliers", "--outliers.k", "2000"]) == 2
    printed = capsys.readouterr()
    assert "effective_rank" in printed.out
    assert "varcon: outliers.k is 2000 but there are only 1297 training images" in printed.err
    found = {"pixels": Findings({"top1": 5.0})}

    def fails(*arguments, **settings):
        arguments[5]("pixels", found["pixels"])
        raise RunError("the probe failed")

    monkeypatch.setattr("varcon.run.evaluate", fails)  # amid those that share a table
    assert main(["evaluate", str(run)]) == 1
    printed = capsys.readouterr()
    assert "pixels" in printed.out and printed.err == "varcon: the probe failed\n"


def test_folders_that_are_no_runs(here, capsys):
    refused(capsys, here, ["evaluate", "nowhere"], "nowhere is not a run")
    refused(capsys, here, ["report", "nowhere"], "nowhere")
    (here / "half").mkdir()
    (here / "half/recipe.json").write_text('{"recipe": {}}')
    refused(capsys, here, ["evaluate", "half"], "on with: varcon train half/recipe.json --resume")
    (here / "half/recipe.json").write_text('{"recipe": {}, "processes": 4}')
    several = "torchrun --nproc-per-node 4 -m varcon train half/recipe.json --resume"
    refused(capsys, here, ["evaluate", "half"], f"has not finished training; go on with: {several}")


@pytest.mark.parametrize("command", ["", "train", "evaluate", "report", "demo", "download"])
def test_help(capsys, command):
    try:
        assert main([command, "--help"] if command else ["--help"]) == 0
    except SystemExit as stopped:
        assert stopped.code == 0
    shown = capsys.readouterr().out
    assert f"varcon {command}" in shown
    assert len(shown) > 300


def test_the_overview_fits_in_a_narrow_terminal(capsys):
    """And names every command."""
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 80
    assert {line.split()[1] for line in lines if line.startswith("  varcon ")} == set(VERBS)


def test_interrupting_says_how_to_continue(here):
    """A real process, a real Ctrl-C, and the very command that it names."""
    command = [sys.executable, "-m", "varcon", "train", "recipes/digits/varcon.toml"]
    flags = ["--train.epochs", "40", "--train.batch-size", "512", "--train.device", "cpu"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    log = here / "runs/digits-varcon/metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "stopped and saved at step" in error
    named = error.strip().split("continue with: ")[1]
    assert named == "varcon train recipes/digits/varcon.toml " + " ".join(flags) + " --resume"
    steps = torch.load(here / "runs/digits-varcon/last.ckpt", weights_only=True)["step"]
    assert 0 < steps < 80


def test_a_full_disk_is_told_with_its_file(here, capsys, monkeypatch):
    def fails(arguments, console):
        raise OSError(28, "No space left on device", "runs/a.json")

    monkeypatch.setitem(VERBS, "report", fails)
    sentence = "runs/a.json cannot be written (No space left on device); free some space and start again\n"
    refused(capsys, here, ["report"], sentence, code=1)


def test_a_place_that_may_not_be_written_is_told(here, capsys, monkeypatch):
    """With the name that was asked for, not that of a temporary file."""

    def forbidden(*arguments, **settings):
        raise PermissionError(13, "Permission denied", "runs/.a.json.varcon-x")

    def fails(arguments, console):
        write_text(Path("runs/a.json"), "")

    monkeypatch.setattr("tempfile.mkstemp", forbidden)
    monkeypatch.setitem(VERBS, "report", fails)
    sentence = "runs/a.json may not be read or written (Permission denied); change its permissions"
    refused(capsys, here, ["report"], sentence, code=2)


def test_seeds_are_written_alike(here, capsys):
    refused(
        capsys, here, ["demo", "--seeds", "0;1"], "--seeds is '0;1'; give whole numbers separated by commas"
    )


TERMINAL_THAT_CLOSES = """
import os, pathlib, pty, sys, time
process, terminal = pty.fork()
if not process:
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
log, end = pathlib.Path(sys.argv[1]), time.monotonic() + 60
while not (log.exists() and log.read_text()) and time.monotonic() < end:
    time.sleep(0.02)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def test_closing_the_terminal_saves(here):
    """There is nowhere to say so, and trying must not cost the exit code."""
    command = ["-m", "varcon", "train", "recipes/digits/varcon.toml", "--out", "r", "--train.epochs", "400"]
    started = [sys.executable, "-c", TERMINAL_THAT_CLOSES, "r/metrics.jsonl", *command]
    ended = subprocess.run([*started, "--train.device", "cpu"], timeout=120)
    assert ended.returncode == 128 + signal.SIGHUP
    assert torch.load(here / "r/last.ckpt", weights_only=True)["step"] > 0


@pytest.fixture
def unread():
    """A pipe whose reader has gone, as `head` does once it has its lines."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_training_goes_on_when_nobody_reads(here, unread):
    command = [sys.executable, "-m", "varcon", "train", "recipes/digits/varcon.toml", "--out", "r", *QUICK]
    ended = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert torch.load(here / "r/last.ckpt", weights_only=True)["step"] > 0
    assert (here / "r/encoder.safetensors").exists()


def test_what_is_only_printed_ends_when_nobody_reads(trained, here, unread):
    """The first of many images, the help, and a mistake; none says more than it would to a reader."""
    Image.new("L", (8, 8)).save("photo.png")
    python = [sys.executable, "-m", "varcon"]
    for arguments, code in (
        (["predict", str(trained), *["photo.png"] * 2], 0),
        (["train", "--help"], 0),
        ([], 0),
    ):
        ended = subprocess.run(
            [*python, *arguments], stdout=unread, stderr=subprocess.PIPE, text=True, timeout=120
        )
        assert (ended.returncode, "Error" in ended.stderr) == (code, False), ended.stderr
    both = subprocess.run([*python, "trian"], stdout=unread, stderr=unread, timeout=120)
    assert both.returncode == 2


def test_demo(here, capsys, monkeypatch):
    """One seed of one epoch; the second demo takes a folder of its own."""
    from dataclasses import replace

    from varcon import cli
    from varcon.recipe import DIGITS, TrainSettings

    short = replace(DIGITS, train=TrainSettings(epochs=1, batch_size=256, device="cpu"))
    monkeypatch.setattr(cli, "DIGITS", short)
    for folder in ("runs/demo", "runs/demo-2"):
        assert main(["demo", "--seeds", "0"]) == 0
        assert f"report: {folder}/report.html" in capsys.readouterr().out
        page = (here / folder / "report.html").read_text()
        assert "98.20" in page
        assert len(page) < 3_000_000
    (here / "photos/cat").mkdir(parents=True)
    for folder, said in (
        ("runs/demo", "is not empty"),
        ("photos", "is not empty"),
        ("runs/demo/seed-0", "is a run"),
    ):
        before = sorted(here.rglob("*"))
        assert main(["demo", "--seeds", "1", "--out", folder]) == 2
        assert said in capsys.readouterr().err
        assert sorted(here.rglob("*")) == before


def test_a_run_that_has_learned_nothing_says_so(here, capsys):
    given = ["--train.epochs", "2", "--train.device", "cpu", "--train.learning-rate"]
    assert main(["train", "recipes/digits/varcon.toml", "--out", "good", *given, "0.4"]) == 0
    assert "guessing" not in capsys.readouterr().out
    assert main(["train", "recipes/digits/varcon.toml", "--out", "bad", *given, "1000"]) == 0
    assert "ended at 0.100, as by guessing among 10: nothing was learned" in capsys.readouterr().out
    assert main(["evaluate", "bad", "--only", "pixels,knn,rank"]) == 0
    assert "points better than the encoder" in capsys.readouterr().out


def test_the_help_of_train_tells_what_is_no_flag(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "but for method.name, which stands in the recipe" in told
    assert "--method.name" not in told


def test_what_only_another_process_finds_is_told_by_it(here, monkeypatch, capsys):
    """After a moment in which torchrun would end it, had the first one found the same."""
    waited = []
    monkeypatch.setattr(cli, "PROCESS", "3")
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    assert main(["train", "missing.toml"]) == 2
    assert capsys.readouterr().err.startswith("varcon, process 3: there is no recipe missing.toml")
    assert waited == [cli.SECONDS_TO_END]


@pytest.mark.parametrize("verb", ["evaluate", "demo"])
def test_what_one_process_does_is_not_done_by_several(here, verb, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(capsys, here, [verb, "run"], f"{verb} works in one process; start it without torchrun")


def test_a_place_where_nothing_can_be_made(here, capsys):
    (here / "file").touch()
    recipe = str(here / "recipes/digits/varcon.toml")
    words = "cannot be reached (Not a directory); give another place"
    refused(capsys, here, ["train", recipe, "--out", "file/run", *QUICK], words)
