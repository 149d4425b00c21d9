"""The policies "auto", "rand" and "stacked-rand" in plain torch: what is drawn, and a draw carried out."""

from __future__ import annotations

import torch
from torch import Tensor

from varcon.augment import auto, ops
from varcon.augment.ops import Normalisation, finish
from varcon.augment.settings import AugmentSettings
from varcon.augment.sim import CROP_RATIO, blur_matrices, draw_jitter, draw_sigma


def operated_views(
    images: Tensor,
    indices: Tensor | None,
    uniforms: Tensor,
    settings: AugmentSettings,
    to: Normalisation,
) -> Tensor:
    """Crop and mirror, then the operations of AutoAugment or RandAugment; stacked, sim's jitter before them
    and its grey and blur after. `uniforms` decide the views, [views * N, 3, H, W]."""
    batch = images if indices is None else images[indices]
    drawn = parts_of(uniforms, settings)
    n = drawn["flip"].shape[1]
    many = batch.repeat(n // len(batch), 1, 1, 1)
    size = (images.shape[2], images.shape[3])
    if settings.policy == "auto":
        chosen = auto.draw_auto(drawn["auto"], settings.auto)
    else:
        chosen = auto.draw_rand(drawn["rand"].view(2, settings.rand_operations, n), settings.rand_magnitude)
    boxes = _boxes(drawn["crop"], size, settings)
    view = auto.warp(many, boxes, drawn["flip"][0] < settings.flip, auto.affine(chosen, size))
    stacked = settings.policy == "stacked-rand"
    if stacked:
        colours = draw_jitter(drawn["colour"][:5], settings)
        pixels = ops.unit_range(view)
        matrix = ops.colour_matrix(ops.mean_grey(pixels), *colours)
        view = ops.apply_colour(pixels, matrix).mul_(255).round_().to(torch.uint8)
    view = auto.change_tones(view, chosen)
    if settings.blur:  # before grey, which is a sum of channels: the order makes no difference
        pixels = ops.resample(view, *blur_matrices(draw_sigma(drawn["blur"], settings), size))
    else:
        pixels = ops.unit_range(view)
    if stacked:
        saturation = torch.where(drawn["colour"][5] < settings.grey, 0.0, 1.0)
        one = torch.ones_like(saturation)
        matrix = ops.colour_matrix(ops.mean_grey(pixels), one, one, saturation, torch.zeros_like(one))
        pixels = ops.apply_colour(pixels, matrix)
    views = finish(pixels, to)
    if settings.cutout:
        views = auto.cut_out(views, settings.cutout, drawn["cutout"])
    return views


def draws(settings: AugmentSettings) -> dict[str, int]:
    """How many random numbers decide each part of a view; those of one part lie together for all views."""
    rand = 2 * settings.rand_operations
    parts = {"crop": 4 * ops.CROP_ATTEMPTS, "flip": 1, "auto": 5, "rand": rand, "colour": 6, "cutout": 2}
    return parts | ({"blur": 2} if settings.blur else {})


def parts_of(uniforms: Tensor, settings: AugmentSettings) -> dict[str, Tensor]:
    """Each part's, [draws, N]."""
    parts = draws(settings)
    n = len(uniforms) // sum(parts.values())
    shares = uniforms.split([rows * n for rows in parts.values()])
    return {name: share.view(-1, n) for name, share in zip(parts, shares, strict=True)}


def _boxes(uniforms: Tensor, size: tuple[int, int], settings: AugmentSettings) -> ops.Boxes:
    """Resized crops, or where there is nothing to crop, the whole image shifted."""
    n = uniforms.shape[1]
    if settings.crop_area != (1.0, 1.0):
        return ops.resized_crop_boxes(uniforms.view(4, n, -1), size, settings.crop_area, CROP_RATIO)
    top, left = (uniforms[:2] * (2 * settings.shift + 1)).long() - settings.shift
    return ops.Boxes(top, left, torch.full_like(top, size[0]), torch.full_like(left, size[1]))
