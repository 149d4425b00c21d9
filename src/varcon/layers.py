"""Parts of networks that several methods share."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.core import InputError, Progress


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, in float32 or better also under autocast."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=1)


class ProjectionHead(nn.Sequential):
    """Maps pooled features to the space in which the loss compares them."""

    def __init__(self, features: int, dimensions: int) -> None:
        super().__init__(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, dimensions))


class NormedHead(nn.Sequential):
    """Linear layers with BatchNorm and ReLU between them: features -> hidden ... -> dimensions."""

    def __init__(self, features: int, hidden: tuple[int, ...], dimensions: int) -> None:
        widths = (features, *hidden)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], dimensions))


class CosineClassifier(nn.Module):
    """By cosines with a vector for each class, [C, d], which may be a loss's own parameter."""

    temperature: Tensor  # which divides the cosines; kept with the weights

    def __init__(self, weight: nn.Parameter, temperature: float) -> None:
        super().__init__()
        self.weight = weight
        self.out_features, self.in_features = weight.shape
        self.register_buffer("temperature", torch.tensor(temperature))

    def forward(self, features: Tensor) -> Tensor:
        return unit(features) @ unit(self.weight).T / self.temperature


class Teacher(nn.Module):
    """A copy of a network that follows it as a moving average and has no gradient.

    Its BatchNorm statistics are its own: they come from what it sees, not from the student.
    """

    pace: Tensor  # 1 - momentum

    def __init__(self, student: nn.Module, momentum: float) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise InputError(f"method.momentum is {momentum}; it must lie in [0, 1]")
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.register_buffer("pace", torch.tensor(1 - momentum))

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:
        return self.network(*inputs)

    def set_momentum(self, momentum: float) -> None:
        self.pace.fill_(1 - momentum)

    @torch.no_grad()
    def follow(self, student: nn.Module) -> None:
        """own <- momentum * own + (1 - momentum) * student."""
        own: list[Tensor] = list(self.network.parameters())
        theirs: list[Tensor] = list(student.parameters())
        # A few kernels on a GPU instead of some for each parameter.
        change = torch._foreach_sub(theirs, own)
        torch._foreach_mul_(change, self.pace)
        torch._foreach_add_(own, change)


def rising_momentum(base: float, progress: Progress) -> float:
    """From `base` to 1 along a cosine, as BYOL's teacher."""
    return 1 - (1 - base) * (math.cos(math.pi * progress.step / progress.total_steps) + 1) / 2


class Queue(nn.Module):
    """The last `size` vectors and their labels, first in, first out; `usable` marks the filled places."""

    vectors: Tensor  # [size, dimensions]
    labels: Tensor  # [size]
    pushed: Tensor  # how many vectors have ever come

    def __init__(self, size: int, dimensions: int) -> None:
        super().__init__()
        if size < 1:
            raise InputError(f"a queue of {size} holds nothing; make it at least as large as a batch")
        self.register_buffer("vectors", torch.zeros(size, dimensions))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64))

    @property
    def usable(self) -> Tensor:
        return torch.arange(len(self.labels), device=self.labels.device) < self.pushed

    def is_full(self) -> bool:
        """Waits for the device."""
        return int(self.pushed) >= len(self.labels)

    @torch.no_grad()
    def push(self, vectors: Tensor, labels: Tensor) -> None:
        size, count = len(self.labels), len(labels)
        if count > size:
            raise InputError(f"a queue of {size} is smaller than a batch of {count}; enlarge the queue")
        places = (self.pushed + torch.arange(count, device=labels.device)) % size
        self.vectors.index_copy_(0, places, vectors.to(self.vectors.dtype))
        self.labels.index_copy_(0, places, labels)
        self.pushed += count


def check_queues(network: nn.Module, batch: int) -> None:
    """Before training starts: a queue must hold at least what a step pushes."""
    for queue in network.modules():
        if isinstance(queue, Queue) and len(queue.labels) < batch:
            raise InputError(
                f"a queue of {len(queue.labels)} is smaller than a batch of {batch}; enlarge method.queue"
            )


class Prototypes(nn.Module):
    """Learned unit vectors; `forward` gives the cosine of each embedding to each of them."""

    mobility: Tensor  # factor on their gradient: 1, or 0 while they are frozen

    def __init__(self, count: int, dimensions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.randn(count, dimensions), dim=1))
        self.register_buffer("mobility", torch.ones(()))

    def forward(self, embeddings: Tensor) -> Tensor:
        # Not requires_grad: a parameter that comes and goes would confuse DistributedDataParallel.
        weight = torch.lerp(self.weight.detach(), self.weight, self.mobility)
        return F.normalize(embeddings, dim=1) @ weight.T

    def freeze(self, frozen: bool) -> None:
        self.mobility.fill_(0 if frozen else 1)

    @torch.no_grad()
    def normalise(self) -> None:
        """Called after each optimiser step, which moves them off the sphere."""
        self.weight.copy_(F.normalize(self.weight, dim=1))
