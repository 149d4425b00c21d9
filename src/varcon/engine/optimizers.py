"""Which parameters decay, how fast each learns, and how the learning rate moves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from varcon.core import Method, Progress
from varcon.engine.lars import LARS
from varcon.recipe import TrainSettings


def build_optimizer(method: Method, settings: TrainSettings) -> torch.optim.Optimizer:
    """SGD or LARS in groups by weight decay and rate; each keeps its factor of the rate, `rate_scale`."""
    groups: dict[tuple[int, float], list[torch.nn.Parameter]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            # Biases and norms have one dimension, scalars such as epsilon none.
            key = min(parameter.ndim, 2), method.learning_rate_scale(name)
            groups.setdefault(key, []).append(parameter)
    fewest = 1 if settings.decay_norms else 2
    described: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": settings.weight_decay if dimensions >= fewest else 0.0,
            "rate_scale": scale,
        }
        for (dimensions, scale), parameters in groups.items()
    ]
    if settings.optimizer == "lars":
        for group in described:
            group["adapt"] = group["params"][0].ndim > 1
        return LARS(described, peak_rate(settings), settings.momentum)
    fused = True if next(method.parameters()).is_cuda else None  # there it takes its rate from the device
    return torch.optim.SGD(
        described,
        lr=peak_rate(settings),
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        fused=fused,
    )


def peak_rate(settings: TrainSettings) -> float:
    return settings.learning_rate * settings.batch_size / 256


def learning_rate(settings: TrainSettings, progress: Progress) -> float:
    """Linear growth over the warm-up, then a cosine to zero."""
    warmup = min(settings.warmup_epochs * progress.steps_per_epoch, progress.total_steps)
    if progress.step < warmup:
        return peak_rate(settings) * (progress.step + 1) / (warmup + 1)
    done = (progress.step - warmup) / max(1, progress.total_steps - warmup)
    return peak_rate(settings) * 0.5 * (1 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        own = rate * group["rate_scale"]
        weight = group["params"][0]
        if not weight.is_cuda:
            group["lr"] = own
        elif isinstance(group["lr"], Tensor) and group["lr"].is_cuda:
            group["lr"].fill_(own)  # where a captured step reads it
        else:
            group["lr"] = torch.full((), own, device=weight.device)
