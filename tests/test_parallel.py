import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from pictures import write_recipe

from varcon import InputError, parallel, run
from varcon.cli import main
from varcon.recipe import load_recipe
from varcon.runs import Planned


class Place:
    """Keeps what it is told."""

    def __init__(self):
        self.heard = []

    def begin(self, title):
        self.heard.append(title)

    def step(self, progress, row):
        self.heard.append("step")

    def progress(self, done, total, what): ...


class Deadly(str):
    """A label that ends the process which unpacks it."""

    def __reduce__(self):
        return os._exit, (3,)


def left_of(group):
    """Whether any process of a group is there after some seconds."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def planned(folder, label, **changes):
    recipe = load_recipe(write_recipe(folder))
    return Planned(label, 0, recipe, folder / f"run-{label}", only=("knn",), **changes)


def test_a_sweep_on_two_devices_is_that_on_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "report", lambda folders, page, note: page)
    recipe = write_recipe(tmp_path)
    outs = {"cpu": tmp_path / "one", "cpu,cpu": tmp_path / "two"}
    for devices, out in outs.items():
        command = ["sweep", str(recipe), "--set", "method.temperature=0.1,0.2", "--out", str(out)]
        assert main([*command, "--devices", devices]) == 0
        assert "temperature 0.2, seed 0: kNN 100.00 %" in capsys.readouterr().out
        results = json.loads((out / "sweep.json").read_text())
        assert [result["settings"] for result in results] == ["temperature 0.1", "temperature 0.2"]
    for folder in ("temperature-0.1-seed0", "temperature-0.2-seed0"):
        alone, together = ((out / folder / "encoder.safetensors").read_bytes() for out in outs.values())
        assert alone == together
    facts = json.loads((outs["cpu,cpu"] / "temperature-0.1-seed0/recipe.json").read_text())
    assert facts["device"] == "cpu, 1 threads"


def test_a_worker_that_dies_or_fails_costs_its_own_run_only(tmp_path):
    runs = [planned(tmp_path, label) for label in (Deadly("x"), "a", "b")]
    runs[1].folder.mkdir()
    (runs[1].folder / "notes.txt").write_text("not a run")
    places = [Place(), Place()]
    results = {
        one.label: result for one, result in parallel.carry_out(runs, ["cpu", "cpu"], "varcon sweep", places)
    }
    assert results["x"].failed == "its process ended with exit code 3"
    assert "is not a run" in results["a"].failed
    assert results["b"].scores["kNN top-1"] == 100
    heard = [words for place in places for words in place.heard]
    assert {"x, seed 0 (1 of 3)", "a, seed 0 (2 of 3)", "b, seed 0 (3 of 3)", "step"} <= set(heard)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_processes_stops_all_workers_once_they_have_saved(tmp_path, number):
    recipe, out = write_recipe(tmp_path, epochs=100_000), tmp_path / "out"
    command = ["sweep", str(recipe), "--set", "method.temperature=0.1,0.2", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "varcon", *command, "--devices", "cpu,cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, which the signal reaches as a whole
    )
    journals = [out / f"temperature-{value}-seed0/metrics.jsonl" for value in ("0.1", "0.2")]
    end = time.monotonic() + 120
    while not all(path.exists() for path in journals) and time.monotonic() < end:
        time.sleep(0.2)
    os.killpg(process.pid, number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number, error
    assert error.startswith("varcon: stopped; what was trained is saved; continue with: varcon sweep ")
    assert error.count("\n") == 1
    assert all((path.parent / "last.ckpt").exists() for path in journals)
    assert not left_of(process.pid)


def test_devices_are_of_one_kind(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parallel.read_devices("cuda,cuda:1") == ["cuda", "cuda:1"]
    assert parallel.read_devices("cpu, cpu") == ["cpu", "cpu"]
    for twice in ("cuda,cuda:0", "cuda:1,cuda:1"):
        with pytest.raises(InputError, match="name each GPU once"):
            parallel.read_devices(twice)
    with pytest.raises(InputError, match="there is no device 'gpu'"):
        parallel.read_devices("cpu,gpu")
