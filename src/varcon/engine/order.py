"""Which images come up in which step, and the seeds of what is drawn by chance."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import torch
from torch import Tensor

from varcon.distributed import own_share
from varcon.recipe import TrainSettings


def batches(labels: Tensor, settings: TrainSettings, step: int) -> Generator[Tensor, None, None]:
    """This process's images of step `step` and of all that follow, epoch after epoch without end."""
    steps_per_epoch, size = len(labels) // settings.batch_size, settings.batch_size
    while True:
        epoch, done = divmod(step, steps_per_epoch)
        order = epoch_order(labels, settings.seed, epoch, settings.balanced)
        for position in range(done, steps_per_epoch):
            yield own_share(order[position * size :][:size])
        step += steps_per_epoch - done


def epoch_order(labels: Tensor, seed: int, epoch: int, balanced: bool = False) -> Tensor:
    """The images of an epoch, which depend on seed and epoch alone: the same in every process and after a
    resume. Each comes up once; or in a balanced epoch, as long as that, each class equally often."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, epoch))
    order = torch.randperm(len(labels), generator=generator)
    if balanced:
        order = evenly(order, labels.cpu(), generator)
    return order.to(labels.device)


def evenly(order: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """As many draws of each class as of any other, or one more; its images in turn, from a random one on."""
    own = labels[order]
    by_class, counts = order[own.argsort(stable=True)], own.bincount()
    present = counts.nonzero().flatten()
    classes = present[torch.randperm(len(present), generator=generator)]  # some of them get one more
    turns = torch.arange(len(order))
    drawn, turn = classes[turns % len(classes)], turns // len(classes)
    chosen = by_class[(counts.cumsum(0) - counts)[drawn] + turn % counts[drawn]]
    return chosen[torch.randperm(len(chosen), generator=generator)]


def mixed_seed(*numbers: int) -> int:
    """32 bits, all that torch's CPU generator takes from a seed, different for different numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
