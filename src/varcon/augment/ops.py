"""Batched image operations: each image of a batch has its own parameters, and no loop visits the images.

Everything here is deterministic given its arguments. Nothing reads a value back from the device, so the
host never waits for it, and once a function has run nothing is sent there either, so that a CUDA graph can
record it.

Crop, resize, flip and blur act on rows and columns separately. Each is therefore one matrix for the rows
and one for the columns, they compose by matrix product, and `resample` applies any chain of them in two
matrix products. Brightness, contrast, saturation, hue and grey are affine maps of a pixel's colour, so any
chain of those is one [3, 4] matrix per image (`colour_matrix`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

GREY_WEIGHTS = (0.299, 0.587, 0.114)  # luma of red, green and blue, ITU-R BT.601
CROP_ATTEMPTS = 10  # as torchvision's RandomResizedCrop

# RGB -> YIQ. A grey pixel has I = Q = 0, so turning the IQ plane changes hue and keeps luma and greys.
_YIQ = np.array([GREY_WEIGHTS, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])
# A quarter turn of that plane, seen from RGB, in the sense red -> yellow -> green of HSV's hue.
_TURN = np.linalg.inv(_YIQ) @ np.array([[0, 0, 0], [0, 0, 1], [0, -1, 0]]) @ _YIQ
QUARTER_TURN: tuple[float, ...] = tuple(_TURN.ravel().tolist())  # [3, 3], row by row


class Boxes(NamedTuple):
    """One crop per image, in whole pixels; each field [N] int64."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def constant(values: Sequence[float], device: torch.device) -> Tensor:
    """float32, sent to the device once: a step that sends nothing can be recorded in a CUDA graph."""
    return _constant(tuple(values), device)


@cache  # without an end: a captured graph reads them at their places
@torch.inference_mode(False)  # what evaluation asked for first must serve training too
def _constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


def resized_crop_boxes(
    uniforms: Tensor, size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float]
) -> Boxes:
    """Crops of `size` = (height, width) images, distributed as torchvision's RandomResizedCrop.

    The share of the image's area is uniform in `area`, width / height log-uniform in `ratio`; of ten
    attempts the first that fits inside the image wins, and if none does the largest central crop with an
    allowed ratio is taken. `uniforms` [4, N, attempts], in [0, 1), decide area, ratio, top and left.
    """
    image_height, image_width = size
    crop_area = image_height * image_width * (area[0] + (area[1] - area[0]) * uniforms[0])
    crop_ratio = torch.exp(math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * uniforms[1])
    height = (crop_area / crop_ratio).sqrt().round()  # [N, attempts]
    width = (crop_area * crop_ratio).sqrt().round()
    fits = (height >= 1) & (height <= image_height) & (width >= 1) & (width <= image_width)
    # The uniforms are below 1, so the floor leaves every position from 0 to the last one equally likely.
    top = (uniforms[2] * (image_height - height + 1)).floor()
    left = (uniforms[3] * (image_width - width + 1)).floor()

    first = fits.int().argmax(dim=1, keepdim=True)  # argmax names the first of equals
    chosen = torch.stack([top, left, height, width]).gather(2, first.expand(4, -1, 1))[:, :, 0]
    fallback = constant(central_crop(size, ratio), uniforms.device)
    return Boxes(*torch.where(fits.any(dim=1), chosen, fallback[:, None]).long())


