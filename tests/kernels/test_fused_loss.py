"""The fused kernels against the definition; without a GPU, Triton's interpreter runs them on the CPU."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from references.kernels import DRIVER, run_with_compiler
from references.varcon import slow_varcon
from torch.utils._python_dispatch import TorchDispatchMode

from varcon import VarConLoss, kernels

pytest.importorskip("triton")
from varcon.kernels import fused_loss

# The kernels compute with infinities, of which numpy warns where it interprets them.
pytestmark = pytest.mark.filterwarnings("ignore:divide by zero|overflow|invalid value:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
OPTIONS = [
    {},
    {"references": "leave-one-out"},
    {"references": "ema"},
    {"references": "ema", "classes": "all"},
]


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    monkeypatch.setattr(kernels, "LOSS_DEVICES", {"cuda", "cpu"})


def draw(samples, dimensions, classes, generator, dtype=torch.float32):
    """Samples around the centres of some of the classes; the others stay absent."""
    centres = torch.randn(classes, dimensions, generator=generator)
    labels = torch.randint(0, max(1, 2 * classes // 3), (samples,), generator=generator)
    noise = torch.randn(samples, dimensions, generator=generator)
    embeddings = (noise + centres[labels]).to(DEVICE, dtype)
    return embeddings.requires_grad_(), labels.to(DEVICE)


def value_and_gradients(loss, *leaves):
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def assert_close(got, expected, tolerance, what=""):
    for name, ours, theirs in zip(("value", "embeddings", "epsilon"), got, expected, strict=True):
        error = (ours.double().cpu() - theirs.double().cpu()).norm()
        assert error <= tolerance * max(theirs.norm().item(), 1e-2), (what, name, error.item())


def oracle(loss_fn, embeddings, labels, **options):
    exact = embeddings.detach().cpu().double().requires_grad_()
    epsilon = loss_fn.epsilon.detach().cpu().double().requires_grad_()
    loss, terms = slow_varcon(exact, labels.cpu(), epsilon, loss_fn.temperature, **options)
    return value_and_gradients(loss, exact, epsilon), terms


@pytest.mark.parametrize(
    ("samples", "dimensions", "classes", "dtype"),
    [
        (70, 24, 20, torch.float32),  # no multiple of any block
        (70, 24, 20, torch.bfloat16),
        (70, 24, 20, torch.float16),
        (65, 128, 130, torch.float32),  # many classes of one, three blocks of classes
        (33, 3, 2, torch.float32),
        (1, 16, 5, torch.float32),
        (5, 8, 400, torch.float32),  # far more classes than samples
        (40, 200, 9, torch.bfloat16),
        (20, 500, 9, torch.float32),
    ],
)
@pytest.mark.parametrize("references", ["batch", "leave-one-out"])
def test_equals_the_definition(samples, dimensions, classes, dtype, references, generator):
    embeddings, labels = draw(samples, dimensions, classes, generator, dtype)
    loss_fn = VarConLoss(classes, references=references).to(DEVICE)
    expected, expected_terms = oracle(loss_fn, embeddings, labels, references=references)
    got = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
    assert got[1].dtype == dtype
    assert_close(got, expected, TOLERANCE[dtype])
    terms = torch.stack(loss_fn.explain(embeddings, labels), dim=1)
    assert (terms.cpu() - expected_terms).norm() <= TOLERANCE[dtype] * expected_terms.norm()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("classes", ["present", "all"])
def test_bank_equals_the_definition(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    loss_fn = VarConLoss(30, references="ema", classes=classes).to(DEVICE)
    loss_fn(*draw(40, 10, 30, generator))
    bank = {k: F.normalize(loss_fn.bank[k], dim=0).cpu().double() for k in range(30) if loss_fn.known[k]}
    embeddings, labels = draw(40, 10, 30, generator)
    labels[:3] = 29  # new to the bank
    loss_fn.eval()
    expected, _ = oracle(loss_fn, embeddings, labels, references="ema", classes=classes, bank=bank)
    got = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
    assert_close(got, expected, 1e-4)


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_the_twin(options, generator, monkeypatch):
    """Step after step, the bank too; embeddings normalised by the loss or before it, labels of any type."""
    for normalize, kind in ((True, torch.int64), (False, torch.int32)):
        ours, twin = (VarConLoss(12, normalize=normalize, **options).to(DEVICE) for _ in range(2))
        for _ in range(2):
            embeddings, labels = draw(30, 6, 12, generator)
            used = embeddings if normalize else F.normalize(embeddings, dim=1)
            monkeypatch.setattr(kernels, "LOSS_DEVICES", set())
            expected = value_and_gradients(twin(used, labels), embeddings, twin.epsilon)
            used = embeddings if normalize else F.normalize(embeddings, dim=1)
            monkeypatch.setattr(kernels, "LOSS_DEVICES", {"cuda", "cpu"})
            loss = ours(used, labels.to(kind))
            assert "_FusedLoss" in type(loss.grad_fn).__name__
            assert_close(value_and_gradients(loss, embeddings, ours.epsilon), expected, 1e-4, options)
        for (name, value), other in zip(ours.named_buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(value, other, msg=name)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_temperature_on_the_device_stands_for_the_losss_own(options, generator):
    embeddings, labels = draw(30, 6, 12, generator)
    usual, other = (VarConLoss(12, temperature, **options).to(DEVICE) for temperature in (0.1, 0.3))
    now = torch.tensor(0.3, device=DEVICE)
    (got, terms), (expected, expected_terms) = (
        usual.with_terms(embeddings, labels, now),
        other.with_terms(embeddings, labels),
    )
    assert "_FusedLoss" in type(got.grad_fn).__name__
    assert_close(
        value_and_gradients(got, embeddings, usual.epsilon),
        value_and_gradients(expected, embeddings, other.epsilon),
        1e-5,
    )
    torch.testing.assert_close(torch.stack(terms), torch.stack(expected_terms))


def test_classes_found_by_themselves(generator):
    embeddings, labels = draw(20, 6, 5, generator)
    sparse = torch.tensor([7, 10**12, 3, 0, 5], device=DEVICE)[labels]
    torch.testing.assert_close(
        VarConLoss().to(DEVICE)(embeddings, sparse), VarConLoss(5).to(DEVICE)(embeddings, labels)
    )


def test_embeddings_of_any_length(generator):
    """Not normalised they may be long or short; the twin's products are float32, the kernel's float16."""
    for scale in (1e-6, 30.0, 1e5):
        embeddings, labels = draw(20, 6, 5, generator)
        embeddings = (embeddings.detach() * scale).requires_grad_()
        loss_fn = VarConLoss(5, temperature=scale, normalize=False, epsilon=0, epsilon_range=(0, 0)).to(
            DEVICE
        )
        exact = embeddings.detach().double().requires_grad_()
        expected = value_and_gradients(loss_fn(exact, labels), exact, loss_fn.epsilon)
        got = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
        assert_close(got, expected, 1e-4, scale)


def test_extreme_confidence_is_finite():
    for dtype in TOLERANCE:
        for labels in ([0, 1, 2, 3], [1, 0, 1, 0]):
            embeddings = torch.eye(4, device=DEVICE, dtype=dtype).requires_grad_()
            loss_fn = VarConLoss(4, temperature=0.005, epsilon=0.0049, epsilon_range=(0, 0.0049)).to(DEVICE)
            loss = loss_fn(embeddings, torch.tensor(labels, device=DEVICE))
            got = value_and_gradients(loss, embeddings, loss_fn.epsilon)
            assert all(value.isfinite().all() for value in got)


def test_one_present_class_costs_nothing(generator):
    embeddings, _ = draw(9, 5, 4, generator)
    loss_fn = VarConLoss(4).to(DEVICE)
    loss = loss_fn(embeddings, torch.full((9,), 2, device=DEVICE))
    for value in value_and_gradients(loss, embeddings, loss_fn.epsilon):
        assert value.abs().max() == 0


def loss_of(embeddings, labels, classes, **options):
    epsilon = torch.tensor(0.02, device=DEVICE, requires_grad=True)
    sums = fused_loss.sum_classes(embeddings.detach(), labels, classes, True)
    return fused_loss.fused_varcon_loss(embeddings, epsilon, labels, sums, 0.1, **options), epsilon


@pytest.mark.parametrize("spoil", ["negative", "too large", "zero", "too short", "nan"])
def test_bad_samples_make_the_loss_nan(spoil, generator):
    embeddings, labels = draw(20, 6, 5, generator)
    embeddings = embeddings.detach()
    running = VarConLoss(5, references="ema").to(DEVICE)
    fused_step = partial(running._fused, num_classes=5, learn=True, temperature=None)
    with torch.no_grad():
        running._make_room(embeddings)
        fused_step(embeddings, labels)
    bank = running.bank.clone()
    if spoil in ("zero", "too short", "nan"):
        embeddings[7] = {"zero": 0.0, "too short": 1e-14, "nan": torch.nan}[spoil]
    else:
        labels[7] = {"negative": -3, "too large": 10**12}[spoil]
    with torch.no_grad():
        assert fused_step(embeddings, labels)[0].isnan()
    assert torch.equal(running.bank, bank)
    (loss, _), epsilon = loss_of(embeddings.requires_grad_(), labels, 5)
    assert loss.isnan()
    if spoil != "nan":  # a NaN spoils its class's reference and through it every sample
        by_embeddings, by_epsilon = torch.autograd.grad(loss, (embeddings, epsilon))
        assert by_embeddings[7].abs().max() == 0
        assert by_embeddings.isfinite().all()
        assert by_epsilon.isfinite()


def test_parts_of_a_batch_average_to_the_whole(generator):
    """As processes do: the class sums added, each part's loss weighted as its share of the batch."""
    embeddings, labels = draw(50, 6, 5, generator)
    (whole, _), epsilon = loss_of(embeddings, labels, 5)
    expected = value_and_gradients(whole, embeddings, epsilon)
    parts = (slice(0, 13), slice(13, 50))
    sums = sum(fused_loss.sum_classes(embeddings[part].detach(), labels[part], 5, True) for part in parts)
    losses = [
        fused_loss.fused_varcon_loss(embeddings[part], epsilon, labels[part], sums, 0.1, processes=2)[0]
        for part in parts
    ]
    assert_close(value_and_gradients(sum(losses) / 2, embeddings, epsilon), expected, 1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_class_sums_in_a_fixed_order(normalize, generator):
    embeddings, labels = draw(300, 24, 7, generator)
    any_order = fused_loss.sum_classes(embeddings.detach(), labels, 9, normalize)
    torch.use_deterministic_algorithms(True)
    try:
        fixed = [fused_loss.sum_classes(embeddings.detach(), labels, 9, normalize) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*fixed)
    torch.testing.assert_close(fixed[0], any_order, rtol=1e-5, atol=1e-5)
    sums, counts = fused_loss.split_sums(any_order, 24)
    z = F.normalize(embeddings.detach().double(), dim=1) if normalize else embeddings.detach().double()
    expected = F.one_hot(labels, 9).double().T @ z
    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)
    assert counts.tolist() == labels.bincount(minlength=9).tolist()


