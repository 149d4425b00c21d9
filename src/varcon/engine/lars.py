"""LARS: SGD for large batches, each layer with a rate by the size of its weights (You et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TRUST = 0.001  # of a layer's size, how far it may move in a step; the paper's, and everybody's since


class LARS(torch.optim.Optimizer):
    """v = momentum v + rate * trust * |w| / (|g| + decay |w|) * (g + decay w), and w goes down by v.

    Groups with `adapt` false are those of plain SGD: biases and norms, whose size says nothing. The layers of
    a group move together, but for their factors, one launch each; nothing waits for the device, so that a
    step can be a CUDA graph.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "adapt": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("LARS looks at each gradient once and takes no closure")
        for group in self.param_groups:
            pulled = [(weight, weight.grad) for weight in group["params"] if weight.grad is not None]
            if pulled:
                weights, slopes = (list(tensors) for tensors in zip(*pulled, strict=True))
                self._move(weights, slopes, group)

    def _move(self, weights: list[Tensor], slopes: list[Tensor], group: dict[str, Any]) -> None:
        speeds = [self._speed(weight) for weight in weights]
        decay, rate = group["weight_decay"], group["lr"]
        steps = torch._foreach_add(slopes, weights, alpha=decay)
        if group["adapt"]:
            large, steep = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, slopes))
            pulled = steep + decay * large
            # A layer of zeros, or one that nothing pulls at, has no size to go by.
            sound = (large > 0) & (pulled > 0)
            factors = torch.where(sound, TRUST * large / pulled, 1.0) * rate
            torch._foreach_mul_(steps, list(factors.unbind()))
        else:
            torch._foreach_mul_(steps, rate)
        torch._foreach_mul_(speeds, group["momentum"])
        torch._foreach_add_(speeds, steps)
        torch._foreach_sub_(weights, speeds)

    def _speed(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        speed: Tensor = state["momentum_buffer"]
        return speed
