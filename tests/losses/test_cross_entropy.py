import pytest
import torch
import torch.nn.functional as F
from references.supervised import agree, slow_cross_entropy, slow_dual_focal, slow_focal, slow_gammas

from varcon.losses.cross_entropy import adafocal, cross_entropy, dual_focal, focal, mix, update_gammas

SHAPES = [(12, 5), (7, 2), (1, 4), (9, 11)]  # samples, classes; some classes are absent
LOSSES = {
    "cross-entropy": cross_entropy,
    "smoothed": lambda logits, labels: cross_entropy(logits, labels, 0.1),
    "focal": lambda logits, labels: focal(logits, labels, 3.0),
    "dual focal": lambda logits, labels: dual_focal(logits, labels, 5.0),
    "adafocal": lambda logits, labels: adafocal(logits, labels, torch.linspace(-2, 3, len(labels))),
}


def draw(samples, classes, generator, scale=2.0):
    logits = scale * torch.randn(samples, classes, dtype=torch.float64, generator=generator)
    return logits.requires_grad_(), torch.randint(0, classes, (samples,), generator=generator)


@pytest.mark.parametrize(("samples", "classes"), SHAPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy_equals_the_definition(samples, classes, smoothing, generator):
    logits, labels = draw(samples, classes, generator)
    agree(cross_entropy(logits, labels, smoothing), slow_cross_entropy(logits, labels, smoothing), [logits])
    soft = torch.rand(samples, classes, dtype=torch.float64, generator=generator).softmax(1)
    agree(cross_entropy(logits, soft, smoothing), slow_cross_entropy(logits, soft, smoothing), [logits])


def test_smoothing_is_that_of_torch(generator):
    logits, labels = draw(20, 6, generator)
    ours = cross_entropy(logits, F.one_hot(labels, 6).double(), 0.05).mean()
    assert (ours - F.cross_entropy(logits, labels, label_smoothing=0.05)).abs() < 1e-12


@pytest.mark.parametrize(("samples", "classes"), SHAPES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
def test_focal_losses_equal_the_definitions(samples, classes, gamma, generator):
    logits, labels = draw(samples, classes, generator)
    agree(focal(logits, labels, gamma), slow_focal(logits, labels, [gamma] * samples), [logits])
    agree(dual_focal(logits, labels, gamma), slow_dual_focal(logits, labels, gamma), [logits])


@pytest.mark.parametrize(("samples", "classes"), SHAPES)
def test_adafocal_equals_the_definition(samples, classes, generator):
    logits, labels = draw(samples, classes, generator)
    gammas = torch.linspace(-2, 4, samples, dtype=torch.float64)
    agree(adafocal(logits, labels, gammas), slow_focal(logits, labels, gammas.tolist()), [logits])


def test_gamma_zero_is_cross_entropy(generator):
    logits, labels = draw(15, 6, generator, scale=10.0)
    for loss in (
        focal(logits, labels, 0),
        dual_focal(logits, labels, 0),
        adafocal(logits, labels, 0 * labels),
    ):
        agree(loss, cross_entropy(logits, labels), [logits])


def test_dual_focal_takes_the_largest_probability_strictly_below():
    p = torch.tensor(
        [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]], dtype=torch.float64
    )
    loss = dual_focal(p.log(), torch.tensor([0, 1, 2, 0]), 2.0)
    expected = (
        torch.tensor([0.8**2, 0.9**2, 0.8**2, 0.8**2]).double() * -torch.tensor([0.5, 0.3, 0.2, 0.4]).log()
    )
    torch.testing.assert_close(loss, expected.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_extreme_and_single_classes_are_finite(name, dtype):
    for logits, labels in (
        (torch.tensor([[300.0, -300], [-300, 300], [0, 0]]), torch.tensor([0, 0, 1])),
        (torch.tensor([[300.0], [-2]]), torch.tensor([0, 0])),
    ):
        leaf = logits.to(dtype).requires_grad_()
        loss = LOSSES[name](leaf, labels)
        loss.sum().backward()
        assert loss.isfinite().all()
        assert (loss >= 0).all()
        assert leaf.grad.isfinite().all()


def test_focal_keeps_what_rounds_away():
    """1 - p is 4e-18 here, which 1 - softmax rounds to 0."""
    logits = torch.tensor([[40.0, 0.0]])
    loss = focal(logits, torch.tensor([0]), 0.5)
    assert loss.item() == pytest.approx(torch.tensor(-60.0).exp().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_stays_near_float64(name, dtype, generator):
    logits, labels = draw(256, 20, generator)
    half = logits.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype):
        loss = LOSSES[name](half, labels)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, LOSSES[name](half.float(), labels))
    exact = LOSSES[name](logits, labels).mean()
    assert abs(loss.mean() / exact - 1) < 0.02
    rough = torch.autograd.grad(loss.sum(), half)[0].double() / 256
    true = torch.autograd.grad(exact, logits)[0]
    assert (rough - true).norm() / true.norm() < 0.02


@pytest.mark.parametrize("rate", [0.5, 1.0, 8.0])
def test_gammas_follow_the_rule(rate, generator):
    edges = [0.2, 0.4, 0.5, 0.9]  # the bin from 0.4 to 0.5 stays empty
    confidence = torch.rand(200, dtype=torch.float64, generator=generator)
    confidence = torch.where((confidence >= 0.4) & (confidence < 0.5), 0.2, confidence)  # 0.2: on a border
    correct = torch.rand(200, generator=generator) < 0.5
    gammas = [1.0, 0.3, 0.1, -0.25, 0.0]
    for _ in range(6):
        arguments = (confidence, correct, torch.tensor(edges, dtype=torch.float64))
        got = update_gammas(torch.tensor(gammas, dtype=torch.float64), *arguments, rate, (-2.0, 20.0))
        following = slow_gammas(gammas, confidence.tolist(), correct.tolist(), edges, rate, (-2.0, 20.0))
        assert got.tolist() == pytest.approx(following, abs=1e-10)
        gammas = following
        assert gammas[2] == 0.1


def test_gammas_rise_with_overconfidence_switch_and_stop():
    edges, sure = torch.tensor([]), torch.tensor([0.9, 0.9])
    wrong, right = torch.tensor([False, False]), torch.tensor([True, True])

    def follow(gamma, correct, rate):
        return update_gammas(torch.tensor([gamma]), sure, correct, edges, rate, (-2.0, 20.0)).item()

    assert follow(1.0, wrong, 1.0) == pytest.approx(torch.tensor(0.9).exp().item())
    assert follow(-1.0, wrong, 1.0) == pytest.approx(-torch.tensor(-0.9).exp().item())
    assert follow(0.201, right, 1.0) == pytest.approx(-0.2)  # under-confident: to the inverse loss
    assert follow(-0.201, wrong, 1.0) == pytest.approx(0.2)
    assert follow(15.0, wrong, 1.0) == 20
    assert follow(-1.99, right, 1.0) == -2


@pytest.mark.parametrize("shared", [True, False])
def test_mix_blends_images_and_labels_alike(shared, generator):
    images = torch.rand(5, 3, 4, 4, dtype=torch.float64, generator=generator)
    onehot = F.one_hot(torch.tensor([0, 2, 1, 1, 0]), 3)
    order = torch.tensor([3, 0, 1, 2, 4])
    weights = torch.tensor(0.7).double() if shared else torch.tensor([0, 0.25, 0.5, 1, 0.3]).double()
    mixed, labels = mix(images, onehot, weights, order)
    for i in range(5):
        w = weights.item() if shared else weights[i].item()
        for got, source in ((mixed, images), (labels, onehot)):
            expected = w * source[i].double() + (1 - w) * source[order[i]].double()
            torch.testing.assert_close(got[i], expected, rtol=0, atol=1e-12)
    half, labels = mix(images.bfloat16(), onehot, weights.float(), order)
    assert half.dtype == torch.bfloat16
    assert labels.dtype == torch.float32
    torch.testing.assert_close(half.double(), mixed, rtol=0.01, atol=0.01)


def test_compiles_whole(generator):
    """No graph break: nothing waits for the device, no shape hangs on the data."""
    logits, labels = draw(10, 4, generator)

    def all_of_them(logits, labels):
        return torch.stack([loss(logits, labels) for loss in LOSSES.values()])

    compiled = torch.compile(all_of_them, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, labels), all_of_them(logits, labels), rtol=1e-12, atol=1e-12)
