"""A moving average of the weights, which is judged better than the last ones it was made of."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from varcon.core import Method


class WeightAverage:
    """Of what survives training: the encoder and, of a method that has one, the classifier.

    BatchNorm's running statistics are averaged along. The first steps count evenly, so that the random
    beginning is soon forgotten.
    """

    def __init__(self, method: Method, momentum: float) -> None:
        self.momentum = momentum
        self.kept = copy.deepcopy(surviving(method)).requires_grad_(False)
        self.pace = torch.ones((), device=next(method.parameters()).device)

    def before_step(self, step: int) -> None:
        self.pace.fill_(max(1 - self.momentum, 1 / (step + 1)))

    @torch.no_grad()
    def follow(self, method: Method) -> None:
        """May be captured as a CUDA graph: reads and writes tensors that stay."""
        own, theirs = floats(self.kept), floats(surviving(method))
        change = torch._foreach_sub(theirs, own)
        torch._foreach_mul_(change, self.pace)
        torch._foreach_add_(own, change)

    @torch.no_grad()
    def take_place(self, method: Method) -> None:
        """The method goes on as its average."""
        torch._foreach_copy_(floats(surviving(method)), floats(self.kept))


def surviving(method: Method) -> nn.ModuleDict:
    parts: dict[str, nn.Module] = {"encoder": method.encoder}
    if method.classifier is not None:
        parts["classifier"] = method.classifier
    return nn.ModuleDict(parts)


def floats(module: nn.Module) -> list[Tensor]:
    """Parameters and running statistics, but no counters."""
    return [value for value in module.state_dict().values() if value.is_floating_point()]
