import math

import pytest
import torch
from torch import nn

from varcon.core import Method, Progress
from varcon.encoders import EncoderSettings
from varcon.engine.optimizers import build_optimizer, learning_rate, set_learning_rate
from varcon.methods.varcon import VarCon, VarConSettings
from varcon.recipe import TrainSettings


@pytest.mark.parametrize("decay_norms", [False, True])
def test_decay_spares_epsilon_and_norms_where_it_should(decay_norms):
    method = VarCon(EncoderSettings().build(), VarConSettings(), num_classes=4)
    optimizer = build_optimizer(method, TrainSettings(weight_decay=0.3, decay_norms=decay_norms))
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    spared = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] == 0 for p in g["params"]}
    decayed = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] == 0.3 for p in g["params"]}
    expected = {"loss.epsilon"}
    for path, module in method.named_modules():
        if isinstance(module, nn.BatchNorm2d) and not decay_norms:
            expected |= {f"{path}.weight", f"{path}.bias"}
        elif isinstance(module, nn.Linear) and not decay_norms:
            expected |= {f"{path}.bias"}
    assert spared == expected
    assert decayed == set(names.values()) - expected


def test_epsilon_has_its_own_rate():
    method = VarCon(EncoderSettings().build(), VarConSettings(epsilon_rate=0.25), num_classes=4)
    optimizer = build_optimizer(method, TrainSettings())
    set_learning_rate(optimizer, 0.8)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates.pop(id(method.loss.epsilon)) == pytest.approx(0.2)
    assert set(rates.values()) == {0.8}


def test_fixed_parameters_are_left_out():
    method = VarCon(EncoderSettings().build(), VarConSettings(learn_epsilon=False), num_classes=4)
    held = [p for group in build_optimizer(method, TrainSettings()).param_groups for p in group["params"]]
    assert all(parameter is not method.loss.epsilon for parameter in held)


def test_rate_grows_linearly_then_follows_the_cosine():
    settings = TrainSettings(epochs=10, batch_size=512, learning_rate=0.05, warmup_epochs=2)
    rates = [learning_rate(settings, Progress(step, 100, 10)) for step in range(101)]
    peak = 0.05 * 512 / 256
    assert rates[:20] == pytest.approx([peak * (i + 1) / 21 for i in range(20)])
    assert rates[20] == pytest.approx(peak)
    assert rates[60] == pytest.approx(peak / 2)
    assert rates[20:] == pytest.approx([peak * (1 + math.cos(math.pi * i / 80)) / 2 for i in range(81)])


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_decay_by_hand(nesterov):
    class Point(Method):
        def __init__(self):
            super().__init__(nn.Identity(), None, 1)
            self.weight = nn.Parameter(torch.tensor([[1.0]], dtype=torch.float64))

    method = Point()
    optimizer = build_optimizer(method, TrainSettings(weight_decay=0.1, momentum=0.9, nesterov=nesterov))
    position, velocity = 1.0, 0.0
    for step in range(5):
        set_learning_rate(optimizer, rate := 0.1 / (step + 1))
        (method.weight**3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gradient = 3 * position**2 + 0.1 * position
        velocity = 0.9 * velocity + gradient
        position -= rate * (gradient + 0.9 * velocity if nesterov else velocity)
        assert method.weight.item() == pytest.approx(position, rel=1e-12)
