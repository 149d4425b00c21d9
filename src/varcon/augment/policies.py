"""Augmentation policies: images or vectors in, normalised float32 views out, a fresh draw for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from varcon.augment import auto, ops
from varcon.augment.settings import AugmentSettings
from varcon.augment.vectors import standardise, vectors
from varcon.core import InputError
from varcon.kernels import HAS_TRITON

CROP_RATIO = (3 / 4, 4 / 3)  # width / height of a random crop, everywhere since Inception
BLUR_SIGMA = (0.1, 2.0)  # pixels, SimCLR


class Normalisation(NamedTuple):
    """How a view in [0, 1] becomes what the encoder reads."""

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32


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
    return _finish(_unit_range(images), Normalisation(mean, std))


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
    return list(_finish(_unit_range(batch.repeat(settings.views, 1, 1, 1)), to).split(len(batch)))


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
    return list(_finish(_unit_range(ops.pick(many, rows, columns)), to).split(len(batch)))


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
    views = _finish(pixels, to)
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


class SimDraw(NamedTuple):
    """What "sim" does to each image of a batch; each tensor [N]."""

    boxes: ops.Boxes
    flip: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grey: Tensor
    sigma: Tensor | None  # of the blur, 0 where there is none; None where no image is ever blurred


def uniforms_per_view(settings: AugmentSettings) -> int:
    """Random numbers that decide one view: its crop's attempts, seven more, and two for a blur."""
    return 4 * ops.CROP_ATTEMPTS + (9 if settings.blur > 0 else 7)


def draw_sim(uniforms: Tensor, size: tuple[int, int], settings: AugmentSettings) -> SimDraw:
    """What `uniforms` decide: all crops' come first, [4, N, attempts], then the others, [7 or 9, N]."""
    n = len(uniforms) // uniforms_per_view(settings)
    for_crops = uniforms[: 4 * n * ops.CROP_ATTEMPTS].view(4, n, ops.CROP_ATTEMPTS)
    boxes = ops.resized_crop_boxes(for_crops, size, settings.crop_area, CROP_RATIO)
    others = uniforms[for_crops.numel() :].view(-1, n)
    brightness, contrast, saturation, hue = draw_jitter(others[1:6], settings)
    sigma = draw_sigma(others[7:], settings) if settings.blur > 0 else None
    flip, grey = others[0] < settings.flip, others[6] < settings.grey
    return SimDraw(boxes, flip, brightness, contrast, saturation, hue, grey, sigma)


def draw_jitter(uniforms: Tensor, settings: AugmentSettings) -> Tensor:
    """Brightness, contrast, saturation and hue, [4, N], from `uniforms` [5, N]."""
    return torch.where(
        uniforms[0] < settings.jitter_probability,
        ops.between(uniforms[1:], *jitter_ranges(settings)),
        ops.constant((1, 1, 1, 0), uniforms.device)[:, None],
    )


def draw_sigma(uniforms: Tensor, settings: AugmentSettings) -> Tensor:
    """Of each image's blur, 0 where it stays sharp, [N], from `uniforms` [2, N]."""
    spread = ops.between(uniforms[1:], BLUR_SIGMA[:1], BLUR_SIGMA[1:])[0]
    return torch.where(uniforms[0] < settings.blur, spread, 0.0)


def jitter_ranges(settings: AugmentSettings) -> tuple[list[float], list[float]]:
    """The least and the greatest brightness, contrast, saturation and hue."""
    *strengths, hue = settings.jitter
    return [max(0.0, 1 - s) for s in strengths] + [-hue], [1 + s for s in strengths] + [hue]


def sim_views(
    images: Tensor,
    indices: Tensor | None,
    uniforms: Tensor,
    settings: AugmentSettings,
    size: tuple[int, int],
    to: Normalisation,
) -> Tensor:
    """The views of `size` that `uniforms` decide, [views * N, 3, *size]."""
    batch = _batch(images, indices)
    draw = draw_sim(uniforms, (images.shape[2], images.shape[3]), settings)
    views = len(draw.flip) // len(batch)
    many = batch.repeat(views, 1, 1, 1) if views > 1 else batch
    return _finish(apply_sim(many, draw, size), to)


def _sim_maker(
    images: Tensor, settings: AugmentSettings, size: tuple[int, int]
) -> Callable[[Tensor, Tensor | None, Tensor, AugmentSettings, tuple[int, int], Normalisation], Tensor]:
    """On a GPU the plain `sim_views` is about sixty launches; the kernel for small images is one."""
    if images.is_cuda and HAS_TRITON:
        from varcon.kernels import sim_augment

        if sim_augment.handles(images, settings, size):
            return sim_augment.sim_views
    return sim_views


def apply_sim(images: Tensor, draw: SimDraw, size: tuple[int, int]) -> Tensor:
    """Blurring before the colours change is the same as after, as SimCLR has it, for affine colours; only
    the mean grey that contrast blends with is then the blurred image's, which the edges move a little."""
    (height, width), (out_height, out_width) = images.shape[2:], size
    upright = torch.zeros_like(draw.flip)
    rows = ops.resize_matrix(draw.boxes.top, draw.boxes.height, height, out_height, upright)
    columns = ops.resize_matrix(draw.boxes.left, draw.boxes.width, width, out_width, draw.flip)
    if draw.sigma is not None:
        down, across = blur_matrices(draw.sigma, size)
        rows, columns = down @ rows, across @ columns
    view = ops.resample(images, rows, columns)
    saturation = torch.where(draw.grey, 0.0, draw.saturation)  # grey after jitter is jitter without chroma
    matrix = ops.colour_matrix(ops.mean_grey(view), draw.brightness, draw.contrast, saturation, draw.hue)
    return ops.apply_colour(view, matrix)


def blur_matrices(sigma: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """For the rows and for the columns of images of `size`."""
    height, width = size
    rows = ops.blur_matrix(sigma, height, blur_radius(height))
    return rows, ops.blur_matrix(sigma, width, blur_radius(width))


def blur_radius(size: int) -> int:
    """Half of SimCLR's kernel, which is about a tenth of the image's side; one pixel has no neighbour."""
    return min(size - 1, max(1, size // 20))


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


def _finish(images: Tensor, to: Normalisation) -> Tensor:
    # Normalising first is quicker: on a CPU the channel's constant is then one number for a run of pixels.
    normalised = ops.normalise(images, to.mean, to.std)
    return normalised.to(to.dtype).contiguous(memory_format=torch.channels_last)
