"""Losses whose gradient is written out have no second derivative, and must not seem to have one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def first_only(gradients: tuple[Tensor | None, ...], of: Tensor) -> tuple[Tensor | None, ...]:
    """What a backward pass returns, so that whoever derives it by `of` once more gets an error.

    torch's once_differentiable refuses that only where what comes from above has a derivative itself. Of a
    loss that is 1, and its second derivative would be 0 without a word.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # without create_graph
        return gradients
    return tuple(None if one is None else _Refusing.apply(one.detach(), of) for one in gradients)


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, of: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("the VarCon loss has no second derivative; by learned references it has one")
