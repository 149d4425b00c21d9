import pytest
import torch
import torch.nn.functional as F
from references.supervised import agree, slow_paco

from varcon.losses.paco import paco
from varcon.losses.supcon import supcon

SHAPES = [
    # queries, contrast, dimensions, classes
    (8, 12, 6, 3),
    (6, 10, 4, 20),  # nearly all classes absent or of one member
    (7, 11, 5, 1),  # one class only
    (1, 1, 4, 3),  # a query alone with itself
]
WEIGHTS = [
    # alpha, beta, gamma
    (0.05, 1.0, 1.0),
    (0.5, 0.3, 0.2),
    (0.0, 1.0, 1.0),
    (1.0, 0.0, 1.0),
    (0.3, 1.0, 0.0),
]


def draw(samples, contrast, dimensions, classes, generator):
    """A third of the contrast is unusable; the first query is not in the contrast."""
    centre_logits = torch.randn(samples, classes, dtype=torch.float64, generator=generator).requires_grad_()
    vectors = torch.randn(contrast, dimensions, dtype=torch.float64, generator=generator)
    vectors = F.normalize(vectors, dim=1).requires_grad_()
    labels = torch.randint(0, classes, (contrast,), generator=generator)
    queries = vectors[:samples].detach().clone().requires_grad_()
    usable = torch.arange(contrast) % 3 != 1
    itself = torch.arange(samples)
    if samples > 1:
        itself[0] = -1
    return centre_logits, labels[:samples], queries, vectors, labels, usable, itself


@pytest.mark.parametrize(("samples", "contrast", "dimensions", "classes"), SHAPES)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_equals_the_definition(samples, contrast, dimensions, classes, weights, generator):
    inputs = draw(samples, contrast, dimensions, classes, generator)
    for temperature in (0.07, 0.5):
        leaves = [inputs[0], inputs[2], inputs[3]]
        agree(paco(*inputs, temperature, *weights), slow_paco(*inputs, temperature, *weights), leaves)


def test_centres_alone_are_cross_entropy(generator):
    inputs = draw(8, 12, 6, 5, generator)
    empty = (*inputs[:5], torch.zeros(12, dtype=torch.bool), inputs[6])  # a queue not yet filled
    for got in (paco(*inputs, 0.1, 0.0, 1.0, 0.0), paco(*empty, 0.1, 0.05, 1.0, 1.0)):
        agree(got, F.cross_entropy(inputs[0], inputs[1], reduction="none"), [inputs[0]])


def test_without_centres_it_is_supcon(generator):
    """Centres of no weight, in numerator and denominator, leave the mean of logs."""
    _, labels, queries, contrast, contrast_labels, _, itself = draw(8, 12, 6, 3, generator)
    silent, usable = torch.full((8, 3), -1e4, dtype=torch.float64), torch.ones(12, dtype=torch.bool)
    got = paco(silent, labels, queries, contrast, contrast_labels, usable, itself, 0.1, 1.0, 0.0, 1.0)
    agree(got, supcon(queries, labels, contrast, contrast_labels, itself, 0.1), [queries, contrast])


def test_unusable_entries_count_for_nothing(generator):
    centre_logits, labels, queries, contrast, contrast_labels, usable, itself = draw(8, 12, 6, 3, generator)
    weights = (0.1, 0.05, 1.0, 1.0)
    full = paco(centre_logits, labels, queries, contrast, contrast_labels, usable, itself, *weights)
    other = torch.where(usable[:, None], contrast, -3.0)
    others = torch.where(usable, contrast_labels, 0)
    assert torch.equal(full, paco(centre_logits, labels, queries, other, others, usable, itself, *weights))
    by_contrast = torch.autograd.grad(full.sum(), contrast)[0]
    assert by_contrast[~usable].abs().max() == 0
    assert by_contrast[usable].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float64(dtype, generator):
    inputs = draw(128, 256, 64, 10, generator)
    weights = (0.1, 0.05, 1.0, 1.0)
    half = [each.detach().to(dtype) if each.is_floating_point() else each for each in inputs]
    leaves = [half[0].requires_grad_(), half[2].requires_grad_()]
    with torch.autocast("cpu", dtype):
        loss = paco(*half, *weights)
    assert loss.dtype == torch.float32
    wide = [each.float() if each.is_floating_point() else each for each in half]
    assert torch.equal(loss, paco(*wide, *weights))
    exact = paco(*inputs, *weights).mean()
    assert abs(loss.mean() / exact - 1) < 0.02
    rough = torch.autograd.grad(loss.sum(), leaves)
    true = torch.autograd.grad(exact, [inputs[0], inputs[2]])
    for got, want in zip(rough, true, strict=True):
        assert (got.double() / 128 - want).norm() / want.norm() < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_extremes_are_finite(dtype):
    z = torch.eye(4).to(dtype).requires_grad_()
    centre_logits = torch.tensor([[300.0, -300]]).repeat(4, 1).to(dtype).requires_grad_()
    labels = torch.tensor([0, 1, 0, 1])
    for gamma in (0.0, 1e-3, 1.0):
        usable = torch.tensor([True, True, True, False])
        loss = paco(centre_logits, labels, z, z, labels, usable, torch.arange(4), 0.001, 0.05, 1.0, gamma)
        gradients = torch.autograd.grad(loss.sum(), [z, centre_logits])
        assert loss.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_compiles_whole(generator):
    inputs = draw(8, 12, 6, 3, generator)
    weights = (0.1, 0.05, 1.0, 1.0)
    compiled = torch.compile(paco, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs, *weights), paco(*inputs, *weights), rtol=1e-12, atol=1e-12)