def test_loss_may_be_changed_in_place(generator):
    embeddings, labels = draw(20, 6, 5, generator)
    (loss, _), epsilon = loss_of(embeddings, labels, 5)
    expected = [value / 4 for value in value_and_gradients(loss, embeddings, epsilon)]
    (loss, _), epsilon = loss_of(embeddings, labels, 5)
    loss /= 4
    assert_close(value_and_gradients(loss, embeddings, epsilon), expected, 1e-6)


def test_operators_keep_the_compilers_rules(generator):
    embeddings, labels = draw(20, 6, 5, generator)
    sums = fused_loss.sum_classes(embeddings.detach(), labels, 5, True)
    first = torch.library.opcheck(
        torch.ops.varcon.sum_classes.default, (embeddings.detach(), labels, 5, True)
    )
    epsilon = torch.tensor(0.02, device=DEVICE)
    second = torch.library.opcheck(
        torch.ops.varcon.loss_and_gradients.default,
        (embeddings.detach(), epsilon, labels, sums, None, None, 0.1, None, 1, False, False, True),
        test_utils=("test_schema", "test_faketensor"),  # the order of atomic additions is free
    )
    assert {*first.values(), *second.values()} == {"SUCCESS"}


# torch's own tracer instantiates the function it warns against instantiating.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]])
def test_compiles_to_the_same_loss(options, generator, fresh_compiler):
    eager, compiled = (VarConLoss(5, **options).to(DEVICE) for _ in range(2))
    fast = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        embeddings, labels = draw(20, 6, 5, generator)
        expected = value_and_gradients(eager(embeddings, labels), embeddings, eager.epsilon)
        got = value_and_gradients(fast(embeddings, labels), embeddings, compiled.epsilon)
        assert_close(got, expected, 1e-5, options)


