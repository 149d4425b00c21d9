"""Two processes on gloo against one process on the union of their batches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from references.two_processes import MODES, SAMPLES, ten_steps, worker

from varcon import distributed


@pytest.mark.parametrize("cut", [SAMPLES // 2, 5])
def test_two_processes_equal_one(tmp_path, cut):
    """Equal halves, and parts of 5 and 19 samples."""
    mp.start_processes(worker, (str(tmp_path), cut), nprocs=2, start_method="spawn")
    for number, options in enumerate(MODES):
        expected = ten_steps(options, rank=0, cut=None)
        for rank in (0, 1):
            got = torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=True)
            for ours, theirs in zip(got, expected, strict=True):
                for name, value in theirs.items():
                    assert (ours[name] - value).abs().max() < 1e-6, (options, rank, name)
        assert expected[0]["loss.epsilon"] != 0


def test_training_starts_under_torchrun(tmp_path):
    """Both processes train one run; its weights are those of both and its journal is one."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    recipe = Path(__file__).parents[1] / "recipes/digits/varcon.toml"
    flags = ["--train.epochs", "1", "--train.batch-size", "256", "--train.device", "cpu"]
    flags += ["--train.snapshots", "0", "1"]
    done = subprocess.run(
        [*command, "-m", "varcon", "train", str(recipe), "--out", str(tmp_path / "run"), *flags],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    trained, untrained = (tmp_path / f"run/encoder-epoch000{epoch}.safetensors" for epoch in (1, 0))
    assert (tmp_path / "run/encoder.safetensors").read_bytes() == trained.read_bytes()
    assert trained.read_bytes() != untrained.read_bytes()
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 1
    assert len(torch.load(tmp_path / "run/last.ckpt", weights_only=True)["generators"]) == 2


@pytest.mark.parametrize("ending", ["pass", "1 / 0"])
def test_the_group_is_gone_after_training(ending):
    """One that lived on would have threads, which abort a process if its end finds them at work, or wait for
    it while it waits for them; also where an error still holds the frames of training."""
    code = f"""
import weakref, torch
from varcon.distributed import process_group
def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    {ending}
try:
    with process_group("cpu") as device:
        group = weakref.ref(torch.distributed.group.WORLD)
        train()
except ZeroDivisionError as error:
    assert group() is None
assert group() is None
"""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **alone}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_one_process_of_torchrun_has_no_gradients_to_average(monkeypatch):
    monkeypatch.setattr(distributed, "active", lambda: True)
    monkeypatch.setattr(distributed, "world_size", lambda: 1)
    layer = torch.nn.Linear(3, 3)
    assert distributed.synchronised(layer, torch.device("cpu")) is layer
