"""The "sim" policy in plain torch: what is drawn for each image, and a draw carried out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from varcon.augment import ops
from varcon.augment.ops import Normalisation
from varcon.augment.settings import AugmentSettings

CROP_RATIO = (3 / 4, 4 / 3)  # width / height of a random crop, everywhere since Inception
BLUR_SIGMA = (0.1, 2.0)  # pixels, SimCLR


def sim_views(
    images: Tensor,
    indices: Tensor | None,
    uniforms: Tensor,
    settings: AugmentSettings,
    size: tuple[int, int],
    to: Normalisation,
) -> Tensor:
    """The views of `size` that `uniforms` decide, [views * N, 3, *size]."""
    batch = images if indices is None else images[indices]
    draw = draw_sim(uniforms, (images.shape[2], images.shape[3]), settings)
    views = len(draw.flip) // len(batch)
    many = batch.repeat(views, 1, 1, 1) if views > 1 else batch
    return ops.finish(apply_sim(many, draw, size), to)


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
