"""Runs in places that may not be written, such as a folder of models that many share."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import varcon
from varcon.cli import main
from varcon.deploy import learned
from varcon.engine.checkpoint import save_weights


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_run_that_may_not_be_written_predicts_from_its_first_use(own, data, model, forbid, number):
    shutil.rmtree(own / "deploy")
    before = contents(own)
    forbid(own, number)
    with pytest.warns(UserWarning, match=rf"{own} may not be written \({os.strerror(number)}\).*not kept"):
        closed = varcon.load(own, "cpu")
    files = [data / "test/red/01.png", data / "train/green/07.png"]
    assert closed.predict(files) == model.predict(files)
    assert contents(own) == before
    assert varcon.load(own, "cpu").predict(files) == model.predict(files)  # and the warning comes once


def test_what_is_kept_of_other_weights_is_left_and_not_used(own, data, forbid):
    before = varcon.load(own, "cpu").config.centroids
    save_weights(own / "encoder.safetensors", varcon.Recipe().encoder.build())
    forbid(own)
    with pytest.warns(UserWarning, match="not kept"):
        assert not np.allclose(varcon.load(own, "cpu").config.centroids, before)
    assert np.array_equal(learned.read(own / "deploy")[0].centroids, before)


def test_what_is_kept_serves_where_nothing_can_be_written(own, data, model, forbid):
    forbid(own)
    image = data / "test/red/01.png"
    assert varcon.load(own, "cpu").predict([image]) == model.predict([image])  # a warning would be an error


class Ended:
    """A server that ends at once."""

    def __init__(self, config):
        pass

    def run(self, sockets):
        raise KeyboardInterrupt


@pytest.mark.parametrize("arrays", [False, True], ids=["files", "arrays"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "run", "zoo/plain.png"],
        ["search", "run", "zoo/plain.png", "--index", "zoo", "--top", "1"],
        ["serve", "run", "--port", "0"],
        ["serve", "run", "--port", "0", "--index", "zoo"],
    ],
    ids=["predict", "search", "serve", "serve-index"],
)
def test_every_command_says_once_that_nothing_is_kept(
    own, data, zoo, tmp_path, forbid, monkeypatch, capsys, small_recipe, arguments, arrays
):
    if arrays:  # of which the server keeps the pictures too
        shutil.rmtree(own)
        pixels = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
        labels = np.arange(24) % 2
        parts = {"train_images": pixels, "train_labels": labels, "test_images": pixels, "test_labels": labels}
        np.savez(tmp_path / "data.npz", **parts)
        varcon.train(small_recipe(tmp_path / "data.npz", name="npz"), own)
    else:
        shutil.rmtree(own / "deploy")
    before = contents(own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uvicorn.Server", Ended)
    forbid(own)
    capsys.readouterr()
    assert main([*arguments, "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert [line for line in shown.err.splitlines() if line.startswith("varcon: ")] == [
        f"varcon: {own} may not be written (Read-only file system), so what is learned from images is not "
        "kept for next time"
    ]
    assert "Warning" not in shown.err
    assert arguments[0] == "serve" or shown.out.startswith("zoo/plain.png")
    assert contents(own) == before


def test_a_full_disk_is_an_error(own, data, tmp_path, forbid, monkeypatch, capsys):
    shutil.rmtree(own / "deploy")
    monkeypatch.chdir(tmp_path)
    forbid(own, errno.ENOSPC)
    assert main(["predict", "run", str(data / "test/red/01.png")]) == 1
    shown = capsys.readouterr()
    assert "varcon: run/deploy cannot be written (No space left on device)" in shown.err
    assert not shown.out


USED = """
import json, pathlib, sys, warnings
from varcon.deploy import keeping
def fails(folder, wanted):
    raise OSError(30, "Read-only file system")
keeping.nameless_file = fails
warnings.simplefilter("ignore")
place = keeping.place_to_keep(pathlib.Path(sys.argv[1]), "a/b")
(place / "file").write_text("")
again = keeping.place_to_keep(pathlib.Path(sys.argv[1]), "c")
print(json.dumps([str(place), str(again), (place / "file").exists()]))
"""


def test_the_folder_used_instead_goes_with_the_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", USED, tmp_path], capture_output=True, text=True, check=True)
    place, again, written = json.loads(done.stdout)
    assert written
    assert place.removesuffix("/a/b") == again.removesuffix("/c")
    assert not Path(again.removesuffix("/c")).exists()
