"""Batch normalisation in training, fused with the residual sum and the ReLU that follow it.

Outside its convolutions a residual network computes next to nothing and moves half of a step's memory: what
counts is how often each activation is read and written. Here a layer reads its input twice going forward
(statistics, result) and twice going back (sums, gradient). The ReLU's mask is computed again from the input
where that is read anyway, and kept as bits where it depends on the skip. Where two gradients meet, at the
start of a residual block, their sum is never a pass of its own; and where a block changes its shape, the norm
of the skip is part of the same passes.

Activations are channels_last, which makes them matrices [rows, channels] of one row a pixel. All sums are
float32 in a fixed order: results repeat bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from varcon.kernels import on_device_of

# Measured on an H200, whose 132 multiprocessors these keep busy.
PROGRAMS = 528  # that share a sum over the rows
TILE = 4096  # elements that a program holds at once
STAGES = 3  # tiles under way at once in a loop over them: the next ones are fetched while one is added up
SUMS = {  # tile and stages in the sums of gradients, by what is added: the more a tile loads, the less
    "nothing": (2048, 3),  # there is to gain from fetching ahead, until registers run out
    "skip": (2048, 1),
    "normalised skip": (4096, 3),
}
PARTS, CHANNELS_EACH = 256, 8  # partial sums, and channels, that one program adds up at once


@triton.jit
def not_below_zero(values):
    """NaN stays NaN, unlike by Triton's own maximum: a network that has diverged must not look healthy."""
    return tl.where(values < 0, 0.0, values)


@triton.jit
def tile_at(x, rows, channels, row, channel):
    """Where the elements of a tile lie, and which of them exist."""
    places = x + row.to(tl.int64)[:, None] * channels + channel[None, :]
    return places, (row < rows)[:, None] & (channel < channels)[None, :]


