"""AutoAugment and RandAugment of small images as one GPU kernel.

One program makes one view: it reads the image through the crop, the mirror and the operations that move it,
changes the tones that it then holds in registers, and writes it normalised. Of the tones only equalize and
sharpness look at other pixels than their own: by a histogram, and by a pixel's eight neighbours, both of
which go through shared memory.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from varcon.augment import auto, ops
from varcon.augment.operated import draws
from varcon.augment.ops import Normalisation
from varcon.augment.settings import AugmentSettings
from varcon.augment.sim import CROP_RATIO
from varcon.kernels import on_device_of
from varcon.kernels.sim_augment import LONGEST_SIDE, random_crop, rounded

IDENTITY = tl.constexpr(auto.OPERATIONS.index("identity"))
SHEAR_X = tl.constexpr(auto.OPERATIONS.index("shear_x"))
SHEAR_Y = tl.constexpr(auto.OPERATIONS.index("shear_y"))
TRANSLATE_X = tl.constexpr(auto.OPERATIONS.index("translate_x"))
TRANSLATE_Y = tl.constexpr(auto.OPERATIONS.index("translate_y"))
ROTATE = tl.constexpr(auto.OPERATIONS.index("rotate"))
CONTRAST = tl.constexpr(auto.OPERATIONS.index("contrast"))
POSTERIZE = tl.constexpr(auto.OPERATIONS.index("posterize"))
SOLARIZE = tl.constexpr(auto.OPERATIONS.index("solarize"))
AUTOCONTRAST = tl.constexpr(auto.OPERATIONS.index("autocontrast"))
EQUALIZE = tl.constexpr(auto.OPERATIONS.index("equalize"))
INVERT = tl.constexpr(auto.OPERATIONS.index("invert"))
COLOUR = tl.constexpr(auto.OPERATIONS.index("colour"))
SHARPNESS = tl.constexpr(auto.OPERATIONS.index("sharpness"))
TONES = tl.constexpr(len(auto.TONES))  # the operations before this place change tones
OUTSIDE = tl.constexpr(int(auto.OUTSIDE))


def handles(images: Tensor, settings: AugmentSettings) -> bool:
    return settings.policy in ("auto", "rand") and max(images.shape[2:]) <= LONGEST_SIDE


def operated_views(
    images: Tensor,
    indices: Tensor | None,
    uniforms: Tensor,
    settings: AugmentSettings,
    to: Normalisation,
) -> Tensor:
    """As `varcon.augment.operated.operated_views`, where `handles` says so; no index may be negative."""
    count = len(uniforms) // sum(draws(settings).values())
    views = torch.empty(
        (count, *images.shape[1:]), dtype=to.dtype, device=images.device, memory_format=torch.channels_last
    )
    choices = choices_of(settings.policy, settings.auto, settings.rand_magnitude)
    constants = compiled_in((images.shape[2], images.shape[3]), settings, to)
    with on_device_of(images):
        _auto_kernel[(count,)](
            views,
            images,
            None if indices is None else indices.contiguous(),
            uniforms,
            ops.constant(choices, images.device),
            len(images) if indices is None else len(indices),
            count,
            *images.stride(),
            **constants,
            num_warps=4 if constants["BLOCK"] <= 1024 else 16,  # at most eight pixels a thread, or they spill
            # A fused multiply-add rounds once where the twin rounds twice, and could change a level.
            enable_fp_fusion=False,
        )
    return views


@lru_cache(maxsize=8)
def choices_of(policy: str, name: str, rand_magnitude: float) -> tuple[float, ...]:
    """What may be drawn, by rows: an operation, its probability, and its strength one way and the other. Of
    "auto" two rows are a sub-policy."""
    if policy == "auto":
        described = [operation for pair in auto.POLICIES[name] for operation in pair]
        names, chances, levels = zip(*described, strict=True)
        magnitudes = torch.tensor(levels) / auto.LEVELS
    else:
        names, chances = auto.RAND_OPERATIONS, (1.0,) * len(auto.RAND_OPERATIONS)
        magnitudes = torch.full((len(names),), rand_magnitude)
    operations = torch.tensor([auto.OPERATIONS.index(one) for one in names])
    one_way, other_way = (
        auto.strengths(operations, magnitudes, torch.full_like(magnitudes, side)).tolist() for side in (0, 1)
    )
    rows = zip(operations.tolist(), chances, one_way, other_way, strict=True)
    return tuple(float(value) for row in rows for value in row)


def compiled_in(size: tuple[int, int], settings: AugmentSettings, to: Normalisation) -> dict[str, Any]:
    """The kernel's constants."""
    parts = draws(settings)
    places = {name: sum([*parts.values()][:place]) for place, name in enumerate(parts)}
    pairs = settings.policy == "auto"
    return {
        "SIZE": size,
        "BLOCK": triton.next_power_of_2(size[0] * size[1]),
        "ATTEMPTS": ops.CROP_ATTEMPTS,
        "AREA": tuple(settings.crop_area),
        "LOG_RATIO": (math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1] / CROP_RATIO[0])),
        "CENTRAL_CROP": ops.central_crop(size, CROP_RATIO),
        "SHIFT": settings.shift,
        "FLIP": settings.flip,
        "PAIRS": pairs,
        "CHOICES": len(auto.POLICIES[settings.auto] if pairs else auto.RAND_OPERATIONS),
        "OPERATIONS": 2 if pairs else settings.rand_operations,
        "FLIP_AT": places["flip"],
        "OPERATIONS_AT": places[settings.policy],
        "CUTOUT_AT": places["cutout"],
        "CUTOUT": settings.cutout,
        "MEAN": tuple(to.mean),
        "STD": tuple(to.std),
    }


