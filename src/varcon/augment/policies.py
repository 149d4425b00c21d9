"""Augmentation policies: images or vectors in, normalised views out, a fresh draw for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from varcon.augment import ops
from varcon.augment.operated import draws, operated_views
from varcon.augment.ops import Normalisation, finish, unit_range
from varcon.augment.settings import AugmentSettings
from varcon.augment.sim import sim_views, uniforms_per_view
from varcon.augment.vectors import standardise, vectors
from varcon.core import InputError
from varcon.kernels import HAS_TRITON


def draw_views(
    images: Tensor,
    settings: AugmentSettings,
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
    indices: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """All the views of a batch, normalised, the small ones last.

    `images` are uint8 [N, 3, H, W], or vectors, float32 [N, d]; the batch is `images[indices]` where
    `indices` are given. `generator` lives on their device. The views of images are channels_last in memory,
    which convolutions prefer: the conversion costs about a tenth of the "sim" policy on a CPU and spares
    the encoder doing it.
    """
    _check(images)
    if (images.ndim == 2) != (settings.policy == "vectors"):
        kind, cure = ("vectors", "choose 'vectors'") if images.ndim == 2 else ("images", "choose another")
        raise InputError(f"augment.policy is {settings.policy!r} and the data are {kind}; {cure}.")
    if not len(images if indices is None else indices):
        raise InputError("the batch is empty; give at least one sample.")
    # Under the training step's autocast the matrix products would run in half precision.
    with torch.autocast(images.device.type, enabled=False):
        to = Normalisation(mean, std, dtype)
        return POLICIES[settings.policy](images, indices, settings, to, generator)


def augment(
    images: Tensor,
    settings: AugmentSettings,
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
) -> Tensor:
    """One view of each image, as `draw_views` makes it."""
    return draw_views(images, replace(settings, views=1, small_views=0), mean, std, generator)[0]


def prepare(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The images or vectors as they are, normalised: what evaluation sees."""
    _check(images)
    if images.ndim == 2:
        return standardise(images, mean, std)
    return finish(unit_range(images), Normalisation(mean, std))


# Policies: each makes all the views of the batch `images[indices]`. Equal views are made in one call, since
# on a GPU it is the launches that cost, not the images.


def none(
    images: Tensor,
    indices: Tensor | None,
    settings: AugmentSettings,
    to: Normalisation,
    generator: torch.Generator,
) -> list[Tensor]:
    batch = _batch(images, indices)
    return list(finish(unit_range(batch.repeat(settings.views, 1, 1, 1)), to).split(len(batch)))


def crop_flip(
    images: Tensor,
    indices: Tensor | None,
    settings: AugmentSettings,
    to: Normalisation,
    generator: torch.Generator,
) -> list[Tensor]:
    """Shift by whole pixels and mirror: the usual light augmentation of small images."""
    _, _, height, width = images.shape
    if settings.shift >= min(height, width):
        raise InputError(
            f"augment.shift is {settings.shift}, which is too far for images of {height}x{width} pixels; "
            f"set it to at most {min(height, width) - 1}."
        )
    batch = _batch(images, indices)
    many = batch.repeat(settings.views, 1, 1, 1)
    down, right = torch.randint(
        -settings.shift, settings.shift + 1, (2, len(many)), device=generator.device, generator=generator
    )
    flip = torch.rand(len(many), device=generator.device, generator=generator) < settings.flip
    rows = ops.shift_indices(down, height, torch.zeros_like(flip))
    columns = ops.shift_indices(right, width, flip)
    return list(finish(unit_range(ops.pick(many, rows, columns)), to).split(len(batch)))


def sim(
    images: Tensor,
    indices: Tensor | None,
    settings: AugmentSettings,
    to: Normalisation,
    generator: torch.Generator,
) -> list[Tensor]:
    """SimAugment: random resized crop, mirror, colour jitter, grey and, where asked for, blur."""
    n = len(images) if indices is None else len(indices)
    height, width = images.shape[2:]
    kinds = [(settings.views, (height, width), settings)]
    if settings.small_views:
        side = settings.small_size
        kinds.append(
            (settings.small_views, (side, side), replace(settings, crop_area=settings.small_crop_area))
        )
    # All random numbers come from one call, and the views are a function of them alone.
    shares = [views * n * uniforms_per_view(settings) for views, _, _ in kinds]
    uniforms = torch.rand(sum(shares), device=generator.device, generator=generator).split(shares)
    views: list[Tensor] = []
    for (_, size, kind), share in zip(kinds, uniforms, strict=True):
        make = _sim_maker(images, kind, size)
        views += make(images, indices, share, kind, size, to).split(n)
    return views


def _sim_maker(
    images: Tensor, settings: AugmentSettings, size: tuple[int, int]
) -> Callable[[Tensor, Tensor | None, Tensor, AugmentSettings, tuple[int, int], Normalisation], Tensor]:
    """On a GPU the plain `sim_views` is about sixty launches; the kernel for small images is one."""
    if images.is_cuda and HAS_TRITON:
        from varcon.kernels import sim_augment

        if sim_augment.handles(images, settings, size):
            return sim_augment.sim_views
    return sim_views


def operated(
    images: Tensor,
    indices: Tensor | None,
    settings: AugmentSettings,
    to: Normalisation,
    generator: torch.Generator,
) -> list[Tensor]:
    """AutoAugment, RandAugment, and RandAugment stacked on sim's colours."""
    n = len(images) if indices is None else len(indices)
    drawn = sum(draws(settings).values()) * settings.views * n
    uniforms = torch.rand(drawn, device=generator.device, generator=generator)
    make = operated_views  # some five hundred launches on a GPU; the kernel for small images is one
    if images.is_cuda and HAS_TRITON:
        from varcon.kernels import auto_augment

        if auto_augment.handles(images, settings):
            make = auto_augment.operated_views
    return list(make(images, indices, uniforms, settings, to).split(n))


Policy = Callable[[Tensor, Tensor | None, AugmentSettings, Normalisation, torch.Generator], list[Tensor]]
POLICIES: dict[str, Policy] = {
    "none": none,
    "crop-flip": crop_flip,
    "sim": sim,
    "auto": operated,
    "rand": operated,
    "stacked-rand": operated,
    "vectors": vectors,
}


def _check(images: Tensor) -> None:
    if images.ndim == 2 and images.dtype == torch.float32:
        return
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        shape = list(images.shape)
        raise InputError(f"images are {images.dtype} {shape}; pass them as torch.uint8 [N, 3, H, W].")


def _batch(images: Tensor, indices: Tensor | None) -> Tensor:
    return images if indices is None else images[indices]