@triton.jit
def part_from_the_end(channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """This program's rows, channels and block of channels, the last rows first.

    A pass that reads what another has just read or written starts where that one ended, in the cache; and a
    convolution after it starts with the rows that this one wrote last.
    """
    blocks = tl.cdiv(channels, CHANNELS)
    place = tl.num_programs(0) - 1 - tl.program_id(0)
    block = place % blocks
    return (place // blocks) * ROWS + tl.arange(0, ROWS), block * CHANNELS + tl.arange(0, CHANNELS), block


@triton.jit
def keep_alive(values, alive, rows, channels, row, block, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Which elements of a tile a ReLU lets through, as bits, for `where_alive`."""
    bits = tl.reshape((values > 0).to(tl.int32), [ROWS, CHANNELS // 8, 8])
    bits = tl.sum(bits << tl.arange(0, 8)[None, None, :], axis=2)
    byte = block * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
    places, inside = tile_at(alive, rows, channels // 8, row, byte)
    tl.store(places, bits.to(tl.uint8), mask=inside)


@triton.jit
def where_alive(gradient, alive, rows, channels, row, block, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """The gradient before that ReLU."""
    byte = block * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
    places, inside = tile_at(alive, rows, channels // 8, row, byte)
    bits = tl.load(places, mask=inside, other=0).to(tl.int32)
    bits = (bits[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.where(tl.reshape(bits, [ROWS, CHANNELS]) > 0, gradient, 0)


@triton.jit
def follow(running_mean, running_var, mean, variance, channel, exists, rows, momentum):
    """The running statistics go on towards a batch's."""
    old_mean = tl.load(running_mean + channel, mask=exists, other=0)
    old_var = tl.load(running_var + channel, mask=exists, other=0)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), mask=exists)
    tl.store(running_var + channel, old_var + momentum * (unbiased - old_var), mask=exists)


@triton.jit
def _moments_kernel(
    x, sums, rows, channels, rows_each, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr
):
    """Each program's share of sum(x - x0) and sum((x - x0)^2); x0 is the first row, lest they cancel."""
    blocks = tl.cdiv(channels, CHANNELS)
    part, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    origin = tl.load(x + channel, mask=exists, other=0).to(tl.float32)
    first = tl.zeros([ROWS, CHANNELS], tl.float32)
    second = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in tl.range(0, rows_each, ROWS, num_stages=STAGES):
        row = part * rows_each + start + tl.arange(0, ROWS)
        places, inside = tile_at(x, rows, channels, row, channel)
        value = tl.load(places, mask=inside, other=0).to(tl.float32) - origin[None, :]
        value = tl.where(inside, value, 0)
        first += value
        second += value * value
    out = sums + part * 2 * channels + channel
    tl.store(out, tl.sum(first, 0), mask=exists)
    tl.store(out + channels, tl.sum(second, 0), mask=exists)


@triton.jit
def _total(sums, parts, channels, channel, which, KINDS, PARTS: tl.constexpr, CHANNELS: tl.constexpr):
    """One of the KINDS of sums, over the parts."""
    total = tl.zeros([PARTS, CHANNELS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        places = sums + (part * KINDS + which)[:, None] * channels + channel[None, :]
        total += tl.load(places, mask=(part < parts)[:, None] & (channel < channels)[None, :], other=0)
    return tl.sum(total, 0)


@triton.jit
def _statistics_kernel(
    x, sums, mean, rstd, running_mean, running_var, batches, rows, channels, parts, momentum, epsilon,
    PARTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    origin = tl.load(x + channel, mask=exists, other=0).to(tl.float32)
    first = _total(sums, parts, channels, channel, 0, 2, PARTS, CHANNELS) / rows
    second = _total(sums, parts, channels, channel, 1, 2, PARTS, CHANNELS) / rows
    variance = not_below_zero(second - first * first)
    centre = origin + first
    tl.store(mean + channel, centre, mask=exists)
    tl.store(rstd + channel, 1 / tl.sqrt(variance + epsilon), mask=exists)
    follow(running_mean, running_var, centre, variance, channel, exists, rows, momentum)


@triton.jit
def _scale_and_shift(mean, rstd, weight, bias, channel, exists):
    """BatchNorm as one multiplication and one addition a channel."""
    scale = tl.load(weight + channel, mask=exists, other=0) * tl.load(rstd + channel, mask=exists, other=0)
    centre = tl.load(mean + channel, mask=exists, other=0)
    return scale, tl.load(bias + channel, mask=exists, other=0) - centre * scale


@triton.jit
def _apply_kernel(
    x, skip, y, alive, mean, rstd, weight, bias, skip_mean, skip_rstd, skip_weight, skip_bias, rows, channels,
    ADD: tl.constexpr, NORM_SKIP: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, channel, block = part_from_the_end(channels, ROWS, CHANNELS)
    scale, shift = _scale_and_shift(mean, rstd, weight, bias, channel, channel < channels)
    places, inside = tile_at(x, rows, channels, row, channel)
    value = tl.load(places, mask=inside, other=0).to(tl.float32) * scale[None, :] + shift[None, :]
    if ADD:
        places, inside = tile_at(skip, rows, channels, row, channel)
        added = tl.load(places, mask=inside, other=0).to(tl.float32)
        if NORM_SKIP:
            scale, shift = _scale_and_shift(
                skip_mean, skip_rstd, skip_weight, skip_bias, channel, channel < channels
            )
            added = added * scale[None, :] + shift[None, :]
        value += added
        keep_alive(value, alive, rows, channels, row, block, ROWS, CHANNELS)
    places, inside = tile_at(y, rows, channels, row, channel)
    tl.store(places, not_below_zero(value), mask=inside)


@triton.jit
def _gradient_sums_kernel(
    x, skip, alive, by_y, by_y_too, by_sum, sums, mean, rstd, weight, bias, skip_mean, skip_rstd, rows,
    channels, rows_each, ADD: tl.constexpr, NORM_SKIP: tl.constexpr, TWO: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Each program's share of sum(g) and sum(g xhat), where g is the gradient before the ReLU.

    With a residual sum g is also the gradient of what is added, and is written out for `_gradient_kernel` to
    read; if that was normalised as well, its sum(g xhat) is the third.
    """
    blocks = tl.cdiv(channels, CHANNELS)
    part, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    channel = block * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    centre = tl.load(mean + channel, mask=exists, other=0)
    inverse = tl.load(rstd + channel, mask=exists, other=0)
    scale, shift = _scale_and_shift(mean, rstd, weight, bias, channel, exists)
    first = tl.zeros([ROWS, CHANNELS], tl.float32)
    second = tl.zeros([ROWS, CHANNELS], tl.float32)
    if NORM_SKIP:
        skip_centre = tl.load(skip_mean + channel, mask=exists, other=0)
        third = tl.zeros([ROWS, CHANNELS], tl.float32)
    for start in tl.range(0, rows_each, ROWS, num_stages=STAGES):
        row = part * rows_each + start + tl.arange(0, ROWS)
        places, inside = tile_at(by_y, rows, channels, row, channel)
        gradient = tl.load(places, mask=inside, other=0).to(tl.float32)
        if TWO:
            places, inside = tile_at(by_y_too, rows, channels, row, channel)
            gradient += tl.load(places, mask=inside, other=0).to(tl.float32)
        places, inside = tile_at(x, rows, channels, row, channel)
        value = tl.load(places, mask=inside, other=0).to(tl.float32)
        if ADD:
            gradient = where_alive(gradient, alive, rows, channels, row, block, ROWS, CHANNELS)
            places, inside = tile_at(by_sum, rows, channels, row, channel)
            tl.store(places, gradient, mask=inside)
        else:
            gradient = tl.where(value * scale[None, :] + shift[None, :] > 0, gradient, 0)
        first += gradient
        second += gradient * (value - centre[None, :])  # beyond the edge the gradient is 0
        if NORM_SKIP:
            places, inside = tile_at(skip, rows, channels, row, channel)
            added = tl.load(places, mask=inside, other=0).to(tl.float32)
            third += gradient * (added - skip_centre[None, :])
    KINDS: tl.constexpr = 3 if NORM_SKIP else 2
    out = sums + part * KINDS * channels + channel
    tl.store(out, tl.sum(first, 0), mask=exists)
    tl.store(out + channels, tl.sum(second, 0) * inverse, mask=exists)
    if NORM_SKIP:
        skip_inverse = tl.load(skip_rstd + channel, mask=exists, other=0)
        tl.store(out + 2 * channels, tl.sum(third, 0) * skip_inverse, mask=exists)


@triton.jit
def _parameter_gradients_kernel(
    sums, totals, channels, parts, KINDS: tl.constexpr, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    which = tl.program_id(1)
    total = _total(sums, parts, channels, channel, which, KINDS, PARTS, CHANNELS)
    tl.store(totals + which * channels + channel, total, mask=channel < channels)


@triton.jit
def _by_input(x, gradient, totals, which, mean, rstd, weight, rows, channels, channel):
    """The gradient of a normalised input, from that of the result."""
    exists = channel < channels
    centre = tl.load(mean + channel, mask=exists, other=0)
    inverse = tl.load(rstd + channel, mask=exists, other=0)
    scale = tl.load(weight + channel, mask=exists, other=0) * inverse
    mean_g = tl.load(totals + channel, mask=exists, other=0) / rows
    mean_gx = tl.load(totals + which * channels + channel, mask=exists, other=0) / rows
    normal = (x - centre[None, :]) * inverse[None, :]
    return scale[None, :] * (gradient - mean_g[None, :] - normal * mean_gx[None, :])


@triton.jit
def _gradient_kernel(
    x, skip, by_y, by_y_too, by_x, by_skip, totals, mean, rstd, weight, bias, skip_mean, skip_rstd,
    skip_weight, rows, channels, ADD: tl.constexpr, NORM_SKIP: tl.constexpr, TWO: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, channel, _ = part_from_the_end(channels, ROWS, CHANNELS)
    places, inside = tile_at(by_y, rows, channels, row, channel)
    gradient = tl.load(places, mask=inside, other=0).to(tl.float32)
    if TWO:
        places, inside = tile_at(by_y_too, rows, channels, row, channel)
        gradient += tl.load(places, mask=inside, other=0).to(tl.float32)
    places, inside = tile_at(x, rows, channels, row, channel)
    value = tl.load(places, mask=inside, other=0).to(tl.float32)
    if not ADD:  # with a sum, the gradient comes from `_gradient_sums_kernel`, past the ReLU
        scale, shift = _scale_and_shift(mean, rstd, weight, bias, channel, channel < channels)
        gradient = tl.where(value * scale[None, :] + shift[None, :] > 0, gradient, 0)
    result = _by_input(value, gradient, totals, 1, mean, rstd, weight, rows, channels, channel)
    places, inside = tile_at(by_x, rows, channels, row, channel)
    tl.store(places, result, mask=inside)
    if NORM_SKIP:
        places, inside = tile_at(skip, rows, channels, row, channel)
        value = tl.load(places, mask=inside, other=0).to(tl.float32)
        result = _by_input(
            value, gradient, totals, 2, skip_mean, skip_rstd, skip_weight, rows, channels, channel
        )
        places, inside = tile_at(by_skip, rows, channels, row, channel)
        tl.store(places, result, mask=inside)


class Shape:
    """How a matrix of activations is cut up among programs."""

    def __init__(self, x: Tensor, tile: int = TILE) -> None:
        self.channels = x.shape[1]
        self.rows = x.numel() // self.channels
        self.block = min(128, max(8, triton.next_power_of_2(self.channels)))
        self.tile = tile // self.block  # rows of a tile
        self.blocks = triton.cdiv(self.channels, self.block)
        tiles = triton.cdiv(self.rows, self.tile)
        tiles_each = triton.cdiv(tiles, max(1, PROGRAMS // self.blocks))
        self.rows_each = tiles_each * self.tile
        self.parts = triton.cdiv(tiles, tiles_each)
        self.everywhere = (tiles * self.blocks,)
        self.in_parts = (self.parts * self.blocks,)


def _statistics(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """Mean and 1 / deviation of every channel, [2, C]; the running ones follow."""
    shape = Shape(x)
    sums = x.new_empty(shape.parts, 2, shape.channels, dtype=torch.float32)
    statistics = x.new_empty(2, shape.channels, dtype=torch.float32)
    _moments_kernel[shape.in_parts](
        x, sums, shape.rows, shape.channels, shape.rows_each, shape.tile, shape.block, STAGES
    )
    _statistics_kernel[(triton.cdiv(shape.channels, CHANNELS_EACH),)](
        x, sums, *statistics, norm.running_mean, norm.running_var, norm.num_batches_tracked, shape.rows,
        shape.channels, shape.parts, norm.momentum, norm.eps, PARTS, CHANNELS_EACH,
    )  # fmt: skip
    return statistics


class _NormAddReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        skip: Tensor | None,
        skip_weight: Tensor | None,
        skip_bias: Tensor | None,
        norm: nn.BatchNorm2d,
        skip_norm: nn.BatchNorm2d | None,
    ) -> tuple[Tensor, Tensor]:
        add, norm_skip = skip is not None, skip_norm is not None
        # First the skip, which has lain there for longer: the cache still holds the end of x afterwards.
        skip_statistics = _statistics(skip, skip_norm) if skip is not None and skip_norm else None
        statistics = _statistics(x, norm)
        shape, y = Shape(x), torch.empty_like(x)
        alive = x.new_empty(shape.rows, shape.channels // 8, dtype=torch.uint8) if add else None
        _apply_kernel[shape.everywhere](
            x, skip, y, alive, *statistics, weight, bias, *pair(skip_statistics), skip_weight, skip_bias,
            shape.rows, shape.channels, add, norm_skip, shape.tile, shape.block,
        )  # fmt: skip
        ctx.save_for_backward(
            x, alive, statistics, weight, bias, skip if norm_skip else None, skip_statistics, skip_weight
        )
        ctx.add, ctx.norm_skip = add, norm_skip
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        x, alive, statistics, weight, bias, skip, skip_statistics, skip_weight = ctx.saved_tensors
        gradients: list[Tensor | None] = [like(g, x) for g in by_outputs if g is not None]
        by_y, by_y_too, *_ = [*gradients, None, None]
        if by_y is None:
            return (None,) * 8
        two, kinds = by_y_too is not None, 3 if ctx.norm_skip else 2
        tile, stages = SUMS["normalised skip" if ctx.norm_skip else "skip" if ctx.add else "nothing"]
        if x.dtype == torch.float32:  # three stages of that are more than the shared memory of desktop GPUs
            stages = min(stages, 2)
        shape = Shape(x, tile)
        rows, channels, block = shape.rows, shape.channels, shape.block
        sums = x.new_empty(shape.parts, kinds, channels, dtype=torch.float32)
        totals = x.new_empty(kinds, channels, dtype=torch.float32)
        by_sum = torch.empty_like(x) if ctx.add else None
        _gradient_sums_kernel[shape.in_parts](
            x, skip, alive, by_y, by_y_too, by_sum, sums, *statistics, weight, bias, *pair(skip_statistics),
            rows, channels, shape.rows_each, ctx.add, ctx.norm_skip, two, shape.tile, block, stages,
        )  # fmt: skip
        _parameter_gradients_kernel[(triton.cdiv(channels, CHANNELS_EACH), kinds)](
            sums, totals, channels, shape.parts, kinds, PARTS, CHANNELS_EACH
        )
        by_x, shape = torch.empty_like(x), Shape(x)
        by_skip = torch.empty_like(x) if ctx.norm_skip else by_sum
        if ctx.add:  # the two gradients are one by now
            by_y, by_y_too, two = by_sum, None, False
        _gradient_kernel[shape.everywhere](
            x, skip, by_y, by_y_too, by_x, by_skip, totals, *statistics, weight, bias,
            *pair(skip_statistics), skip_weight, rows, channels, ctx.add, ctx.norm_skip, two, shape.tile,
            block,
        )  # fmt: skip
        by_bias, by_weight, *by_skip_weight = totals
        by_norm = (by_x, by_weight, by_bias)
        if not ctx.norm_skip:
            return *by_norm, by_skip, None, None, None, None
        # Both biases are added to the same sum; autograd may add to a gradient, so each has its own.
        return *by_norm, by_skip, by_skip_weight[0], by_bias.clone(), None, None


def pair(statistics: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if statistics is None else (statistics[0], statistics[1])


def like(gradient: Tensor, x: Tensor) -> Tensor:
    """In the type and the layout of x."""
    return gradient.to(x.dtype).contiguous(memory_format=torch.channels_last)


def norm_add_relu(
    x: Tensor,
    norm: nn.BatchNorm2d,
    skip: Tensor | None = None,
    skip_norm: nn.BatchNorm2d | None = None,
) -> tuple[Tensor, Tensor]:
    """relu(norm(x) + skip_norm(skip)) with the batch's statistics, twice: the gradients of both meet in one
    kernel.

    x and skip are channels_last [N, C, H, W]. The running statistics move as the norms' own would.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    skip = None if skip is None else like(skip, x)
    skip_parameters = (None, None) if skip_norm is None else (skip_norm.weight, skip_norm.bias)
    with on_device_of(x):  # autograd looks after the way back
        return _NormAddReLU.apply(x, norm.weight, norm.bias, skip, *skip_parameters, norm, skip_norm)
