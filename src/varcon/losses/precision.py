"""Losses are computed in float32 or better, whatever the rest of a step runs in."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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