def central_crop(size: tuple[int, int], ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """Top, left, height and width of the largest crop with an allowed width / height."""
    image_height, image_width = size
    height = min(image_height, max(1, round(image_width / ratio[0])))
    width = min(image_width, max(1, round(image_height * ratio[1])))
    return (image_height - height) // 2, (image_width - width) // 2, height, width


def between(uniforms: Tensor, low: Sequence[float], high: Sequence[float]) -> Tensor:
    """Each row of `uniforms` [K, N] from [0, 1) to its own range: bit for bit what torch's uniform_ draws.

    A CPU's uniform_ rounds the range's ends and width to float32 and the result only once.
    """
    least, greatest = np.asarray(low, np.float32), np.asarray(high, np.float32)
    width = constant((greatest - least).tolist(), uniforms.device)[:, None]
    return (uniforms.double() * width + constant(least.tolist(), uniforms.device)[:, None]).float()


def resize_matrix(start: Tensor, length: Tensor, size_in: int, size_out: int, flip: Tensor) -> Tensor:
    """Crop [start, start + length) of one axis, resized to `size_out` and mirrored where `flip` is true.

    Bilinear with antialiasing, as Pillow and torchvision do it: each output pixel is a mean of the crop's
    pixels under a triangle around its centre that reaches one input pixel to either side, or one output
    pixel where the crop shrinks. Pixels outside the crop have no weight. Returns [N, size_out, size_in].
    """
    output = _flipped_range(size_out, flip)  # [N, size_out]
    pixel = torch.arange(size_in, device=start.device) - start[:, None]  # [N, size_in], from the crop's edge
    inside = (pixel >= 0) & (pixel < length[:, None])
    scale = length[:, None] / size_out  # [N, 1]
    distance = (((output + 0.5) * scale)[:, :, None] - (pixel + 0.5)[:, None]).abs_()
    weights = (1 - distance / scale.clamp(min=1)[:, :, None]).clamp_(min=0).mul_(inside.float()[:, None])
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def blur_matrix(sigma: Tensor, size: int, radius: int) -> Tensor:
    """Gaussian blur of one axis, cut off at `radius` pixels, with reflected edges; [N, size, size].

    An image whose `sigma` is 0 stays sharp, exactly.
    """
    device = sigma.device
    offset = torch.arange(-radius, radius + 1, device=device)
    # Below 0.01 every tap but the central one underflows to 0, which makes the exact identity.
    taps = torch.exp(-0.5 * (offset / sigma.clamp(min=0.01)[:, None]) ** 2)  # [N, 2 radius + 1]
    taps = taps / taps.sum(dim=1, keepdim=True)
    source = reflect(torch.arange(size, device=device) + offset[:, None], size)  # [2 radius + 1, size]
    one_hot = (source[:, :, None] == torch.arange(size, device=device)).float()
    return (taps @ one_hot.flatten(1)).view(-1, size, size)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Apply a matrix to each image's rows and one to its columns: uint8 [N, 3, H, W] to float32 in [0, 1]."""
    # Columns first: as [N, 3 H, W] the images need no change of layout, and one product serves all channels.
    # The scale rides on the smallest operand.
    pixels = images.float().flatten(1, 2) @ (columns / 255).mT
    return rows[:, None] @ pixels.unflatten(1, images.shape[1:3])


def shift_indices(offset: Tensor, size: int, flip: Tensor) -> Tensor:
    """Which pixel lands where when one axis is shifted by whole pixels, edges reflected; [N, size]."""
    return reflect(_flipped_range(size, flip) + offset[:, None], size)


def pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Output pixel (i, j) of image n is its pixel (rows[n, i], columns[n, j]); integers stay as they are."""
    n, channels, _, width = images.shape
    source = (rows[:, :, None] * width + columns[:, None]).view(n, 1, -1)
    picked = images.flatten(2).gather(2, source.expand(n, channels, -1))
    return picked.view(n, channels, rows.shape[1], columns.shape[1])


def reflect(index: Tensor, size: int) -> Tensor:
    """Fold positions up to `size - 1` beyond either edge back inside, without repeating the edge pixel."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def mean_grey(images: Tensor) -> Tensor:
    """The mean luma of each image, [N]."""
    return images.mean(dim=(2, 3)) @ constant(GREY_WEIGHTS, images.device)


def colour_matrix(
    grey: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor
) -> Tensor:
    """Colour jitter of images with mean luma `grey` as one affine map of RGB per image, [N, 3, 4].

    Factors as torchvision's ColorJitter: brightness scales, contrast blends with the image's mean grey,
    saturation blends with each pixel's own grey (0 makes a grey image), hue is in turns. Two deliberate
    differences from torchvision keep the chain affine, so that a pixel is read and written once instead of
    once for each operation: hue turns the chroma plane of YIQ, as NVIDIA DALI does, rather than shifting
    HSV's hue; and values are clamped to [0, 1] once, at the end, rather than after each operation.

    There is no order of operations to draw: without clamps in between, all 24 orders are the same map.
    Saturation and hue are a scaling and a turn of the chroma plane, which commute and leave every luma
    alone; brightness scales the mean that contrast blends with just as it scales the blend.
    """
    device = grey.device
    to_grey = constant(GREY_WEIGHTS, device).expand(3, 3)
    to_chroma = torch.eye(3, device=device) - to_grey
    angle = (2 * math.pi * hue)[:, None, None]
    turned = angle.cos() * to_chroma + angle.sin() * constant(QUARTER_TURN, device).view(3, 3)
    linear = (brightness * contrast)[:, None, None] * (to_grey + saturation[:, None, None] * turned)
    offset = brightness * (1 - contrast) * grey
    return torch.cat([linear, offset[:, None, None].expand(-1, 3, 1)], dim=2)


def apply_colour(images: Tensor, matrix: Tensor) -> Tensor:
    """Map each image's colours by its own [3, 4] affine matrix, then clamp to [0, 1]."""
    mapped = torch.baddbmm(matrix[:, :, 3:], matrix[:, :, :3], images.flatten(2))
    return mapped.clamp_(0, 1).view(images.shape)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    device = images.device
    return images.sub(constant(mean, device).view(-1, 1, 1)).div_(constant(std, device).view(-1, 1, 1))


class Normalisation(NamedTuple):
    """How a view in [0, 1] becomes what the encoder reads."""

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32


def unit_range(images: Tensor) -> Tensor:
    return images.float().div_(255)


def finish(images: Tensor, to: Normalisation) -> Tensor:
    # Normalising first is quicker: on a CPU the channel's constant is then one number for a run of pixels.
    normalised = normalise(images, to.mean, to.std)
    return normalised.to(to.dtype).contiguous(memory_format=torch.channels_last)


def _flipped_range(size: int, flip: Tensor) -> Tensor:
    forwards = torch.arange(size, device=flip.device)
    return torch.where(flip[:, None], size - 1 - forwards, forwards)  # [N, size]
