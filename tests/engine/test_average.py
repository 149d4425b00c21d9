"""The average of the weights against a loop over the run's own snapshots."""

import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from varcon import Recipe, run
from varcon.core import InputError
from varcon.engine.interrupt import Interrupted
from varcon.methods import METHODS
from varcon.recipe import TrainSettings

EPOCHS = 5
QUICK = TrainSettings(epochs=EPOCHS, batch_size=1297, device="cpu", warmup_epochs=1)  # a step an epoch


def test_it_is_the_average_of_every_step(tmp_path):
    """First an even mean, then with the momentum; running statistics along, and training unchanged."""
    plain = Recipe(train=replace(QUICK, snapshots=tuple(range(1, EPOCHS + 1))))
    steps = run.train(plain, tmp_path / "steps")
    averaged = run.train(Recipe(train=replace(QUICK, average=0.6)), tmp_path / "averaged")
    expected: dict[str, torch.Tensor] = {}
    for step in range(EPOCHS):
        now = load_file(steps / f"encoder-epoch{step + 1:04d}.safetensors")
        pace = max(0.4, 1 / (step + 1))
        for name, value in now.items():
            value = value.double()
            expected[name] = value if step == 0 else expected[name] + pace * (value - expected[name])
    found = load_file(averaged / "encoder.safetensors")
    for name, value in found.items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert any("running_var" in name for name in found)
    ours, theirs = (
        (folder / "metrics.jsonl").read_text().split('"loss"')[-1][:12] for folder in (averaged, steps)
    )
    assert ours == theirs


def test_a_stop_does_not_change_it(tmp_path):
    recipe = Recipe(train=replace(QUICK, average=0.9))
    run.train(recipe, tmp_path / "whole")

    def watch(progress, row):
        if progress.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run.train(recipe, tmp_path / "stopped", watch=watch)
    run.train(recipe, tmp_path / "stopped", resume=True)
    ours, theirs = ((tmp_path / name / "encoder.safetensors").read_bytes() for name in ("stopped", "whole"))
    assert ours == theirs


def test_a_classifier_is_averaged_too(tmp_path):
    method = METHODS["ce"].Settings()
    plain = run.train(Recipe(method=method, train=QUICK), tmp_path / "plain")
    averaged = run.train(Recipe(method=method, train=replace(QUICK, average=0.9)), tmp_path / "averaged")
    last, mean = (load_file(folder / "classifier.safetensors")["weight"] for folder in (plain, averaged))
    assert not torch.equal(last, mean)
    assert mean.norm() < last.norm()  # it has not come as far


def test_settings():
    with pytest.raises(InputError, match=r"train\.average is 1\.0; it must lie in \[0, 1\)"):
        TrainSettings(average=1)
    with pytest.raises(InputError, match=r"train\.nesterov looks ahead along the momentum"):
        TrainSettings(nesterov=True, momentum=0.0)
