"""The "sim" policy for small images as one kernel: a program reads an image's pixels and writes one view.

The plain-torch twin is `varcon.augment.sim.sim_views`; given the same uniforms it makes the same crops,
mirrors and colours. There the crop is a product with two matrices. Here each pixel of a view gathers the few
pixels under its triangle, two along each axis unless the view is smaller than the crop: that is less
arithmetic than the products and needs neither shared memory nor sides that are powers of two.

The settings are compiled in, so that a launch passes little. One kernel is compiled for each kind of view
that a run draws.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from varcon.augment import ops
from varcon.augment.ops import Normalisation
from varcon.augment.settings import AugmentSettings
from varcon.augment.sim import CROP_RATIO, jitter_ranges, uniforms_per_view
from varcon.kernels import on_device_of

LONGEST_SIDE = 64  # one program holds a whole view in registers
MOST_TAPS = 8  # along an axis: the loop over the columns' is unrolled


def handles(images: Tensor, settings: AugmentSettings, size: tuple[int, int]) -> bool:
    height, width = images.shape[2:]
    fits = max(height, width, *size) <= LONGEST_SIDE
    return fits and settings.blur == 0 and max(_taps(height, size[0]), _taps(width, size[1])) <= MOST_TAPS


def sim_views(
    images: Tensor,
    indices: Tensor | None,
    uniforms: Tensor,
    settings: AugmentSettings,
    size: tuple[int, int],
    to: Normalisation,
) -> Tensor:
    """As `varcon.augment.sim.sim_views`, where `handles` says so; no index may be negative."""
    count = len(uniforms) // uniforms_per_view(settings)
    views = torch.empty(
        (count, 3, *size), dtype=to.dtype, device=images.device, memory_format=torch.channels_last
    )
    constants = compiled_in((images.shape[2], images.shape[3]), settings, size, to)
    with on_device_of(images):
        _sim_kernel[(count,)](
            views,
            images,
            None if indices is None else indices.contiguous(),
            uniforms,
            len(images) if indices is None else len(indices),
            count,
            *images.stride(),
            **constants,
            num_warps=4 if constants["BLOCK"] <= 1024 else 16,  # at most eight pixels a thread, or they spill
            # A fused multiply-add rounds once where the twin rounds twice, and could move a crop by a pixel.
            enable_fp_fusion=False,
        )
    return views


def compiled_in(
    image_size: tuple[int, int], settings: AugmentSettings, size: tuple[int, int], to: Normalisation
) -> dict[str, Any]:
    """The kernel's constants."""
    least, greatest = jitter_ranges(settings)
    return {
        "IMAGE_SIZE": image_size,
        "SIZE": size,
        "BLOCK": triton.next_power_of_2(size[0] * size[1]),
        "ROW_TAPS": _taps(image_size[0], size[0]),
        "COLUMN_TAPS": _taps(image_size[1], size[1]),
        "ATTEMPTS": ops.CROP_ATTEMPTS,
        "AREA": tuple(settings.crop_area),
        "LOG_RATIO": (math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1] / CROP_RATIO[0])),
        "CENTRAL_CROP": ops.central_crop(image_size, CROP_RATIO),
        "FLIP": settings.flip,
        "JITTER_PROBABILITY": settings.jitter_probability,
        "LEAST": tuple(least),
        "GREATEST": tuple(greatest),
        "GREY": settings.grey,
        "LUMA": ops.GREY_WEIGHTS,
        "QUARTER_TURN": ops.QUARTER_TURN,
        "MEAN": tuple(to.mean),
        "STD": tuple(to.std),
    }


def _taps(side: int, size: int) -> int:
    """How many pixels of an axis a triangle can cover when all of it shrinks to `size`."""
    return math.ceil(2 * max(1.0, side / size))