def test_a_second_derivative_is_refused(generator):
    embeddings, labels = draw(12, 16, 4, generator)
    by_embeddings = torch.autograd.grad(
        VarConLoss(4).to(DEVICE)(embeddings, labels), embeddings, create_graph=True
    )[0]
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(by_embeddings.square().sum(), embeddings)


def test_fixed_epsilon_has_no_gradient(generator):
    embeddings, labels = draw(10, 6, 3, generator)
    loss_fn = VarConLoss(3, learn_epsilon=False).to(DEVICE)
    loss_fn(embeddings, labels).backward()
    assert loss_fn.epsilon.grad is None
    assert embeddings.grad.abs().max() > 0


def test_falls_back_where_the_kernel_does_not_serve(generator, monkeypatch):
    embeddings, labels = draw(10, 6, 3, generator)
    assert kernels.loss_kernel_serves(embeddings)
    assert not kernels.loss_kernel_serves(embeddings.double())
    assert not kernels.loss_kernel_serves(embeddings.new_zeros(10, 513))
    expected = VarConLoss(3).to(DEVICE)(embeddings, labels)
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    assert not kernels.loss_kernel_serves(embeddings)
    torch.testing.assert_close(VarConLoss(3).to(DEVICE)(embeddings, labels), expected)


@pytest.fixture
def training():
    """A batch of the size that the kernel is made for, and one step of it: loss and gradients."""
    generator = torch.Generator()
    print("seed", generator.seed())  # a new one; shown if the test fails
    embeddings, labels = draw(8192, 128, 1000, generator)
    loss_fn = VarConLoss(1000).cuda()

    def step():
        return value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)

    return loss_fn, embeddings, labels, step


