import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import SupConLoss
from references.supervised import agree, slow_supcon

from varcon.core import InputError
from varcon.losses.supcon import supcon

SHAPES = [
    # anchors, contrast, dimensions, classes, temperature
    (8, 12, 6, 3, 0.1),
    (5, 9, 3, 2, 0.5),
    (6, 10, 4, 30, 0.2),  # nearly all classes absent or of one member
    (7, 11, 5, 1, 0.1),  # one class only
    (1, 1, 4, 3, 0.1),  # an anchor alone with itself
    (1, 2, 4, 1, 0.07),
]


def draw(samples, contrast, dimensions, classes, generator):
    """The anchors are the last of the contrast, as leaves of their own; the first anchor is not in it."""
    vectors = torch.randn(contrast, dimensions, dtype=torch.float64, generator=generator)
    vectors = F.normalize(vectors, dim=1).requires_grad_()
    labels = torch.randint(0, classes, (contrast,), generator=generator)
    itself = torch.arange(contrast - samples, contrast)
    anchors = vectors[itself].detach().clone().requires_grad_()
    if samples > 1:
        itself[0] = -1
    return anchors, labels[-samples:], vectors, labels, itself


@pytest.mark.parametrize(("samples", "contrast", "dimensions", "classes", "temperature"), SHAPES)
@pytest.mark.parametrize("form", ["out", "in"])
def test_equals_the_definition(samples, contrast, dimensions, classes, temperature, form, generator):
    inputs = draw(samples, contrast, dimensions, classes, generator)
    agree(supcon(*inputs, temperature, form), slow_supcon(*inputs, temperature, form), [inputs[0], inputs[2]])


@pytest.mark.parametrize("form", ["out", "in"])
def test_without_positives_it_costs_nothing(form, generator):
    anchors, _, contrast, _, _ = draw(6, 6, 4, 1, generator)
    labels = torch.arange(6)
    loss = supcon(anchors, labels, contrast, labels, labels, 0.1, form)
    assert torch.equal(loss, torch.zeros(6, dtype=torch.float64))
    loss.sum().backward()
    assert anchors.grad.abs().max() == 0
    assert contrast.grad.abs().max() == 0


def test_forms_agree_on_one_positive_and_in_is_never_above_out(generator):
    anchors, labels, contrast, contrast_labels, itself = draw(10, 20, 5, 4, generator)
    rest = (contrast, contrast_labels, itself, 0.1)
    assert (supcon(anchors, labels, *rest, "in") <= supcon(anchors, labels, *rest, "out") + 1e-12).all()
    pairs = torch.arange(20) % 10
    rest = (contrast, pairs, torch.arange(10), 0.1)
    agree(
        supcon(anchors, pairs[:10], *rest, "in"),
        supcon(anchors, pairs[:10], *rest, "out"),
        [anchors, contrast],
    )


def test_unknown_form_is_named():
    with pytest.raises(InputError, match="form is 'both'; choose one of out, in"):
        supcon(torch.eye(2), torch.zeros(2), torch.eye(2), torch.zeros(2), torch.arange(2), 0.1, "both")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["out", "in"])
def test_half_precision_stays_near_float64(dtype, form, generator):
    anchors, labels, contrast, contrast_labels, itself = draw(128, 256, 64, 10, generator)
    half = anchors.detach().to(dtype).requires_grad_()
    rest = (contrast.detach().to(dtype), contrast_labels, itself)
    with torch.autocast("cpu", dtype):
        loss = supcon(half, labels, *rest, 0.1, form)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, supcon(half.float(), labels, rest[0].float(), *rest[1:], 0.1, form))
    exact = supcon(anchors, labels, contrast, contrast_labels, itself, 0.1, form).mean()
    assert abs(loss.mean() / exact - 1) < 0.02
    rough = torch.autograd.grad(loss.sum(), half)[0].double() / 128
    true = torch.autograd.grad(exact, anchors)[0]
    assert (rough - true).norm() / true.norm() < 0.02


def test_sharp_temperature_is_finite():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for form in ("out", "in"):
            z = torch.eye(4).repeat(2, 1).to(dtype).requires_grad_()
            labels = torch.tensor([0, 0, 1, 1, 2, 3, 1, 1])
            loss = supcon(z, labels, z, labels, torch.arange(8), 0.001, form)
            loss.sum().backward()
            assert loss.isfinite().all()
            assert z.grad.isfinite().all()


def test_compiles_whole(generator):
    inputs = draw(8, 12, 6, 3, generator)
    compiled = torch.compile(supcon, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs, 0.1), supcon(*inputs, 0.1), rtol=1e-12, atol=1e-12)


def test_equals_pytorch_metric_learning(generator):
    """Every anchor has a positive here: their mean leaves out those that have none."""
    embeddings = torch.randn(24, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.arange(24) % 5
    theirs = SupConLoss(temperature=0.1)(embeddings, labels)
    z = F.normalize(embeddings, dim=1)
    ours = supcon(z, labels, z, labels, torch.arange(24), 0.1, "out").mean()
    assert (ours - theirs).abs() < 1e-10
    gradients = [torch.autograd.grad(loss, embeddings, retain_graph=True)[0] for loss in (ours, theirs)]
    assert (gradients[0] - gradients[1]).abs().max() < 1e-10
