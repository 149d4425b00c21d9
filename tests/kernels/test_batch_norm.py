"""The fused kernels against torch in float64: on a GPU, or in Triton's interpreter."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from references.kernels import DRIVER, run_with_compiler
from references.norm_oracle import DEVICE, difference, draw, drawn_norm
from torch import nn

from varcon.encoders import EncoderSettings
from varcon.kernels import norms

pytest.importorskip("triton")
from varcon.kernels import batch_norm, pointwise
from varcon.kernels.batch_norm import norm_add_relu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("two", [False, True], ids=["one gradient", "two gradients"])
@pytest.mark.parametrize("kind", ["no skip", "skip", "normalised skip"])
@pytest.mark.parametrize("shape", [(3, 8, 7, 5), (2, 136, 3, 3), (5, 24, 16, 16)])
def test_value_gradients_and_statistics(shape, kind, two, dtype, generator):
    norm, oracle = drawn_norm(shape[1], generator)
    skip_norm, skip_oracle = drawn_norm(shape[1], generator) if kind == "normalised skip" else (None, None)
    x = draw(shape, generator, dtype, 3.0, 2.0)
    skip = None if kind == "no skip" else draw(shape, generator, dtype, 3.0, 2.0)
    first, second = (draw(shape, generator, dtype, 3.0, 2.0).detach() for _ in range(2))
    outputs = norm_add_relu(x, norm, skip, skip_norm)
    torch.autograd.backward(outputs if two else outputs[:1], (first, second) if two else (first,))

    exact_x = x.detach().double().requires_grad_()
    expected = oracle(exact_x)
    if skip is not None:
        exact_skip = skip.detach().double().requires_grad_()
        expected = expected + (skip_oracle(exact_skip) if skip_oracle else exact_skip)
    expected = expected.relu()
    expected.backward(first.double() + second.double() if two else first.double())

    near = 1e-6 if dtype == torch.float32 else 5e-3
    assert difference(outputs[0], expected) < near
    assert torch.equal(*outputs)
    assert difference(x.grad, exact_x.grad) < 2 * near
    if skip is not None:
        assert difference(skip.grad, exact_skip.grad) < 2 * near
    for ours, theirs in ((norm, oracle), (skip_norm, skip_oracle)) if skip_norm else ((norm, oracle),):
        for mine, exact in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert difference(mine.grad, exact.grad) < (2e-5 if dtype == torch.float32 else 5e-3)
        for mine, exact in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert difference(mine, exact) < 1e-6


def test_a_mean_far_from_zero_does_not_cancel(generator):
    """Deviations of 1 around 10,000: the plain mean of squares in float32 would lose the variance."""
    norm = nn.BatchNorm2d(8).to(DEVICE)
    nn.init.constant_(norm.bias, 10)  # past the ReLU
    values = 1e4 + torch.randn(4, 8, 16, 16, generator=generator)
    x = values.to(DEVICE).contiguous(memory_format=torch.channels_last)
    y, _ = norm_add_relu(x, norm)
    assert y.std().item() == pytest.approx(1, abs=1e-3)
    assert y.mean().item() == pytest.approx(10, abs=1e-3)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in Triton's interpreter
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("with_skip", [False, True])
def test_what_is_not_finite_shows(bad, with_skip, generator):
    """In its whole channel and in the running statistics, as with torch: so a diverged network is found."""
    norm, other = nn.BatchNorm2d(8).to(DEVICE), nn.BatchNorm2d(8).to(DEVICE)
    values = torch.randn(2, 8, 4, 4, generator=generator)
    values[1, 3, 2, 2] = bad
    x = values.to(DEVICE).contiguous(memory_format=torch.channels_last)
    skip = torch.zeros_like(x) if with_skip else None
    y, _ = norm_add_relu(x, norm, skip)
    expected = other(x).relu()
    assert torch.equal(y.isnan(), expected.isnan())
    assert y[:, 3].isnan().all()
    assert torch.equal(norm.running_mean.isfinite(), other.running_mean.isfinite())
    assert torch.equal(norm.running_var.isfinite(), other.running_var.isfinite())


def test_an_encoder_in_kernels_is_the_same_encoder(monkeypatch, generator):
    """A whole network, both ways and in float64: gradients as exact as torch's, and running statistics."""
    images = torch.randn(6, 3, 16, 16, generator=generator).to(DEVICE)
    plain = EncoderSettings("small").build().to(DEVICE, memory_format=torch.channels_last)
    fused = copy.deepcopy(plain)
    exact = copy.deepcopy(plain).double()
    monkeypatch.setattr(norms, "fused_serves", lambda x, norm: False)
    exact(images.double()).square().sum().backward()
    plain(images).square().sum().backward()
    monkeypatch.setattr(norms, "fused_serves", lambda x, norm: True)
    fused(images).square().sum().backward()
    for ours, theirs, true in zip(fused.parameters(), plain.parameters(), exact.parameters(), strict=True):
        assert difference(ours.grad, true.grad) < max(1e-5, 3 * difference(theirs.grad, true.grad))
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(fused.state_dict()[name].to(value.dtype), value, rtol=1e-4, atol=1e-5)


