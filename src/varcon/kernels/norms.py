"""Batch normalisation with what follows it in a residual network: by the fused kernels where they serve."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.kernels import HAS_TRITON

POINTWISE_CHANNELS = 128  # on an H200 `convolve_norm` is faster up to here (ResNet-50's first two stages)


def norm_add_relu(
    x: Tensor,
    norm: nn.BatchNorm2d,
    skip: Tensor | None = None,
    skip_norm: nn.BatchNorm2d | None = None,
) -> tuple[Tensor, Tensor]:
    """relu(norm(x) + skip), where the skip too may have a norm, twice: for what comes next, and for the skip
    past it.

    The two are one and the same, but a kernel that is told their gradients apart saves a pass over them.
    """
    if fused_serves(x, norm):
        from varcon.kernels.batch_norm import norm_add_relu as fused

        return fused(x, norm, skip, skip_norm)
    y = norm(x)
    if skip is not None:
        y = y + (skip_norm(skip) if skip_norm else skip)
    y = F.relu(y, inplace=True)
    return y, y


def convolve_norm_add_relu(
    x: Tensor,
    convolution: nn.Conv2d,
    norm: nn.BatchNorm2d,
    skip: Tensor,
    skip_norm: nn.BatchNorm2d | None = None,
) -> tuple[Tensor, Tensor]:
    """relu(norm(convolution(x)) + skip), twice as above, for a 1x1 convolution."""
    if skip_norm is None and pointwise_serves(x, norm):
        from varcon.kernels.pointwise import convolve_norm as fused

        return fused(x, convolution.weight, norm, skip, relu=True)
    return norm_add_relu(convolution(x), norm, skip, skip_norm)


def convolve_norm(
    x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d
) -> tuple[Tensor, nn.BatchNorm2d | None]:
    """norm(convolution(x)) for a 1x1 convolution; or without the norm, which is then left to be applied."""
    down, across = convolution.stride
    seen = x[:, :, ::down, ::across]
    if pointwise_serves(seen, norm):
        from varcon.kernels.pointwise import convolve_norm as fused

        return fused(seen, convolution.weight, norm)[0], None
    return convolution(x), norm


def convolve_images(images: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """relu(norm(convolution(images))), twice as above."""
    if images_serve(images, convolution, norm):
        from varcon.kernels.pointwise import convolve_images as fused

        return fused(images, convolution.weight, norm)
    return norm_add_relu(convolution(images), norm)


def images_serve(images: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    """A 3x3 convolution that keeps the size, and images that want no gradient, in one of the short types."""
    return (
        fused_serves(images, norm)
        and images.dtype != torch.float32
        and convolution.kernel_size == (3, 3)
        and convolution.stride == (1, 1)
        and convolution.padding == (1, 1)
        and not images.requires_grad
    )


def pointwise_serves(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Where few channels are widened in one of the short types: elsewhere the statistics beforehand cost more
    than they spare."""
    return (
        fused_serves(x, norm)
        and x.dtype != torch.float32
        and x.shape[1] <= POINTWISE_CHANNELS
        and x.shape[1] % 8 == 0
    )


def fused_serves(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether this is training on a GPU, in whole bytes of mask bits; a compiler has fusions of its own. Of a
    single pixel torch says that it has no deviation."""
    return (
        HAS_TRITON
        and x.is_cuda
        and norm.training
        and x.numel() > x.shape[1]
        and x.dtype != torch.float64
        and norm.num_features % 8 == 0
        and not torch.compiler.is_compiling()
    )
