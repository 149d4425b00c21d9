import pytest
import torch
import torch.nn.functional as F
from references.supervised import agree, slow_xclr

from varcon.losses.supcon import supcon
from varcon.losses.xclr import xclr

SHAPES = [
    # anchors, contrast, dimensions, classes, temperature, similarity temperature
    (8, 12, 6, 3, 0.07, 0.1),
    (5, 9, 3, 2, 0.5, 1.0),
    (6, 10, 4, 30, 0.2, 0.1),  # nearly all classes absent or of one member
    (7, 11, 5, 1, 0.1, 0.1),  # one class only
    (1, 1, 4, 3, 0.1, 0.1),  # an anchor alone with itself
]


def draw(samples, contrast, dimensions, classes, generator):
    """The first anchor is not in the contrast. The similarity is not symmetric, so that its axes show."""
    vectors = torch.randn(contrast, dimensions, dtype=torch.float64, generator=generator)
    vectors = F.normalize(vectors, dim=1).requires_grad_()
    labels = torch.randint(0, classes, (contrast,), generator=generator)
    anchors = vectors[:samples].detach().clone().requires_grad_()
    itself = torch.arange(samples)
    if samples > 1:
        itself[0] = -1
    similarity = torch.rand(classes, classes, dtype=torch.float64, generator=generator)
    return anchors, labels[:samples], vectors, labels, itself, similarity


@pytest.mark.parametrize(
    ("samples", "contrast", "dimensions", "classes", "temperature", "similarity_temperature"), SHAPES
)
def test_equals_the_definition(
    samples, contrast, dimensions, classes, temperature, similarity_temperature, generator
):
    inputs = draw(samples, contrast, dimensions, classes, generator)
    ours = xclr(*inputs, temperature, similarity_temperature)
    agree(ours, slow_xclr(*inputs, temperature, similarity_temperature), [inputs[0], inputs[2]])


def test_alone_it_costs_nothing(generator):
    inputs = draw(1, 1, 4, 3, generator)
    loss = xclr(*inputs, 0.1, 0.1)
    assert loss.item() == 0
    assert torch.autograd.grad(loss.sum(), inputs[0])[0].abs().max() == 0


def test_similarity_only_to_itself_is_supcon(generator):
    anchors, _, contrast, _, _, _ = draw(8, 16, 5, 4, generator)
    labels, itself = torch.arange(16) % 4, torch.arange(8)
    rest = (contrast, labels, itself)
    identity = torch.eye(4, dtype=torch.float64)
    leaves = [anchors, contrast]
    agree(
        xclr(anchors, labels[:8], *rest, identity, 0.1, 0.01), supcon(anchors, labels[:8], *rest, 0.1), leaves
    )
    # Distances shrink with the temperature of the similarity, down to none.
    expected = supcon(anchors, labels[:8], *rest, 0.1)
    gaps = [
        (xclr(anchors, labels[:8], *rest, identity, 0.1, tau) - expected).abs().max() for tau in (1, 0.2, 0.1)
    ]
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_equal_similarities_ask_for_a_uniform_answer(generator):
    anchors, labels, contrast, contrast_labels, itself, similarity = draw(6, 9, 5, 3, generator)
    flat = xclr(anchors, labels, contrast, contrast_labels, itself, torch.ones_like(similarity), 0.1, 0.1)
    one_class = supcon(anchors, 0 * labels, contrast, 0 * contrast_labels, itself, 0.1)
    agree(flat, one_class, [anchors, contrast])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_float64(dtype, generator):
    inputs = draw(128, 256, 64, 10, generator)
    half = [each.detach().to(dtype) if each.is_floating_point() else each for each in inputs]
    half[0].requires_grad_()
    with torch.autocast("cpu", dtype):
        loss = xclr(*half, 0.1, 0.2)
    assert loss.dtype == torch.float32
    wide = [each.float() if each.is_floating_point() else each for each in half]
    assert torch.equal(loss, xclr(*wide, 0.1, 0.2))
    exact = xclr(*inputs, 0.1, 0.2).mean()
    assert abs(loss.mean() / exact - 1) < 0.02
    rough = torch.autograd.grad(loss.sum(), half[0])[0].double() / 128
    true = torch.autograd.grad(exact, inputs[0])[0]
    assert (rough - true).norm() / true.norm() < 0.02


def test_sharp_temperatures_are_finite():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        z = torch.eye(4).to(dtype).requires_grad_()
        labels = torch.tensor([0, 0, 1, 2])
        loss = xclr(z, labels, z, labels, torch.arange(4), torch.eye(3), 0.001, 0.001)
        loss.sum().backward()
        assert loss.isfinite().all()
        assert z.grad.isfinite().all()


def test_compiles_whole(generator):
    inputs = draw(8, 12, 6, 3, generator)
    compiled = torch.compile(xclr, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs, 0.1, 0.1), xclr(*inputs, 0.1, 0.1), rtol=1e-12, atol=1e-12)