def test_who_is_served():
    """The CPU, evaluation and odd numbers of channels are the plain path's."""
    norm, x = nn.BatchNorm2d(8), torch.zeros(2, 8, 4, 4)
    assert not norms.fused_serves(x, norm)

    def on_gpu(*shape):
        size = torch.Size(shape)
        return SimpleNamespace(is_cuda=True, dtype=torch.float32, shape=size, numel=size.numel)

    assert norms.fused_serves(on_gpu(2, 8, 4, 4), norm)
    assert not norms.fused_serves(on_gpu(1, 8, 1, 1), norm)  # torch says what is wrong with a single pixel
    assert not norms.fused_serves(on_gpu(2, 8, 4, 4), norm.eval())
    assert not norms.fused_serves(on_gpu(2, 12, 4, 4), nn.BatchNorm2d(12))


def test_kernels_are_launched_where_their_tensors_lie(monkeypatch):
    """Triton takes the current device, which on a machine with several may be another."""
    entered = []
    for module in (batch_norm, pointwise):
        monkeypatch.setattr(module, "on_device_of", lambda x: entered.append(x.shape) or nullcontext())
    x, norm = torch.randn(2, 8, 4, 4, device=DEVICE), nn.BatchNorm2d(8).to(DEVICE)
    batch_norm.norm_add_relu(x, norm)
    pointwise.convolve_norm(x, torch.randn(8, 8, 1, 1, device=DEVICE), norm)
    pointwise.convolve_images(x[:, :3], torch.randn(8, 3, 3, 3, device=DEVICE), norm)
    assert [shape[1] for shape in entered] == [8, 8, 3, 32]


SMALLER = """
capability = 86
from torch import nn
from varcon.kernels.batch_norm import norm_add_relu
for kind in (torch.float32, torch.bfloat16):
    x = torch.ones(2, 64, 4, 4, dtype=kind, requires_grad=True)
    for skip, skip_norm in ((None, None), (x, None), (x, nn.BatchNorm2d(64))):
        for gradients in (1, 2):
            outputs = norm_add_relu(x, nn.BatchNorm2d(64), skip, skip_norm)[:gradients]
            torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
            for name, size in shared.items():
                assert size <= 99 * 1024, (name, kind, skip_norm, gradients, size)
print(sum("_gradient_sums" in name for name in launched))
"""


def test_it_fits_into_the_shared_memory_of_smaller_gpus(tmp_path):
    """Compiled for one of 99 KiB, as those of desktops have, in all types and kinds."""
    assert run_with_compiler(DRIVER + SMALLER, tmp_path) == "12\n"


@pytest.mark.gpu
def test_kernels_repeat_bit_for_bit(generator):
    norm = nn.BatchNorm2d(256).to(DEVICE)
    x, skip = (draw((64, 256, 32, 32), generator, torch.bfloat16, 3.0, 2.0) for _ in range(2))
    results = []
    for _ in range(2):
        norm.zero_grad()
        x.grad = skip.grad = None
        y, again = norm_add_relu(x, norm, skip)
        torch.autograd.backward((y, again), (x.detach(), skip.detach()))
        results.append((y, x.grad, skip.grad, norm.weight.grad, norm.bias.grad))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
