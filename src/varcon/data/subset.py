"""Parts of a split, drawn at random or class by class."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from varcon.core import InputError, Split

MOVED_AT_ONCE = 256  # images


def choose(count: int, most: int, seed: int) -> Tensor:
    """The positions, ascending, of a random part of `count` images."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


def few_per_class(split: Split, per_class: int, seed: int) -> Split:
    """A random part of a split with `per_class` images of every class; of one seed, the smaller parts lie
    within the larger."""
    return split.part(few_indices(split.labels, per_class, seed))


def few_indices(labels: Tensor, per_class: int, seed: int) -> Tensor:
    """The positions of `few_per_class`, ascending, where the labels are."""
    if per_class < 1:
        raise InputError(f"{per_class} images per class are asked for; it must be at least 1")
    counts = labels.bincount()
    fewest = int(counts.min()) if len(counts) else 0
    if fewest < per_class:
        where = f"class {int(counts.argmin())} has {fewest}" if len(counts) else "there are none"
        raise InputError(f"{per_class} images per class are asked for and {where}; ask for fewer")
    return (rank_in_class(labels, seed) < per_class).nonzero().flatten()


def hold_out(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The positions kept and those held out, which are this share of each class.

    Every class keeps an image, and one of two images or more gives one away.
    """
    counts = labels.bincount()
    given = (counts * share).round().long().clamp_min(1).minimum((counts - 1).clamp_min(0))
    held = rank_in_class(labels, seed) < given[labels]
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def halves(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """The positions of one random half of `count` images and of the other, then the other way round."""
    one, other = torch.from_numpy(np.random.default_rng(seed).permutation(count)).tensor_split(2)
    return [(one, other), (other, one)]


def set_apart(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """The images kept and those held out, as `hold_out` draws them.

    A split's own images in memory change places, so that all of them need not be there twice; it is of no use
    afterwards.
    """
    kept, held = hold_out(split.labels, share, seed)
    if not isinstance(split.images, Tensor):
        return split.part(kept), split.part(held)
    images, given = split.images, split.images[held]
    for start in range(0, len(kept), MOVED_AT_ONCE):  # towards the front: what is still to move stays whole
        places = kept[start : start + MOVED_AT_ONCE]
        images[start : start + len(places)] = images[places]
    images[len(kept) :] = given
    parts = (images[: len(kept)], kept), (images[len(kept) :], held)
    first, second = (Split(part, split.labels[places], split.files_at(places)) for part, places in parts)
    return first, second


def rank_in_class(labels: Tensor, seed: int) -> Tensor:
    """Each image's place, from 0, in a random order of its class."""
    # Drawn on the CPU: the same images on every device.
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    order = shuffled[labels[shuffled].argsort(stable=True)]  # by class, at random within it
    counts = labels.bincount()
    begins = counts.cumsum(0) - counts
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels), device=labels.device) - begins[labels[order]]
    return ranks