def exactly(embeddings, labels, **options):
    """By the twin in float64, which the tests of the loss compare with the definition."""
    exact = embeddings.detach().double().requires_grad_()
    loss_fn = VarConLoss(1000, **options).cuda().double()
    return value_and_gradients(loss_fn(exact, labels), exact, loss_fn.epsilon)


SMALLER = """
capability = 86
from varcon.kernels import fused_loss
fused_loss.is_roomy = lambda device: False
for kind, now in ((torch.float32, None), (torch.bfloat16, torch.tensor(0.3))):  # where tau1 moves, too
    for width in (64, 128, 200, 256, 300, 512):
        embeddings, labels = torch.zeros(100, width, dtype=kind), torch.zeros(100, dtype=torch.int64)
        sums = fused_loss.sum_classes(embeddings, labels, 10, True)
        fused_loss.fused_varcon_loss(embeddings, torch.tensor(0.02), labels, sums, 0.1, temperature_now=now)
        for name, size in shared.items():
            assert size <= 99 * 1024, (name, kind, width, size)
print(len(launched))
"""


def test_it_fits_into_the_shared_memory_of_smaller_gpus(tmp_path):
    """Compiled for one of 99 KiB, as those of desktops have."""
    assert run_with_compiler(DRIVER + SMALLER, tmp_path) == "36\n"


def test_who_has_shared_memory_and_who_is_too_old(monkeypatch):
    device = torch.device("cuda:1")
    on_gpu = SimpleNamespace(device=device, is_cuda=True, dtype=torch.float32, shape=(4, 128))
    for capability, roomy, serves in (
        ((7, 5), False, False),
        ((8, 0), True, True),
        ((8, 9), False, True),
        ((9, 0), True, True),
        ((12, 0), False, True),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where, found=capability: found)
        properties = SimpleNamespace(major=capability[0])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda where, found=properties: found)
        fused_loss.is_roomy.cache_clear()
        assert fused_loss.is_roomy(device) == roomy
        assert kernels.loss_kernel_serves(on_gpu) == serves
    fused_loss.is_roomy.cache_clear()


