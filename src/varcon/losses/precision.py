"""Losses are computed in float32 or better, whatever the rest of a step runs in."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def products(a: Tensor, b: Tensor) -> Tensor:
    """[N, M] of the rows of `a` [N, d] with those of `b` [M, d], with a gradient of the same precision."""
    return _Products.apply(a, b)


class _Products(torch.autograd.Function):
    """torch.compile makes a backward pass under the autocast of whoever called the forward pass.

    Matrix products on the way back would then be rounded to half precision, whatever the loss had asked for.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.T

    @staticmethod
    def backward(ctx: Any, by_products: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        with torch.autocast(by_products.device.type, enabled=False):
            return (
                by_products @ b if ctx.needs_input_grad[0] else None,
                by_products.T @ a if ctx.needs_input_grad[1] else None,
            )


def full_precision(loss: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Runs a loss outside autocast, its half-precision tensors widened to float32."""

    def widened(value: Any) -> Any:
        half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if half else value

    @wraps(loss)
    def precise(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        with torch.autocast(device.type, enabled=False):
            return loss(*map(widened, args), **{name: widened(value) for name, value in kwargs.items()})

    return precise
