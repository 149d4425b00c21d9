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
from varcon.core import InputError


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


TWICE = """
import os, sys
from pathlib import Path
from varcon import InputError, Recipe, distributed, run
from varcon.recipe import TrainSettings

recipe = Recipe(train=TrainSettings(epochs=1, batch_size=512, device="cpu"))
for name in "ab":
    run.train(recipe, Path(sys.argv[1]) / name)
facts = run.facts_of
run.facts_of = lambda data: {**facts(data), "mean": distributed.rank()}
try:
    run.train(recipe, Path(sys.argv[1]) / "c")
except InputError as error:
    assert "different data" in str(error), error
    (Path(sys.argv[1]) / f"refused-{os.environ['RANK']}").touch()
"""


def test_training_twice_in_the_same_processes(tmp_path):
    """The second group must not find the first one's addresses; and what other data a process has read is
    found before they train."""
    (tmp_path / "twice.py").write_text(TWICE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*command, str(tmp_path / "twice.py"), str(tmp_path)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    weights = [(tmp_path / name / "encoder.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    assert len(list(tmp_path.glob("refused-*"))) == 2


def test_a_process_that_fails_on_a_gpu_does_not_wait_for_the_others(monkeypatch):
    """Who may be waiting for it; on a CPU nobody waits, and the group is left as it should be."""
    left = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "join", lambda backend: None)
    monkeypatch.setattr(distributed.dist, "destroy_process_group", lambda: left.append("left"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with distributed.process_group("cuda") as device:
        assert device == torch.device("cuda:1")
    assert left == ["left"]
    for name, expected in (("cuda", 1), ("cpu", 2)):
        with pytest.raises(ZeroDivisionError), distributed.process_group(name):
            raise ZeroDivisionError
        assert len(left) == expected


@pytest.mark.parametrize(
    ("device", "devices", "rank", "words"),
    [
        ("cuda", 1, 0, "1 CUDA devices and 2 are needed"),  # the first process too, for it alone speaks
        ("cuda", 1, 1, "1 CUDA devices and 2 are needed"),
        ("cuda:1", 8, 0, "train.device is 'cuda:1' and torchrun has started 2 processes; set it to cuda"),
    ],
)
def test_devices_that_do_not_do(monkeypatch, device, devices, rank, words):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(InputError, match=words), distributed.process_group(device):
        pass


@pytest.mark.parametrize("ending", ["pass", "1 / 0", "again()"])
def test_the_group_is_gone_after_training(ending):
    """One that lived on would have threads, which abort a process if its end finds them at work, or wait for
    it while it waits for them; also where an error still holds the frames of training."""
    code = f"""
import weakref, torch
from varcon.distributed import process_group
def again():
    try:
        1 / 0
    except ZeroDivisionError:
        raise ZeroDivisionError from None
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
