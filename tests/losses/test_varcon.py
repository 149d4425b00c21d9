import pytest
import torch
import torch.nn.functional as F
from references.varcon import slow_varcon

from varcon import VarConLoss
from varcon.losses.varcon import class_sums, varcon_loss

SHAPES = [
    # samples, dimensions, classes, epsilon, temperature
    (32, 16, 10, 0.02, 0.1),
    (7, 3, 4, 0.05, 0.1),
    (64, 8, 40, 0.02, 0.1),  # many absent and single-member classes
    (20, 5, 3, 0.0, 0.1),  # epsilon 0
    (20, 5, 3, 0.0, 0.5),
    (30, 12, 6, 0.07, 0.08),
    (1, 4, 5, 0.02, 0.1),  # one sample
    (12, 6, 2, 0.015, 0.02),  # sharp: p_r close to 0 and 1
]


def draw(samples, dimensions, classes, generator):
    embeddings = torch.randn(samples, dimensions, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    return embeddings.requires_grad_(), labels


def value_and_gradients(loss, *leaves):
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def assert_equals_oracle(loss_fn, embeddings, labels, **oracle):
    epsilon = loss_fn.epsilon.detach().clone().requires_grad_()
    expected_loss, expected_terms = slow_varcon(embeddings, labels, epsilon, loss_fn.temperature, **oracle)
    ours = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
    expected = value_and_gradients(expected_loss, embeddings, epsilon)
    # Epsilon's derivative has the sharpest target's 1 / tau2^2 before it, and sums what nearly cancels.
    sharpest = loss_fn.temperature - epsilon.item()
    for name, got, want, scale in zip(
        ("value", "embeddings", "epsilon"), ours, expected, (1, 1, 1e-3 / sharpest**2), strict=True
    ):
        assert (got - want).abs().max() <= 1e-12 * max(1, scale, want.abs().max()), name
    torch.testing.assert_close(
        torch.stack(loss_fn.explain(embeddings, labels), dim=1), expected_terms, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(("samples", "dimensions", "classes", "epsilon", "temperature"), SHAPES)
@pytest.mark.parametrize("references", ["batch", "leave-one-out"])
def test_equals_the_definition(samples, dimensions, classes, epsilon, temperature, references, generator):
    embeddings, labels = draw(samples, dimensions, classes, generator)
    for num_classes in (classes, None):
        loss_fn = VarConLoss(num_classes, temperature, epsilon, references=references).double()
        assert_equals_oracle(loss_fn, embeddings, labels, references=references)


@pytest.mark.parametrize(("samples", "dimensions", "classes", "epsilon", "temperature"), SHAPES)
@pytest.mark.parametrize("over", ["present", "all"])
def test_learned_references_have_a_gradient_too(
    samples, dimensions, classes, epsilon, temperature, over, generator
):
    embeddings, labels = draw(samples, dimensions, classes, generator)
    loss_fn = VarConLoss(
        classes, temperature, epsilon, references="learned", classes=over, dimensions=dimensions
    ).double()
    bank = dict(enumerate(loss_fn.learned.unbind()))  # the very parameters, so that autograd finds them
    options = {"references": "learned", "bank": bank, "classes": over}
    assert_equals_oracle(loss_fn, embeddings, labels, **options)
    expected, _ = slow_varcon(embeddings, labels, loss_fn.epsilon, temperature, **options)
    (ours,), (theirs,) = (
        torch.autograd.grad(loss, loss_fn.learned) for loss in (loss_fn(embeddings, labels), expected)
    )
    assert (ours - theirs).abs().max() <= 1e-12 * max(1, theirs.abs().max())


@pytest.mark.parametrize("options", [{}, {"references": "learned", "dimensions": 128}])
def test_in_float32_epsilon_keeps_its_digits(options, generator):
    """Q is within 1e-3 of 1 there, and its derivative is a difference from it."""
    embeddings, labels = draw(512, 128, 100, generator)
    exact_fn, loss_fn = VarConLoss(100, **options).double(), VarConLoss(100, **options)
    loss_fn.load_state_dict(exact_fn.state_dict())
    exact = value_and_gradients(exact_fn(embeddings, labels), embeddings, exact_fn.epsilon)
    single = embeddings.detach().float().requires_grad_()
    got = value_and_gradients(loss_fn(single, labels), single, loss_fn.epsilon)
    for ours, theirs, tolerance in zip(got, exact, (1e-6, 1e-6, 3e-5), strict=True):
        assert (ours.double() - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.parametrize(
    "options", [{}, {"references": "leave-one-out"}, {"references": "ema", "classes": "all"}]
)
def test_a_second_derivative_is_refused(options, generator):
    """It would be that of the normalisation alone."""
    embeddings, labels = draw(32, 8, 4, generator)
    loss_fn = VarConLoss(4, **options).double().eval()
    by_embeddings = torch.autograd.grad(loss_fn(embeddings, labels), embeddings, create_graph=True)[0]
    assert torch.equal(by_embeddings, torch.autograd.grad(loss_fn(embeddings, labels), embeddings)[0])
    penalty = by_embeddings.square().sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(penalty, embeddings, retain_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        penalty.backward()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.functional.hvp(
            lambda z: loss_fn(z, labels), embeddings.detach(), torch.ones_like(embeddings)
        )


@pytest.mark.parametrize("options", [{}, {"references": "learned", "dimensions": 8}])
def test_two_losses_of_one_step(options, generator):
    """Each call returns epsilon to its range, in place, and neither backward pass may mind."""
    embeddings, labels = draw(32, 8, 4, generator)
    loss_fn = VarConLoss(4, **options).double()
    one, both = loss_fn(embeddings, labels), loss_fn(embeddings, labels) + loss_fn(embeddings, labels)
    expected = value_and_gradients(one, embeddings, loss_fn.epsilon)
    for ours, theirs in zip(value_and_gradients(both, embeddings, loss_fn.epsilon), expected, strict=True):
        torch.testing.assert_close(ours, 2 * theirs, rtol=1e-12, atol=0)


def test_by_learned_references_there_is_a_second_derivative(generator):
    embeddings, labels = draw(6, 4, 3, generator)
    loss_fn = VarConLoss(3, references="learned", dimensions=4).double()
    assert torch.autograd.gradgradcheck(lambda z: loss_fn(z, labels), embeddings)


@pytest.mark.parametrize("options", [{}, {"references": "learned", "dimensions": 5}])
def test_one_present_class_costs_nothing(options, generator):
    embeddings, _ = draw(9, 5, 4, generator)
    labels = torch.full((9,), 2)
    loss_fn = VarConLoss(4, **options).double()
    value, by_embeddings, by_epsilon = value_and_gradients(
        loss_fn(embeddings, labels), embeddings, loss_fn.epsilon
    )
    assert value == 0
    assert by_epsilon == 0
    assert by_embeddings.abs().max() == 0
    assert_equals_oracle(loss_fn, embeddings, labels)


def test_single_member_classes_reach_full_confidence_only_by_batch_references(generator):
    embeddings, _ = draw(6, 8, 6, generator)
    loss_fn = VarConLoss(6).double()
    assert_equals_oracle(loss_fn, embeddings, torch.arange(6))
    # A class of one is its own reference: the cosine is 1 and confidence self-fulfilling.
    assert loss_fn.explain(embeddings, torch.arange(6)).confidence.min() > 0.5


def test_at_epsilon_zero_it_is_two_cross_entropies_less_an_entropy(generator):
    """L = 2 CE(p, (q + onehot) / 2) - H(q)."""
    embeddings, labels = draw(24, 7, 5, generator)
    loss_fn = VarConLoss(5, epsilon=0.0).double()
    z = F.normalize(embeddings.detach(), dim=1)
    sums, counts = class_sums(z, labels, 5)
    assert (counts > 0).all()
    log_p = (z @ F.normalize(sums, dim=1).T / 0.1).log_softmax(1)
    onehot = F.one_hot(labels, 5).double()
    q = (onehot / 0.1).softmax(1)
    expected = -((q + onehot) * log_p).sum(1) + (q * q.log()).sum(1)
    assert (loss_fn(embeddings, labels) - expected.mean()).abs() < 1e-12


def test_bank_of_running_means(generator):
    loss_fn = VarConLoss(6, references="ema", classes="all", reference_momentum=0.7).double()
    means = {}
    for seen in ([0, 1, 2], [2, 3], [0, 4, 4]):
        embeddings, _ = draw(24, 5, 6, generator)
        labels = torch.tensor(seen)[torch.randint(0, len(seen), (24,), generator=generator)]
        bank = {k: mean / mean.norm() for k, mean in means.items()}
        loss_fn.eval()  # judging does not move the bank
        assert_equals_oracle(loss_fn, embeddings, labels, references="ema", classes="all", bank=bank)
        loss_fn.train()
        loss_fn(embeddings, labels)
        z = F.normalize(embeddings.detach(), dim=1)
        for k in set(labels.tolist()):
            new = z[labels == k].mean(0)
            means[k] = 0.7 * means[k] + 0.3 * new if k in means else new
        expected = torch.stack([means.get(k, torch.zeros(5).double()) for k in range(6)])
        torch.testing.assert_close(loss_fn.bank, expected, rtol=0, atol=1e-12)
        assert loss_fn.known.tolist() == [k in means for k in range(6)]


def test_bank_may_contrast_the_present_classes_only(generator):
    loss_fn = VarConLoss(4, references="ema").double()
    first, _ = draw(12, 5, 4, generator)
    loss_fn(first, torch.arange(12) % 4)
    loss_fn.eval()
    bank = dict(enumerate(F.normalize(loss_fn.bank, dim=1)))
    second, _ = draw(10, 5, 4, generator)
    assert_equals_oracle(loss_fn, second, torch.arange(10) % 2, references="ema", bank=bank)


def test_gradient_by_finite_differences(generator):
    """References are constants of the loss, so gradcheck holds them still."""
    embeddings, labels = draw(10, 4, 3, generator)
    references = F.normalize(torch.randn(3, 4, dtype=torch.float64, generator=generator), dim=1)
    epsilon = torch.tensor(0.03, dtype=torch.float64, requires_grad=True)

    def per_sample(embeddings, epsilon):
        z = F.normalize(embeddings, dim=1)
        return varcon_loss(z, labels, references, torch.ones(3, dtype=torch.bool), epsilon, 0.2)[0]

    assert torch.autograd.gradcheck(per_sample, (embeddings, epsilon))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_half_precision_stays_near_float64(dtype, scale, generator):
    embeddings, labels = draw(256, 64, 20, generator)
    centres = torch.randn(20, 64, dtype=torch.float64, generator=generator)
    embeddings = (scale * (0.3 * embeddings + centres[labels])).detach().requires_grad_()
    exact = value_and_gradients(VarConLoss(20).double()(embeddings, labels), embeddings)
    half = embeddings.detach().to(dtype).requires_grad_()
    loss_fn = VarConLoss(20)
    with torch.autocast("cpu", dtype):
        loss = loss_fn(half, labels)
    rough = value_and_gradients(loss * 1024, half)  # as a gradient scaler would, lest fp16 underflow
    assert loss.isfinite()
    assert abs(loss.item() / exact[0].item() - 1) < 0.02
    error = (rough[1].double() / 1024 - exact[1]).norm() / exact[1].norm()
    assert error < 0.02


def test_extreme_confidence_is_finite_in_every_precision():
    z = torch.eye(4)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        for labels in (torch.arange(4), torch.tensor([1, 0, 1, 0])):
            embeddings = z.to(dtype).clone().requires_grad_()
            loss_fn = VarConLoss(4, temperature=0.005, epsilon=0.0049, epsilon_range=(0, 0.0049))
            loss = loss_fn(embeddings, labels)
            loss.backward()
            assert loss.isfinite()
            assert embeddings.grad.isfinite().all()
            assert loss_fn.epsilon.grad.isfinite()


# torch's own tracer instantiates the function it warns against instantiating.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_to_the_same_loss(generator, fresh_compiler):
    embeddings, labels = draw(64, 16, 10, generator)
    embeddings = embeddings.float().detach().requires_grad_()
    for options in (
        {},
        {"references": "leave-one-out"},
        {"references": "ema", "classes": "all"},
        {"references": "learned", "dimensions": 16},
    ):
        eager, compiled = VarConLoss(10, **options), VarConLoss(10, **options)
        compiled.load_state_dict(eager.state_dict())
        fast = torch.compile(compiled, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            expected = value_and_gradients(eager(embeddings, labels), embeddings, eager.epsilon)
            got = value_and_gradients(fast(embeddings, labels), embeddings, compiled.epsilon)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)


def test_blocks_join_to_the_whole(generator, monkeypatch):
    """Blocks far smaller than the batch and the classes give what one block gives."""
    embeddings, labels = draw(50, 6, 30, generator)
    loss_fn = VarConLoss(30).double()
    expected = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
    monkeypatch.setattr("varcon.kernels.class_attention.CLASSES_IN_FLIGHT", 4)
    monkeypatch.setattr("varcon.kernels.class_attention.SCORES_IN_FLIGHT", 28)
    got = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


def test_memory_is_linear(generator):
    """B = 8192, C = 1000, d = 128: one score matrix alone would take 31 MiB, the direct form ten."""
    embeddings = torch.randn(8192, 128, generator=generator, requires_grad=True)
    labels = torch.randint(0, 1000, (8192,), generator=generator)
    loss_fn = VarConLoss(1000)
    loss_fn(embeddings, labels).backward()  # warm up, and allocate the gradients
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        loss_fn(embeddings, labels).backward()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert 2**20 < peak < 64 * 2**20, f"{peak / 2**20:.1f} MiB"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"references": "leave-one-out"},
        {"references": "ema", "classes": "all"},
        {"references": "learned", "dimensions": 128},
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu(options, compiled, generator, fresh_compiler):
    embeddings, labels = draw(512, 128, 100, generator)
    exact_fn, loss_fn = VarConLoss(100, **options).double(), VarConLoss(100, **options).cuda()
    loss_fn.load_state_dict(exact_fn.state_dict())
    exact = value_and_gradients(exact_fn(embeddings, labels), embeddings, exact_fn.epsilon)
    apply = torch.compile(loss_fn) if compiled else loss_fn
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.02), (torch.float16, 0.02)):
        there = embeddings.detach().to("cuda", dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            loss = apply(there, labels.cuda())
        got = value_and_gradients(loss, there, loss_fn.epsilon)
        for ours, theirs in zip(got, exact, strict=True):
            assert (ours.cpu().double() - theirs).norm() / theirs.norm() < tolerance
        if options.get("references") == "ema":
            break  # the bank has moved
    bad = labels.cuda().index_fill(0, torch.tensor(3).cuda(), 1000)
    assert apply(there, bad).isnan()
