"""The convolution that knows its statistics beforehand, against torch in float64: on a GPU, or in Triton's
interpreter."""

import copy

import pytest
import torch
import torch.nn.functional as F
from references.norm_oracle import DEVICE, difference, draw, drawn_norm
from torch import nn

from varcon.encoders.resnet import Bottleneck, ResNet
from varcon.kernels import norms

pytest.importorskip("triton")
from varcon.kernels.pointwise import convolve_images, convolve_norm

# The interpreter takes the bits of bf16 for integers where it multiplies matrices.
SHORT = torch.bfloat16 if torch.cuda.is_available() else torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
@pytest.mark.parametrize("kind", ["alone", "two gradients alone", "cut", "one gradient", "two gradients"])
@pytest.mark.parametrize(
    ("images", "narrow", "wide", "size"), [(3, 8, 32, 7), (2, 24, 136, 9), (5, 136, 72, 5)]
)
def test_value_gradients_and_statistics(images, narrow, wide, size, kind, dtype, generator):
    norm, oracle = drawn_norm(wide, generator)
    x = draw((images, narrow, size, size), generator, dtype, mean=0.5)
    weight = draw((wide, narrow, 1, 1), generator, dtype)
    with_skip = kind.endswith(("gradient", "gradients"))
    skip = draw((images, wide, size, size), generator, dtype) if with_skip else None
    first, second = (draw((images, wide, size, size), generator, dtype, 0.1).detach() for _ in range(2))
    relu = skip is not None or kind == "cut"
    outputs = convolve_norm(x, weight, norm, skip, relu)
    two = kind.startswith("two")
    torch.autograd.backward(outputs if two else outputs[:1], (first, second) if two else (first,))

    leaves = [leaf for leaf in (x, weight, skip) if leaf is not None]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = oracle(F.conv2d(exact[0], exact[1]))
    if skip is not None:
        expected = expected + exact[2]
    expected = expected.relu() if relu else expected
    expected.backward(first.double() + second.double() if two else first.double())

    near = 2e-6 if dtype == torch.float32 else 5e-3
    assert difference(outputs[0], expected) < near
    assert torch.equal(*outputs)
    for ours, theirs in zip(leaves, exact, strict=True):
        assert difference(ours.grad, theirs.grad) < 4 * near
    for mine, theirs in zip(norm.parameters(), oracle.parameters(), strict=True):
        assert difference(mine.grad, theirs.grad) < (2e-5 if dtype == torch.float32 else 5e-3)
    for mine, theirs in zip(norm.buffers(), oracle.buffers(), strict=True):
        assert difference(mine, theirs) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, SHORT])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize(
    ("count", "channels", "wide", "height", "width"), [(3, 3, 32, 7, 5), (2, 1, 72, 9, 16), (65, 5, 8, 3, 1)]
)
def test_a_convolution_of_images(count, channels, wide, height, width, two, dtype, generator):
    norm, oracle = drawn_norm(wide, generator)
    images = draw((count, channels, height, width), generator, dtype, mean=0.5).detach()
    weight = draw((wide, channels, 3, 3), generator, dtype)
    first, second = (draw((count, wide, height, width), generator, dtype, 0.1).detach() for _ in range(2))
    outputs = convolve_images(images, weight, norm)
    torch.autograd.backward(outputs if two else outputs[1:], (first, second) if two else (second,))

    exact = weight.detach().double().requires_grad_()
    expected = oracle(F.conv2d(images.double(), exact, padding=1)).relu()
    expected.backward(first.double() + second.double() if two else second.double())
    near = 2e-6 if dtype == torch.float32 else 5e-3
    assert difference(outputs[0], expected) < near
    assert difference(weight.grad, exact.grad) < 4 * near
    for mine, theirs in zip(norm.parameters(), oracle.parameters(), strict=True):
        assert difference(mine.grad, theirs.grad) < (2e-5 if dtype == torch.float32 else 5e-3)
    for mine, theirs in zip(norm.buffers(), oracle.buffers(), strict=True):
        assert difference(mine, theirs) < 1e-5


@pytest.mark.parametrize("most", [16, 64])
def test_an_encoder_in_kernels_is_the_same_encoder(most, monkeypatch, generator):
    """A whole network of bottlenecks, both ways, with kernels for all of it or for the narrower convolutions:
    gradients and running statistics. Images are centred, as an encoder sees them: far from 0 products lose
    digits, which shows in float32 alone."""
    torch.manual_seed(0)  # of the weights: with some, a value lies so near a ReLU's corner that it tips over
    images = torch.randn(4, 3, 16, 16, generator=generator).to(DEVICE)
    plain = ResNet(Bottleneck, (2, 1), width=8).to(DEVICE, memory_format=torch.channels_last)
    fused = copy.deepcopy(plain)
    exact = copy.deepcopy(plain).double()
    exact(images.double()).square().sum().backward()
    plain(images).square().sum().backward()
    monkeypatch.setattr(norms, "pointwise_serves", lambda x, norm: x.shape[1] <= most)
    monkeypatch.setattr(norms, "images_serve", lambda images, convolution, norm: True)
    fused(images).square().sum().backward()
    for ours, theirs, true in zip(fused.parameters(), plain.parameters(), exact.parameters(), strict=True):
        assert difference(ours.grad, true.grad) < max(1e-5, 3 * difference(theirs.grad, true.grad))
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(fused.state_dict()[name].to(value.dtype), value, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_kernels_repeat_bit_for_bit(generator):
    norm = nn.BatchNorm2d(256).to(DEVICE)
    x = draw((64, 64, 32, 32), generator, torch.bfloat16)
    weight = draw((256, 64, 1, 1), generator, torch.bfloat16)
    skip = draw((64, 256, 32, 32), generator, torch.bfloat16)
    results = []
    for _ in range(2):
        norm.zero_grad()
        x.grad = weight.grad = skip.grad = None
        outputs = convolve_norm(x, weight, norm, skip, relu=True)
        torch.autograd.backward(outputs, (skip.detach(), skip.detach()))
        results.append((outputs[0], x.grad, weight.grad, skip.grad, norm.weight.grad, norm.bias.grad))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))
