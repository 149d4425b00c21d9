"""Views of vectors: standardised, with some values taken from other samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from varcon.augment import ops

if TYPE_CHECKING:
    from varcon.augment.settings import AugmentSettings


def vectors(
    samples: Tensor,
    indices: Tensor | None,
    settings: AugmentSettings,
    to: ops.Normalisation,
    generator: torch.Generator,
) -> list[Tensor]:
    """A value that changes comes from any sample, of the same feature: it is one that really occurs."""
    batch = samples if indices is None else samples[indices]
    many = batch.repeat(settings.views, 1)
    if settings.swap:
        givers = torch.randint(len(samples), many.shape, device=generator.device, generator=generator)
        chosen = torch.rand(many.shape, device=generator.device, generator=generator) < settings.swap
        many = torch.where(chosen, samples.gather(0, givers), many)
    return list(standardise(many, to.mean, to.std).to(to.dtype).split(len(batch)))


def standardise(samples: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    device = samples.device
    return samples.sub(ops.constant(mean, device)).div_(ops.constant(std, device))
