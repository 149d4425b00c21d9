"""Batch normalisation with what follows it in a residual network: by the fused kernels where they serve."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.kernels import HAS_TRITON


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
    x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d, skip: Tensor
) -> tuple[Tensor, Tensor]:
    """relu(norm(convolution(x)) + skip), twice as above, for a 1x1 convolution."""
    if pointwise_serves(x, norm):
        from varcon.kernels.pointwise import convolve_norm as fused

        return fused(x, convolution.weight, norm, skip)
    return norm_add_relu(convolution(x), norm, skip)


def convolve_norm(x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """norm(convolution(x)) for a 1x1 convolution, which a stride makes one of fewer pixels."""
    if pointwise_serves(x, norm):
        from varcon.kernels.pointwise import convolve_norm as fused

        down, across = convolution.stride
        return fused(x[:, :, ::down, ::across], convolution.weight, norm)[0]
    result: Tensor = norm(convolution(x))
    return result


def pointwise_serves(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """In the short types: in float32 the statistics beforehand would cost more than they spare."""
    return fused_serves(x, norm) and x.dtype != torch.float32 and norm.num_features % 8 == 0


def fused_serves(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether this is training on a GPU, in whole bytes of mask bits; a compiler has fusions of its own."""
    return (
        HAS_TRITON
        and x.is_cuda
        and norm.training
        and x.dtype != torch.float64
        and x.shape[1] % 8 == 0
        and not torch.compiler.is_compiling()
    )
