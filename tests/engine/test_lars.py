"""LARS against its formula, one weight after another in float64."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from varcon import run
from varcon.core import InputError
from varcon.encoders import EncoderSettings
from varcon.engine.lars import LARS
from varcon.engine.optimizers import build_optimizer
from varcon.methods.varcon import VarCon, VarConSettings
from varcon.recipe import DIGITS, TrainSettings


class Expected:
    """One weight as the formula moves it."""

    def __init__(self, weight, decay, adapt):
        self.weight, self.speed = weight.detach().clone(), torch.zeros_like(weight)
        self.decay, self.adapt = decay, adapt

    def move(self, slope, rate):
        size = self.weight.norm()
        pulled = slope.norm() + self.decay * size
        trust = 0.001 * size / pulled if self.adapt and size > 0 and pulled > 0 else 1
        self.speed = 0.9 * self.speed + rate * trust * (slope + self.decay * self.weight)
        self.weight = self.weight - self.speed


def test_steps_follow_the_formula(generator):
    """Layers and biases, a layer of zeros, and one without gradient; the rate changes on the way."""
    shapes = [(4, 3), (2, 5), (3, 3), (4,), (3,)]
    weights = [nn.Parameter(torch.randn(shape, generator=generator).double()) for shape in shapes]
    weights[1].data.zero_()
    groups = [
        {"params": weights[:3], "weight_decay": 0.1, "adapt": True},
        {"params": weights[3:], "weight_decay": 0.0, "adapt": False},
    ]
    optimizer = LARS(groups, lr=1.0, momentum=0.9)
    expected = [
        Expected(weight, group["weight_decay"], group["adapt"])
        for group in groups
        for weight in group["params"]
    ]
    for rate in (0.5, 2.0, 1.0):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for number, (weight, twin) in enumerate(zip(weights, expected, strict=True)):
            slope = torch.randn(weight.shape, generator=generator).double() * (number != 2)
            weight.grad = slope.clone()
            twin.move(slope, rate)
        optimizer.step()
        for weight, twin in zip(weights, expected, strict=True):
            torch.testing.assert_close(weight.detach(), twin.weight)


def test_biases_norms_and_epsilon_keep_the_plain_rate():
    method = VarCon(EncoderSettings().build(), VarConSettings(), num_classes=4)
    optimizer = build_optimizer(method, TrainSettings(optimizer="lars", weight_decay=0.0))
    assert isinstance(optimizer, LARS)
    for group in optimizer.param_groups:
        assert {parameter.ndim > 1 for parameter in group["params"]} == {group["adapt"]}


def test_its_state_is_kept(generator):
    weight = nn.Parameter(torch.randn(3, 2, generator=generator))
    optimizer = LARS([{"params": [weight], "weight_decay": 0.1}], lr=1.0, momentum=0.9)
    slopes = torch.randn(2, 3, 2, generator=generator)
    weight.grad = slopes[0].clone()
    optimizer.step()
    twin = nn.Parameter(weight.detach().clone())
    other = LARS([{"params": [twin], "weight_decay": 0.5}], lr=3.0, momentum=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    weight.grad, twin.grad = slopes[1].clone(), slopes[1].clone()
    optimizer.step()
    other.step()
    assert torch.equal(weight, twin)


def test_the_digits_are_learnt(tmp_path):
    train = replace(DIGITS.train, epochs=6, optimizer="lars", learning_rate=8.0, device="cpu")
    folder = run.train(replace(DIGITS, train=train), tmp_path / "run")
    found = run.evaluate(folder, only=("knn", "pixels"))
    assert found["knn"].scores["top1"] > 95


def test_nesterov_is_refused():
    with pytest.raises(InputError, match=r"train\.nesterov is for train\.optimizer sgd"):
        TrainSettings(optimizer="lars", nesterov=True)
