"""Losses whose gradient is written out have no second derivative, and must not seem to have one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Gradients = Callable[..., Any]


def once_alone(backward: Gradients) -> Gradients:
    """torch's once_differentiable, which refuses a second derivative only where what comes from above has a
    derivative itself. Of a loss that is 1, and the second derivative would be 0 without a word."""
    once: Gradients = once_differentiable(backward)

    @wraps(backward)
    def refusing(ctx: Any, *by_outputs: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph
            by_outputs = tuple(one if one is None else one.detach().requires_grad_() for one in by_outputs)
        return once(ctx, *by_outputs)

    return refusing
