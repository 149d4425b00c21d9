"""Losses under torch.compile and autocast, against themselves in float64 with neither."""

import pytest
import torch
import torch.nn.functional as F

from varcon.criterion import VarConLoss
from varcon.losses.barlow import barlow
from varcon.losses.contrast import info_nce, nt_xent
from varcon.losses.paco import paco
from varcon.losses.precision import products
from varcon.losses.supcon import supcon
from varcon.losses.vicreg import vicreg
from varcon.losses.xclr import xclr

SAMPLES, CLASSES = 64, 10
LABELS = torch.arange(SAMPLES) % CLASSES
ITSELF = torch.arange(SAMPLES)


# Each of two leaves [SAMPLES, d] of unit vectors.
LOSSES = {
    "supcon": lambda a, b: supcon(a, LABELS, b, LABELS, ITSELF, 0.1).mean(),
    "nt_xent": lambda a, b: nt_xent(a, b, ITSELF, ITSELF.flip(0), 0.1).mean(),
    "info_nce": lambda a, b: info_nce(a, b, b, torch.ones(SAMPLES, dtype=torch.bool), 0.1).mean(),
    "xclr": lambda a, b: xclr(a, LABELS, b, LABELS, ITSELF, torch.eye(CLASSES), 0.1, 0.3).mean(),
    "paco": lambda a, b: paco(
        a[:, :CLASSES], LABELS, a, b, LABELS, torch.ones(SAMPLES, dtype=torch.bool), ITSELF, 0.1, 1, 1, 1
    ).mean(),
    "barlow": lambda a, b: barlow(a, b, 0.005)[0],
    "vicreg": lambda a, b: vicreg(a, b, 25, 25, 1)[0],
}


@pytest.fixture
def leaves(generator):
    return [
        F.normalize(
            torch.randn(SAMPLES, 32, dtype=torch.float64, generator=generator), dim=1
        ).requires_grad_()
        for _ in range(2)
    ]


@pytest.mark.parametrize("name", LOSSES)
def test_compiled_under_autocast(name, leaves, fresh_compiler):
    exact = torch.autograd.grad(LOSSES[name](*leaves), leaves, allow_unused=True)
    singles = [leaf.detach().float().requires_grad_() for leaf in leaves]
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.compile(LOSSES[name], backend="aot_eager")(*singles)
    for ours, theirs in zip(torch.autograd.grad(loss, singles, allow_unused=True), exact, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None and theirs.any():
            assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_learned_references_compiled_under_autocast(generator, fresh_compiler):
    z = torch.randn(SAMPLES, 32, generator=generator, dtype=torch.float64)
    loss_fn = VarConLoss(CLASSES, references="learned", dimensions=32).double()
    exact = torch.autograd.grad(loss_fn(z, LABELS), loss_fn.learned)[0]
    single = loss_fn.float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = torch.compile(single, backend="aot_eager")(z.float(), LABELS)
    ours = torch.autograd.grad(loss, single.learned)[0]
    assert (ours - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_products(wanted, leaves):
    inputs = [leaf[:5].detach().requires_grad_(needed) for leaf, needed in zip(leaves, wanted, strict=True)]
    assert products(*inputs).equal(inputs[0] @ inputs[1].T)
    assert torch.autograd.gradcheck(products, inputs)
    assert torch.autograd.gradgradcheck(products, inputs)