@triton.jit(do_not_specialize=["batch", "count"])
def _auto_kernel(
    views: tl.tensor,  # [count, 3, *SIZE], channels_last
    images: tl.tensor,  # [.., 3, *SIZE], uint8
    indices: tl.tensor,  # [batch], or None where the batch is all images
    uniforms: tl.tensor,  # [.., count]
    choices: tl.tensor,  # [CHOICES (* 2), 4]
    batch: tl.tensor,
    count: tl.tensor,
    image_stride: tl.tensor,
    channel_stride: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two that holds a view's pixels
    ATTEMPTS: tl.constexpr,
    AREA: tl.constexpr,
    LOG_RATIO: tl.constexpr,  # least, and greatest less least
    CENTRAL_CROP: tl.constexpr,
    SHIFT: tl.constexpr,
    FLIP: tl.constexpr,
    PAIRS: tl.constexpr,  # a choice is two operations
    CHOICES: tl.constexpr,
    OPERATIONS: tl.constexpr,
    FLIP_AT: tl.constexpr,  # rows of `uniforms`
    OPERATIONS_AT: tl.constexpr,
    CUTOUT_AT: tl.constexpr,
    CUTOUT: tl.constexpr,
    MEAN: tl.constexpr,
    STD: tl.constexpr,
) -> None:
    HEIGHT: tl.constexpr = SIZE[0]
    WIDTH: tl.constexpr = SIZE[1]
    view = tl.program_id(0).to(tl.int64)  # offsets into a large data set pass 2^31
    source = view % batch
    if indices is not None:
        source = tl.load(indices + source).to(tl.int64)
    draw = uniforms + view
    choice = draw + OPERATIONS_AT * count.to(tl.int64)
    if AREA[0] == 1.0 and AREA[1] == 1.0:
        top = ((tl.load(draw) * (2 * SHIFT + 1)).to(tl.int32) - SHIFT).to(tl.float32)
        left = ((tl.load(draw + count) * (2 * SHIFT + 1)).to(tl.int32) - SHIFT).to(tl.float32)
        height = HEIGHT + 0.0
        width = WIDTH + 0.0
    else:
        top, left, height, width = random_crop(
            uniforms, view, count, SIZE, ATTEMPTS, AREA, LOG_RATIO, CENTRAL_CROP
        )

    # Where a pixel was before the last operation, the one before it, and so on, in pixels from the centre.
    pixel = tl.arange(0, BLOCK)
    there = pixel < HEIGHT * WIDTH
    row = tl.minimum(pixel // WIDTH, HEIGHT - 1)  # what lies past the view's end repeats its last row
    column = pixel % WIDTH
    x = column - (WIDTH - 1) / 2
    y = row - (HEIGHT - 1) / 2
    inside = pixel >= 0  # all of them, at first
    for back in tl.static_range(OPERATIONS):
        operation, strength = _chosen(
            choice, choices, count, OPERATIONS - 1 - back, OPERATIONS, PAIRS, CHOICES
        )
        angle = tl.where(operation == ROTATE, strength, 0.0)
        shear_x = tl.where(operation == SHEAR_X, strength, 0.0)
        shear_y = tl.where(operation == SHEAR_Y, strength, 0.0)
        # Whole pixels, towards 0.
        columns = (tl.where(operation == TRANSLATE_X, strength, 0.0) * WIDTH).to(tl.int32)
        rows = (tl.where(operation == TRANSLATE_Y, strength, 0.0) * HEIGHT).to(tl.int32)
        right = columns.to(tl.float32) + shear_x * (HEIGHT / 2)
        down = rows.to(tl.float32) + shear_y * (WIDTH / 2)
        moved = tl.cos(angle) * x + (shear_x - tl.sin(angle)) * y + right
        y = (tl.sin(angle) + shear_y) * x + tl.cos(angle) * y + down
        x = moved
        inside &= (tl.abs(x) <= WIDTH / 2) & (tl.abs(y) <= HEIGHT / 2)
    x = tl.where(tl.load(draw + FLIP_AT * count.to(tl.int64)) < FLIP, -x, x)

    # Bilinear, once; a crop that reaches beyond the image sees it mirrored at its edges.
    x = _mirrored(left + width * (x / WIDTH + 0.5) - 0.5, WIDTH)
    y = _mirrored(top + height * (y / HEIGHT + 0.5) - 0.5, HEIGHT)
    x_before = tl.floor(x)
    y_before = tl.floor(y)
    x_share = x - x_before
    y_share = y - y_before
    upper = images + source * image_stride + y_before.to(tl.int32) * row_stride
    lower = upper + tl.where(y_share > 0, 1, 0) * row_stride
    here = x_before.to(tl.int32) * column_stride
    next_to = here + tl.where(x_share > 0, 1, 0) * column_stride
    red = _sampled(upper, lower, here, next_to, x_share, y_share, inside)
    upper += channel_stride
    lower += channel_stride
    green = _sampled(upper, lower, here, next_to, x_share, y_share, inside)
    upper += channel_stride
    lower += channel_stride
    blue = _sampled(upper, lower, here, next_to, x_share, y_share, inside)

    edge = (row == 0) | (row == HEIGHT - 1) | (column == 0) | (column == WIDTH - 1)
    for place in tl.static_range(OPERATIONS):
        operation, strength = _chosen(choice, choices, count, place, OPERATIONS, PAIRS, CHOICES)
        if operation == EQUALIZE:
            red = _equalized(red, there, HEIGHT * WIDTH)
            green = _equalized(green, there, HEIGHT * WIDTH)
            blue = _equalized(blue, there, HEIGHT * WIDTH)
        elif operation == AUTOCONTRAST:
            red = _stretched(red, there)
            green = _stretched(green, there)
            blue = _stretched(blue, there)
        elif operation == SHARPNESS:
            red = _blend(_smooth(red, pixel, edge, WIDTH, BLOCK), red, strength)
            green = _blend(_smooth(green, pixel, edge, WIDTH, BLOCK), green, strength)
            blue = _blend(_smooth(blue, pixel, edge, WIDTH, BLOCK), blue, strength)
        elif operation < TONES:
            grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16  # Pillow's luma
            total = tl.sum(tl.where(there, grey, 0), axis=0).to(tl.float32)
            mean = tl.floor(tl.div_rn(total, HEIGHT * WIDTH + 0.0) + 0.5).to(tl.int32)
            other = tl.where(operation == COLOUR, grey, tl.where(operation == CONTRAST, mean, 0))
            red = _mapped(red, other, operation, strength)
            green = _mapped(green, other, operation, strength)
            blue = _mapped(blue, other, operation, strength)

    seen = pixel >= 0  # all of them
    if CUTOUT > 0:
        hidden = draw + CUTOUT_AT * count.to(tl.int64)
        from_row = tl.floor(tl.load(hidden) * HEIGHT).to(tl.int32) - CUTOUT // 2
        from_column = tl.floor(tl.load(hidden + count) * WIDTH).to(tl.int32) - CUTOUT // 2
        seen = (row < from_row) | (row >= from_row + CUTOUT)
        seen |= (column < from_column) | (column >= from_column + CUTOUT)
    out = views + (view * (HEIGHT * WIDTH) + pixel) * 3
    _write(out, red, MEAN[0], STD[0], seen, there)
    _write(out + 1, green, MEAN[1], STD[1], seen, there)
    _write(out + 2, blue, MEAN[2], STD[2], seen, there)


@triton.jit
def _chosen(
    draw: tl.tensor,
    choices: tl.tensor,
    count: tl.tensor,
    place: tl.constexpr,
    OPERATIONS: tl.constexpr,
    PAIRS: tl.constexpr,
    CHOICES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """A view's operation and its strength."""
    if PAIRS:
        choice = (tl.load(draw) * CHOICES).to(tl.int32) * 2 + place
        applied = tl.load(draw + (1 + place) * count) < tl.load(choices + 4 * choice + 1)
        direction = tl.load(draw + (3 + place) * count)
    else:
        choice = (tl.load(draw + place * count) * CHOICES).to(tl.int32)
        applied = choice >= 0  # always
        direction = tl.load(draw + (OPERATIONS + place) * count)
    operation = tl.where(applied, tl.load(choices + 4 * choice).to(tl.int32), IDENTITY)
    strength = tl.where(direction < 0.5, tl.load(choices + 4 * choice + 2), tl.load(choices + 4 * choice + 3))
    return operation, strength


@triton.jit
def _mirrored(at: tl.tensor, LENGTH: tl.constexpr) -> tl.tensor:
    """Folded back into an axis whose edges are half a pixel beyond its first and its last one."""
    beyond = tl.abs(at + 0.5)
    turns = tl.floor(tl.div_rn(beyond, LENGTH + 0.0))
    rest = beyond - turns * LENGTH
    odd = turns - 2 * tl.floor(turns * 0.5)
    folded = tl.where(odd > 0, LENGTH - rest, rest) - 0.5
    return tl.minimum(tl.maximum(folded, 0.0), LENGTH - 1.0)


@triton.jit
def _sampled(
    upper: tl.tensor,
    lower: tl.tensor,
    here: tl.tensor,
    next_to: tl.tensor,
    x_share: tl.tensor,
    y_share: tl.tensor,
    inside: tl.tensor,
) -> tl.tensor:
    """A channel's levels between four pixels each, whole numbers."""
    level = (1 - x_share) * (1 - y_share) * tl.load(upper + here).to(tl.float32)
    level += x_share * (1 - y_share) * tl.load(upper + next_to).to(tl.float32)
    level += (1 - x_share) * y_share * tl.load(lower + here).to(tl.float32)
    level += x_share * y_share * tl.load(lower + next_to).to(tl.float32)
    return tl.where(inside, rounded(level).to(tl.int32), OUTSIDE)


# The tones, as `varcon.augment.tones` has them, of one channel.


@triton.jit
def _equalized(level: tl.tensor, there: tl.tensor, PIXELS: tl.constexpr) -> tl.tensor:
    counts = tl.histogram(level, 256, mask=there)
    before = tl.cumsum(counts, 0) - counts
    high = tl.max(tl.where(there, level, 0), axis=0)
    step = (PIXELS - tl.sum((there & (level == high)).to(tl.int32), axis=0)) // 255
    spread = (tl.gather(before, level, 0) + step // 2) // tl.maximum(step, 1)
    return tl.where(step > 0, tl.minimum(spread, 255), level)


@triton.jit
def _stretched(level: tl.tensor, there: tl.tensor) -> tl.tensor:
    low = tl.min(tl.where(there, level, 255), axis=0)
    high = tl.max(tl.where(there, level, 0), axis=0)
    scale = tl.full((), 255.0, tl.float64) / tl.maximum(high - low, 1).to(tl.float64)
    stretched = level.to(tl.float64) * scale + (-low.to(tl.float64) * scale)
    stretched = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
    return tl.where(high > low, stretched, level)


@triton.jit
def _smooth(
    level: tl.tensor, pixel: tl.tensor, edge: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    above = tl.gather(level, tl.maximum(pixel - WIDTH, 0), 0)
    below = tl.gather(level, tl.minimum(pixel + WIDTH, BLOCK - 1), 0)
    three = above + level + below
    left = tl.gather(three, tl.maximum(pixel - 1, 0), 0)
    right = tl.gather(three, tl.minimum(pixel + 1, BLOCK - 1), 0)
    return tl.where(edge, level, (left + three + right + 4 * level + 6) // 13)


@triton.jit
def _blend(other: tl.tensor, own: tl.tensor, factor: tl.tensor) -> tl.tensor:
    start = other.to(tl.float32)
    blended = start + factor * (own.to(tl.float32) - start)
    return tl.minimum(tl.maximum(blended, 0.0), 255.0).to(tl.int32)


@triton.jit
def _mapped(level: tl.tensor, other: tl.tensor, operation: tl.tensor, strength: tl.tensor) -> tl.tensor:
    """The tones that look at no neighbour; brightness, contrast and colour blend a level with `other`."""
    lost = tl.minimum(tl.maximum(8 - strength.to(tl.int32), 0), 8)  # bits
    result = _blend(other, level, strength)
    result = tl.where(operation == POSTERIZE, (level >> lost) << lost, result)
    inverted = (operation == INVERT) | (level.to(tl.float32) >= strength)
    turned = (operation == INVERT) | (operation == SOLARIZE)
    return tl.where(turned, tl.where(inverted, 255 - level, level), result)


@triton.jit
def _write(
    out: tl.tensor,
    level: tl.tensor,
    mean: tl.constexpr,
    std: tl.constexpr,
    seen: tl.tensor,
    there: tl.tensor,
) -> None:
    value = (tl.div_rn(level.to(tl.float32), 255.0) - mean) / std
    tl.store(out, tl.where(seen, value, 0.0).to(out.dtype.element_ty), there)