@triton.jit(do_not_specialize=["batch", "count"])
def _sim_kernel(
    views: tl.tensor,  # [count, 3, *SIZE], channels_last
    images: tl.tensor,  # [.., 3, *IMAGE_SIZE], uint8
    indices: tl.tensor,  # [batch], or None where the batch is all images
    uniforms: tl.tensor,  # [4, count, ATTEMPTS] for the crops, then [7, count]
    batch: tl.tensor,
    count: tl.tensor,
    image_stride: tl.tensor,
    channel_stride: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    IMAGE_SIZE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two that holds a view's pixels
    ROW_TAPS: tl.constexpr,
    COLUMN_TAPS: tl.constexpr,
    ATTEMPTS: tl.constexpr,
    AREA: tl.constexpr,
    LOG_RATIO: tl.constexpr,  # least, and greatest less least
    CENTRAL_CROP: tl.constexpr,
    FLIP: tl.constexpr,
    JITTER_PROBABILITY: tl.constexpr,
    LEAST: tl.constexpr,  # brightness, contrast, saturation, hue
    GREATEST: tl.constexpr,
    GREY: tl.constexpr,
    LUMA: tl.constexpr,
    QUARTER_TURN: tl.constexpr,
    MEAN: tl.constexpr,
    STD: tl.constexpr,
) -> None:
    view = tl.program_id(0).to(tl.int64)  # offsets into a large data set pass 2^31
    source = view % batch
    if indices is not None:
        source = tl.load(indices + source).to(tl.int64)

    top, left, height, width = random_crop(
        uniforms, view, count, IMAGE_SIZE, ATTEMPTS, AREA, LOG_RATIO, CENTRAL_CROP
    )

    # The other quantities.
    draw = uniforms + 4 * ATTEMPTS * count.to(tl.int64) + view
    flip = tl.load(draw) < FLIP
    jittered = tl.load(draw + count) < JITTER_PROBABILITY
    brightness = _between(tl.load(draw + 2 * count), LEAST[0], GREATEST[0], jittered, 1.0)
    contrast = _between(tl.load(draw + 3 * count), LEAST[1], GREATEST[1], jittered, 1.0)
    saturation = _between(tl.load(draw + 4 * count), LEAST[2], GREATEST[2], jittered, 1.0)
    hue = _between(tl.load(draw + 5 * count), LEAST[3], GREATEST[3], jittered, 0.0)
    saturation = tl.where(tl.load(draw + 6 * count) < GREY, 0.0, saturation)

    # Crop, resize and mirror. Rows and columns count from the crop's corner.
    pixel = tl.arange(0, BLOCK)
    there = pixel < SIZE[0] * SIZE[1]
    row = tl.minimum(pixel // SIZE[1], SIZE[0] - 1)  # what lies past the view's end repeats its last row
    column = pixel % SIZE[1]
    column = tl.where(flip, SIZE[1] - 1 - column, column)
    row_scale = tl.div_rn(height, SIZE[0] + 0.0)
    column_scale = tl.div_rn(width, SIZE[1] + 0.0)
    row_centre = (row + 0.5) * row_scale
    column_centre = (column + 0.5) * column_scale
    row_reach = tl.maximum(row_scale, 1.0)  # of the triangle, to either side
    column_reach = tl.maximum(column_scale, 1.0)
    row_slope = 1 / row_reach
    column_slope = 1 / column_reach
    first_row = tl.floor(row_centre - 0.5 - row_reach) + 1
    first_column = tl.floor(column_centre - 0.5 - column_reach) + 1
    row_total = tl.zeros([BLOCK], tl.float32)
    for tap in range(ROW_TAPS):
        row_total += _weight(first_row + tap, row_centre, row_slope, height)
    column_total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(COLUMN_TAPS):
        column_total += _weight(first_column + tap, column_centre, column_slope, width)

    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    corner = (
        images + source * image_stride + top.to(tl.int32) * row_stride + left.to(tl.int32) * column_stride
    )
    for row_tap in range(ROW_TAPS):
        from_row = first_row + row_tap
        row_weight = _weight(from_row, row_centre, row_slope, height)
        for column_tap in tl.static_range(COLUMN_TAPS):
            from_column = first_column + column_tap
            weight = row_weight * _weight(from_column, column_centre, column_slope, width)
            seen = weight > 0
            colour = corner + from_row.to(tl.int32) * row_stride + from_column.to(tl.int32) * column_stride
            red += weight * tl.load(colour, seen, 0).to(tl.float32)
            green += weight * tl.load(colour + channel_stride, seen, 0).to(tl.float32)
            blue += weight * tl.load(colour + channel_stride + channel_stride, seen, 0).to(tl.float32)

    to_unit = 1 / (row_total * column_total * 255)
    red *= to_unit
    green *= to_unit
    blue *= to_unit

    # Colour: what `ops.colour_matrix` does, with luma and chroma apart.
    luma = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    mean_luma = tl.sum(tl.where(there, luma, 0.0), axis=0) / (SIZE[0] * SIZE[1])
    angle = 6.283185307179586 * hue
    kept = saturation * tl.cos(angle)
    turned = saturation * tl.sin(angle)
    turned_red = QUARTER_TURN[0] * red + QUARTER_TURN[1] * green + QUARTER_TURN[2] * blue
    turned_green = QUARTER_TURN[3] * red + QUARTER_TURN[4] * green + QUARTER_TURN[5] * blue
    turned_blue = QUARTER_TURN[6] * red + QUARTER_TURN[7] * green + QUARTER_TURN[8] * blue
    gain = brightness * contrast
    offset = brightness * (1 - contrast) * mean_luma
    red = gain * (luma + kept * (red - luma) + turned * turned_red) + offset
    green = gain * (luma + kept * (green - luma) + turned * turned_green) + offset
    blue = gain * (luma + kept * (blue - luma) + turned * turned_blue) + offset

    out = views + (view * (SIZE[0] * SIZE[1]) + pixel) * 3
    _write(out, red, MEAN[0], STD[0], there)
    _write(out + 1, green, MEAN[1], STD[1], there)
    _write(out + 2, blue, MEAN[2], STD[2], there)


@triton.jit
def random_crop(
    uniforms: tl.tensor,  # [4, count, ATTEMPTS]
    view: tl.tensor,
    count: tl.tensor,
    IMAGE_SIZE: tl.constexpr,
    ATTEMPTS: tl.constexpr,
    AREA: tl.constexpr,
    LOG_RATIO: tl.constexpr,
    CENTRAL_CROP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Top, left, height and width: the first attempt that fits, in the twin's own float32 arithmetic."""
    attempt = tl.arange(0, 16)
    made = attempt < ATTEMPTS
    draws = uniforms + view * ATTEMPTS + attempt
    quantity = count.to(tl.int64) * ATTEMPTS
    share = AREA[0] + (AREA[1] - AREA[0]) * tl.load(draws, made, 0.0)
    area = (IMAGE_SIZE[0] * IMAGE_SIZE[1]) * share
    log_ratio = LOG_RATIO[0] + LOG_RATIO[1] * tl.load(draws + quantity, made, 0.0)
    ratio = tl.exp(log_ratio.to(tl.float64)).to(tl.float32)  # the float32 one of the GPU is a rough one
    heights = rounded(tl.sqrt_rn(tl.div_rn(area, ratio)))
    widths = rounded(tl.sqrt_rn(area * ratio))
    tops = tl.floor(tl.load(draws + 2 * quantity, made, 0.0) * (IMAGE_SIZE[0] - heights + 1))
    lefts = tl.floor(tl.load(draws + 3 * quantity, made, 0.0) * (IMAGE_SIZE[1] - widths + 1))
    fits = made & (heights >= 1) & (heights <= IMAGE_SIZE[0]) & (widths >= 1) & (widths <= IMAGE_SIZE[1])
    first = tl.min(tl.where(fits, attempt, 16), axis=0)
    top = _of_attempt(tops, attempt, first, CENTRAL_CROP[0])
    left = _of_attempt(lefts, attempt, first, CENTRAL_CROP[1])
    height = _of_attempt(heights, attempt, first, CENTRAL_CROP[2])
    width = _of_attempt(widths, attempt, first, CENTRAL_CROP[3])
    return top, left, height, width


@triton.jit
def rounded(values: tl.tensor) -> tl.tensor:
    """To a whole number, halves to the even one: the sum with 1.5 * 2^23 has no bits for a fraction."""
    return (values + 12582912.0) - 12582912.0


@triton.jit
def _of_attempt(values: tl.tensor, attempt: tl.tensor, first: tl.tensor, otherwise: tl.tensor) -> tl.tensor:
    return tl.where(first < 16, tl.sum(tl.where(attempt == first, values, 0.0), axis=0), otherwise)


@triton.jit
def _between(
    uniform: tl.tensor, least: tl.constexpr, greatest: tl.constexpr, jittered: tl.tensor, neutral: tl.tensor
) -> tl.tensor:
    return tl.where(jittered, least + (greatest - least) * uniform, neutral)


@triton.jit
def _weight(position: tl.tensor, centre: tl.tensor, slope: tl.tensor, length: tl.tensor) -> tl.tensor:
    """Of a pixel in the triangle around `centre`; nothing outside the crop."""
    inside = (position >= 0) & (position < length)
    return tl.where(inside, tl.maximum(1 - tl.abs(centre - (position + 0.5)) * slope, 0.0), 0.0)


@triton.jit
def _write(
    out: tl.tensor, values: tl.tensor, mean: tl.constexpr, std: tl.constexpr, there: tl.tensor
) -> None:
    values = tl.minimum(tl.maximum(values, 0.0), 1.0)
    tl.store(out, ((values - mean) / std).to(out.dtype.element_ty), there)
