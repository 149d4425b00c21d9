"""Augmentation policies: images or vectors in, normalised float32 views out, a fresh draw for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from varcon.augment import auto, ops
from varcon.augment.ops import Normalisation, finish
from varcon.augment.settings import AugmentSettings
from varcon.augment.sim import (
    CROP_RATIO,
    blur_matrices,
    draw_jitter,
    draw_sigma,
    sim_views,
    uniforms_per_view,
)
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
    return finish(_unit_range(images), Normalisation(mean, std))


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
    return list(finish(_unit_range(batch.repeat(settings.views, 1, 1, 1)), to).split(len(batch)))


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
    return list(finish(_unit_range(ops.pick(many, rows, columns)), to).split(len(batch)))


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
    """Crop and mirror, then the operations of AutoAugment or RandAugment; stacked, sim's jitter before them
    and its grey and blur after."""
    batch = _batch(images, indices)
    many = batch.repeat(settings.views, 1, 1, 1)
    size = (images.shape[2], images.shape[3])
    count = settings.rand_operations
    parts = {"crop": 4 * ops.CROP_ATTEMPTS, "flip": 1, "auto": 5, "rand": 2 * count, "colour": 6, "cutout": 2}
    if settings.blur:
        parts["blur"] = 2
    drawn = torch.rand(sum(parts.values()) * len(many), device=generator.device, generator=generator)
    lengths = [rows * len(many) for rows in parts.values()]
    uniforms = {
        name: part.view(-1, len(many)) for name, part in zip(parts, drawn.split(lengths), strict=True)
    }
    if settings.policy == "auto":
        chosen = auto.draw_auto(uniforms["auto"], settings.auto)
    else:
        chosen = auto.draw_rand(uniforms["rand"].view(2, count, -1), settings.rand_magnitude)
    boxes = _boxes(uniforms["crop"], size, settings)
    view = auto.warp(many, boxes, uniforms["flip"][0] < settings.flip, auto.affine(chosen, size))
    stacked = settings.policy == "stacked-rand"
    if stacked:
        colours = draw_jitter(uniforms["colour"][:5], settings)
        pixels = _unit_range(view)
        matrix = ops.colour_matrix(ops.mean_grey(pixels), *colours)
        view = ops.apply_colour(pixels, matrix).mul_(255).round_().to(torch.uint8)
    view = auto.change_tones(view, chosen)
    if settings.blur:  # before grey, which is a sum of channels: the order makes no difference
        pixels = ops.resample(view, *blur_matrices(draw_sigma(uniforms["blur"], settings), size))
    else:
        pixels = _unit_range(view)
    if stacked:
        saturation = torch.where(uniforms["colour"][5] < settings.grey, 0.0, 1.0)
        one = torch.ones_like(saturation)
        matrix = ops.colour_matrix(ops.mean_grey(pixels), one, one, saturation, torch.zeros_like(one))
        pixels = ops.apply_colour(pixels, matrix)
    views = finish(pixels, to)
    if settings.cutout:
        views = auto.cut_out(views, settings.cutout, uniforms["cutout"])
    return list(views.split(len(batch)))


def _boxes(uniforms: Tensor, size: tuple[int, int], settings: AugmentSettings) -> ops.Boxes:
    """Resized crops, or where there is nothing to crop, the whole image shifted."""
    n = uniforms.shape[1]
    if settings.crop_area != (1.0, 1.0):
        return ops.resized_crop_boxes(uniforms.view(4, n, -1), size, settings.crop_area, CROP_RATIO)
    top, left = (uniforms[:2] * (2 * settings.shift + 1)).long() - settings.shift
    return ops.Boxes(top, left, torch.full_like(top, size[0]), torch.full_like(left, size[1]))


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


def _unit_range(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _batch(images: Tensor, indices: Tensor | None) -> Tensor:
    return images if indices is None else images[indices]