def test_a_compiler_knows_the_gpu_beforehand(monkeypatch, fresh_compiler):
    """Without a break in its graph. Where there is no GPU, the end of torch's way to its properties is
    replaced."""
    if not torch.cuda.is_available():
        properties = object.__new__(torch.cuda._CudaDeviceProperties)
        properties.major = 8
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "_get_device_properties", lambda number: properties, raising=False)

    def doubled_if_it_serves(x):
        return 2 * x if kernels.has_shared_memory(torch.device("cuda", 0)) else x

    compiled = torch.compile(doubled_if_it_serves, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "compiled"), [*[(dtype, False) for dtype in TOLERANCE], (torch.float32, True)]
)
@pytest.mark.parametrize("options", OPTIONS)
def test_on_a_gpu(dtype, compiled, options, training, fresh_compiler):
    _, embeddings, labels, _ = training
    embeddings = embeddings.detach().to(dtype).requires_grad_()
    loss_fn = VarConLoss(1000, **options).cuda()
    apply = torch.compile(loss_fn) if compiled else loss_fn
    got = value_and_gradients(apply(embeddings, labels), embeddings, loss_fn.epsilon)
    assert_close(got, exactly(embeddings, labels, **options), TOLERANCE[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("dimensions", [24, 256, 512])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_width_on_a_gpu(dimensions, dtype):
    generator = torch.Generator().manual_seed(dimensions)
    embeddings, labels = draw(1000, dimensions, 1000, generator, dtype)
    for options in ({}, {"references": "leave-one-out"}):
        loss_fn = VarConLoss(1000, **options).cuda()
        got = value_and_gradients(loss_fn(embeddings, labels), embeddings, loss_fn.epsilon)
        assert_close(got, exactly(embeddings, labels, **options), TOLERANCE[dtype], options)


class Calls(TorchDispatchMode):
    """The operations that are called, but for those that launch nothing."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if not name.startswith("empty") and not function.is_view:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def test_the_way_back_is_two_products(generator):
    """And autograd's own 1; no zeros for the terms, which nobody differentiates."""
    embeddings, labels = draw(70, 24, 20, generator)
    loss = VarConLoss(20).to(DEVICE)(embeddings, labels)
    with Calls() as calls:
        loss.backward()
    assert calls.names == ["ones_like", "mul", "mul"]


@pytest.mark.gpu
def test_few_launches_and_no_waiting(training):
    """Clamping epsilon, zeros, three kernels; two products in the backward pass, and autograd's own 1."""
    loss_fn, embeddings, labels, _ = training
    loss_fn(embeddings, labels).backward()
    torch.cuda.synchronize()
    embeddings.grad = loss_fn.epsilon.grad = None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as profile:
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss_fn(embeddings, labels).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    launches = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    assert 5 <= len(launches) <= 8, launches


@pytest.mark.gpu
def test_captured_in_a_cuda_graph(training):
    _, embeddings, labels, step = training
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    with torch.no_grad():
        embeddings.copy_(torch.randn_like(embeddings))
        labels.copy_(labels.flip(0))
    for _ in range(2):  # the count of finished programs starts anew
        for result in results:
            result.fill_(torch.nan)
        graph.replay()
        assert_close(results, exactly(embeddings, labels), 1e-4)


@pytest.mark.gpu
def test_deterministic_on_a_gpu(training):
    _, embeddings, labels, step = training
    torch.use_deterministic_algorithms(True)
    try:
        first, second = step(), step()
    finally:
        torch.use_deterministic_algorithms(False)
    for ours, again in zip(first, second, strict=True):
        assert torch.equal(ours, again)
    assert_close(first, exactly(embeddings, labels), 1e-4)


@pytest.mark.gpu
def test_memory_with_a_million_classes(generator):
    embeddings = torch.randn(8192, 128, generator=generator).cuda().requires_grad_()
    labels = torch.randint(0, 10**6, (8192,), generator=generator).cuda()
    for options in ({}, {"references": "ema", "classes": "all"}):
        loss_fn = VarConLoss(10**6, **options).cuda()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss_fn(embeddings, labels).backward()
        assert torch.cuda.max_memory_allocated() - before < 4 * 2**30, options
