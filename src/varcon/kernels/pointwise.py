"""A 1x1 convolution with the batch normalisation after it, as one matrix product.

Such a convolution is linear in each pixel, z = W x, so the statistics of its result follow from the mean m
and the covariance C of its input, before any of it is computed: the mean is W m, the variance the diagonal of
W C W'. The product's own epilogue then normalises, adds the skip and cuts by the ReLU: z is never written.

Neither is its gradient. With g the gradient of what is normalised, n rows (one a pixel), r = 1 / deviation,
a = r weight, P = sum of g (x - m)' over the rows, and s = sum of g times the normalised z = r rowsum(W * P):

    by W = a P - r a s W C
    by x = g (a W) - (x - m) (W' diag(r a s / n) W) - mean(g) (a W)

where the products with x and g are all that is of the activations' size. Where a convolution widens, as the
last one of a bottleneck does, from 64 channels to 256, this spares half of the passes over the wide side. It
spares most at a network's start: a 3x3 convolution of images is linear in the 27 values around each pixel,
and where there is no gradient by x, g is needed in P alone.

Activations are channels_last: matrices [rows, channels]. Sums are float32 in a fixed order: results repeat
bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from varcon.kernels import on_device_of
from varcon.kernels.batch_norm import (
    PROGRAMS,
    Shape,
    follow,
    keep_alive,
    like,
    not_below_zero,
    part_from_the_end,
    tile_at,
    where_alive,
)


class Tiling(NamedTuple):
    """How a product of matrices is cut up: a tile of the result, how much is added up to it at once, the
    warps that share it, and how many loads are under way."""

    high: int
    wide: int
    deep: int
    warps: int
    stages: int


FEW = 16  # channels of one program where matrices of weights are worked on
PRODUCTS = Tiling(64, 128, 128, 4, 2)  # the fastest of some dozens tried, as are the next two
FORWARD = Tiling(64, 64, 64, 4, 1)
BACKWARD = Tiling(64, 128, 64, 4, 2)


@triton.jit
def _neighbours_kernel(images, out, rows, height, width, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A row for each pixel: the channels of the 3x3 pixels around it, 0 beyond the edge, and 0 at the end."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    down, across = column // (3 * channels) - 1, column // channels % 3 - 1
    y, x = row // width % height + down, row % width + across
    inside = (row < rows) & (column < 9 * channels) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    source = (row + down * width + across).to(tl.int64) * channels + column % channels
    value = tl.load(images + source, mask=inside, other=0)
    tl.store(out + row.to(tl.int64) * COLUMNS + column, value, mask=row < rows)


@triton.jit
def _products_kernel(
    a, a_too, alive, b, out, rows, wide, narrow, rows_each,
    TWO: tl.constexpr, CUT: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Each program's share of sum(a b') over the rows, a [rows, wide] and b [rows, narrow], and of sum(a).

    a may come in two parts, to be added up, and as a gradient that has yet to go back through a ReLU.
    """
    across, down = tl.cdiv(narrow, NARROW), tl.cdiv(wide, WIDE)
    part = tl.program_id(0) // (across * down)
    block = tl.program_id(0) % (across * down)
    first = (block // across) * WIDE + tl.arange(0, WIDE)
    second = (block % across) * NARROW + tl.arange(0, NARROW)
    product = tl.zeros([WIDE, NARROW], tl.float32)
    total = tl.zeros([WIDE], tl.float32)
    for start in range(0, rows_each, ROWS):
        row = part * rows_each + start + tl.arange(0, ROWS)
        places, inside = tile_at(a, rows, wide, row, first)
        left = tl.load(places, mask=inside, other=0)
        if TWO:
            places, inside = tile_at(a_too, rows, wide, row, first)
            both = left.to(tl.float32) + tl.load(places, mask=inside, other=0).to(tl.float32)
            left = both.to(left.dtype)
        if CUT:
            left = where_alive(left, alive, rows, wide, row, block // across, ROWS, WIDE)
        places, inside = tile_at(b, rows, narrow, row, second)
        right = tl.load(places, mask=inside, other=0)
        product = tl.dot(tl.trans(left), right, product, input_precision="ieee")
        total += tl.sum(left.to(tl.float32), 0)
    out += part * (wide * narrow + wide)
    inside = (first < wide)[:, None] & (second < narrow)[None, :]
    tl.store(out + first[:, None] * narrow + second[None, :], product, mask=inside)
    if block % across == 0:
        tl.store(out + wide * narrow + first, total, mask=first < wide)


@triton.jit
def _spread_kernel(weight, moments, spread, rows, wide, narrow, WIDE: tl.constexpr, NARROW: tl.constexpr):
    """W sum(x x') / n."""
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    column = tl.program_id(1) * NARROW + tl.arange(0, NARROW)
    product = tl.zeros([WIDE, NARROW], tl.float32)
    for start in range(0, narrow, NARROW):
        between = start + tl.arange(0, NARROW)
        places, inside = tile_at(weight, wide, narrow, channel, between)
        left = tl.load(places, mask=inside, other=0).to(tl.float32)
        places, inside = tile_at(moments, narrow, narrow, between, column)
        right = tl.load(places, mask=inside, other=0) / rows
        product = tl.dot(left, right, product, input_precision="tf32x3")
    places, inside = tile_at(spread, wide, narrow, channel, column)
    tl.store(places, product, mask=inside)


@triton.jit
def _known_statistics_kernel(
    weight, moments, spread, statistics, gamma, beta, running_mean, running_var, batches, rows, wide, narrow,
    momentum, epsilon, WIDE: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Mean and variance of W x by those of x; `spread` becomes W C, which the backward pass asks for again.

    `moments` is sum(x x') and sum(x). `statistics` gets 1 / deviation, and scale and shift of the result.
    """
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    exists = channel < wide
    mean = tl.zeros([WIDE], tl.float32)
    for start in range(0, narrow, NARROW):
        column = start + tl.arange(0, NARROW)
        places, inside = tile_at(weight, wide, narrow, channel, column)
        centre = tl.load(moments + narrow * narrow + column, mask=column < narrow, other=0) / rows
        mean += tl.sum(tl.load(places, mask=inside, other=0).to(tl.float32) * centre[None, :], 1)
    variance = tl.zeros([WIDE], tl.float32)
    for start in range(0, narrow, NARROW):
        column = start + tl.arange(0, NARROW)
        centre = tl.load(moments + narrow * narrow + column, mask=column < narrow, other=0) / rows
        places, inside = tile_at(weight, wide, narrow, channel, column)
        own = tl.load(places, mask=inside, other=0).to(tl.float32)
        places, inside = tile_at(spread, wide, narrow, channel, column)
        product = tl.load(places, mask=inside, other=0) - mean[:, None] * centre[None, :]
        tl.store(places, product, mask=inside)
        variance += tl.sum(product * own, 1)
    variance = not_below_zero(variance)
    inverse = 1 / tl.sqrt(variance + epsilon)
    scale = tl.load(gamma + channel, mask=exists, other=0) * inverse
    tl.store(statistics + channel, inverse, mask=exists)
    tl.store(statistics + wide + channel, scale, mask=exists)
    shift = tl.load(beta + channel, mask=exists, other=0) - mean * scale
    tl.store(statistics + 2 * wide + channel, shift, mask=exists)
    follow(running_mean, running_var, mean, variance, channel, exists, rows, momentum)


@triton.jit
def _forward_kernel(
    x, weight, skip, y, alive, statistics, rows, wide, narrow,
    ADD: tl.constexpr, CUT: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """scale * (W x) + shift, and the skip; or the ReLU of it, and which of its elements live, as bits."""
    row, channel, block = part_from_the_end(wide, ROWS, WIDE)
    exists = channel < wide
    product = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(0, narrow, NARROW):
        column = start + tl.arange(0, NARROW)
        places, inside = tile_at(x, rows, narrow, row, column)
        left = tl.load(places, mask=inside, other=0)
        places, inside = tile_at(weight, wide, narrow, channel, column)
        right = tl.load(places, mask=inside, other=0)
        product = tl.dot(left, tl.trans(right), product, input_precision="ieee")
    scale = tl.load(statistics + wide + channel, mask=exists, other=0)
    shift = tl.load(statistics + 2 * wide + channel, mask=exists, other=0)
    value = product * scale[None, :] + shift[None, :]
    if ADD:
        places, inside = tile_at(skip, rows, wide, row, channel)
        value += tl.load(places, mask=inside, other=0).to(tl.float32)
    if CUT:
        keep_alive(value, alive, rows, wide, row, block, ROWS, WIDE)
        value = not_below_zero(value)
    places, inside = tile_at(y, rows, wide, row, channel)
    tl.store(places, value, mask=inside)


@triton.jit
def _past_relu_kernel(
    by_y, by_y_too, alive, by_sum, rows, channels,
    TWO: tl.constexpr, CUT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The gradient before the ReLU, if there is one, from that after it, or from two of them."""
    row, channel, block = part_from_the_end(channels, ROWS, CHANNELS)
    places, inside = tile_at(by_y, rows, channels, row, channel)
    gradient = tl.load(places, mask=inside, other=0).to(tl.float32)
    if TWO:
        places, inside = tile_at(by_y_too, rows, channels, row, channel)
        gradient += tl.load(places, mask=inside, other=0).to(tl.float32)
    if CUT:
        gradient = where_alive(gradient, alive, rows, channels, row, block, ROWS, CHANNELS)
    places, inside = tile_at(by_sum, rows, channels, row, channel)
    tl.store(places, gradient, mask=inside)


@triton.jit
def _weights_kernel(
    weight, moments, products, spread, statistics, by_weight, by_gamma, by_beta, scaled, bent, rows, wide,
    narrow, WIDE: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Gradients of all weights; and a W and diag(-r a s / n) W, of which the gradient of x is made.

    `products` is sum(g x') and sum(g), of which P is the first with x less its mean.
    """
    channel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    exists = channel < wide
    total = tl.load(products + wide * narrow + channel, mask=exists, other=0)
    inverse = tl.load(statistics + channel, mask=exists, other=0)
    scale = tl.load(statistics + wide + channel, mask=exists, other=0)
    along = tl.zeros([WIDE], tl.float32)
    for start in range(0, narrow, NARROW):
        column = start + tl.arange(0, NARROW)
        centre = tl.load(moments + narrow * narrow + column, mask=column < narrow, other=0) / rows
        places, inside = tile_at(weight, wide, narrow, channel, column)
        own = tl.load(places, mask=inside, other=0).to(tl.float32)
        places, inside = tile_at(products, wide, narrow, channel, column)
        product = tl.load(places, mask=inside, other=0) - total[:, None] * centre[None, :]
        along += tl.sum(own * product, 1)
    along *= inverse
    tl.store(by_gamma + channel, along, mask=exists)
    tl.store(by_beta + channel, total, mask=exists)
    slope = scale * inverse * along
    for start in range(0, narrow, NARROW):
        column = start + tl.arange(0, NARROW)
        centre = tl.load(moments + narrow * narrow + column, mask=column < narrow, other=0) / rows
        places, inside = tile_at(weight, wide, narrow, channel, column)
        own = tl.load(places, mask=inside, other=0).to(tl.float32)
        places, inside = tile_at(products, wide, narrow, channel, column)
        product = tl.load(places, mask=inside, other=0) - total[:, None] * centre[None, :]
        places, inside = tile_at(spread, wide, narrow, channel, column)
        product = scale[:, None] * product - slope[:, None] * tl.load(places, mask=inside, other=0)
        places, inside = tile_at(by_weight, wide, narrow, channel, column)
        tl.store(places, product, mask=inside)
        places, inside = tile_at(scaled, wide, narrow, channel, column)
        tl.store(places, scale[:, None] * own, mask=inside)
        places, inside = tile_at(bent, wide, narrow, channel, column)
        tl.store(places, -slope[:, None] / rows * own, mask=inside)


@triton.jit
def _constant_kernel(
    products, moments, scaled, square, constant, rows, wide, narrow,
    DEEP: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """What the gradient of x has in every row. By the matrices as they were rounded: the rows still add up to
    nothing."""
    column = tl.program_id(0) * NARROW + tl.arange(0, NARROW)
    value = tl.zeros([NARROW], tl.float32)
    for start in range(0, wide, DEEP):
        channel = start + tl.arange(0, DEEP)
        mean = tl.load(products + wide * narrow + channel, mask=channel < wide, other=0) / rows
        places, inside = tile_at(scaled, wide, narrow, channel, column)
        value -= tl.sum(mean[:, None] * tl.load(places, mask=inside, other=0).to(tl.float32), 0)
    for start in range(0, narrow, DEEP):
        channel = start + tl.arange(0, DEEP)
        mean = tl.load(moments + narrow * narrow + channel, mask=channel < narrow, other=0) / rows
        places, inside = tile_at(square, narrow, narrow, channel, column)
        value -= tl.sum(mean[:, None] * tl.load(places, mask=inside, other=0).to(tl.float32), 0)
    tl.store(constant + column, value, mask=column < narrow)


@triton.jit
def _backward_kernel(
    by_sum, x, scaled, square, constant, by_x, rows, wide, narrow,
    ROWS: tl.constexpr, NARROW: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """g (a W) + x (W' diag W) + constant."""
    row, column, _ = part_from_the_end(narrow, ROWS, NARROW)
    product = tl.zeros([ROWS, NARROW], tl.float32)
    for start in range(0, wide, DEEP):
        between = start + tl.arange(0, DEEP)
        places, inside = tile_at(by_sum, rows, wide, row, between)
        left = tl.load(places, mask=inside, other=0)
        places, inside = tile_at(scaled, wide, narrow, between, column)
        right = tl.load(places, mask=inside, other=0)
        product = tl.dot(left, right, product, input_precision="ieee")
    for start in range(0, narrow, DEEP):
        between = start + tl.arange(0, DEEP)
        places, inside = tile_at(x, rows, narrow, row, between)
        left = tl.load(places, mask=inside, other=0)
        places, inside = tile_at(square, narrow, narrow, between, column)
        right = tl.load(places, mask=inside, other=0)
        product = tl.dot(left, right, product, input_precision="ieee")
    product += tl.load(constant + column, mask=column < narrow, other=0)[None, :]
    places, inside = tile_at(by_x, rows, narrow, row, column)
    tl.store(places, product, mask=inside)


def products(a: Tensor, b: Tensor, a_too: Tensor | None = None, alive: Tensor | None = None) -> Tensor:
    """sum(a b') over the rows, then sum(a), in one line of numbers; float32.

    What is to be added to a, and where it is let through, may be given.
    """
    wide, narrow = a.shape[1], b.shape[1]
    rows = a.numel() // wide
    tiling = PRODUCTS
    block, other = side(wide, tiling.high), side(narrow, tiling.wide)
    blocks = triton.cdiv(wide, block) * triton.cdiv(narrow, other)
    pieces = triton.cdiv(rows, tiling.deep)
    pieces_each = triton.cdiv(pieces, max(1, PROGRAMS // blocks))
    parts = triton.cdiv(pieces, pieces_each)
    out = a.new_empty(parts, wide * narrow + wide, dtype=torch.float32)
    _products_kernel[(parts * blocks,)](
        a, a_too, alive, b, out, rows, wide, narrow, pieces_each * tiling.deep, a_too is not None,
        alive is not None, block, other, tiling.deep, num_warps=tiling.warps, num_stages=tiling.stages,
    )  # fmt: skip
    return out.sum(0)


def side(channels: int, most: int) -> int:
    """Of a tile over so many channels."""
    return min(most, max(16, triton.next_power_of_2(channels)))


class _ConvolveNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        skip: Tensor | None,
        norm: nn.BatchNorm2d,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        wide, narrow = weight.shape[:2]
        rows = x.numel() // narrow
        moments = products(x, x)
        spread = x.new_empty(wide, narrow, dtype=torch.float32)
        statistics = x.new_empty(3, wide, dtype=torch.float32)
        square = side(narrow, 64)
        _spread_kernel[(triton.cdiv(wide, square), triton.cdiv(narrow, square))](
            weight, moments, spread, rows, wide, narrow, square, square
        )
        _known_statistics_kernel[(triton.cdiv(wide, FEW),)](
            weight, moments, spread, statistics, gamma, beta, norm.running_mean, norm.running_var,
            norm.num_batches_tracked, rows, wide, narrow, norm.momentum, norm.eps, FEW, side(narrow, 256),
        )  # fmt: skip
        y = torch.empty_like(x[:, :1].expand(-1, wide, -1, -1), memory_format=torch.channels_last)
        alive = x.new_empty(rows, wide // 8, dtype=torch.uint8) if relu else None
        tiling, block = FORWARD, side(wide, FORWARD.wide)
        _forward_kernel[(triton.cdiv(rows, tiling.high) * triton.cdiv(wide, block),)](
            x, weight, skip, y, alive, statistics, rows, wide, narrow, skip is not None, relu, tiling.high,
            block, side(narrow, tiling.deep), num_warps=tiling.warps, num_stages=tiling.stages,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, moments, spread, statistics, alive)
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, moments, spread, statistics, alive = ctx.saved_tensors
        wide, narrow = weight.shape[:2]
        rows = x.numel() // narrow
        gradients = [like(gradient, x) for gradient in by_outputs if gradient is not None]
        if not gradients:
            return (None,) * 7
        g, g_too = gradients[0], gradients[1] if len(gradients) > 1 else None
        by_x_too, by_skip_too = ctx.needs_input_grad[0], ctx.needs_input_grad[4]
        if (by_x_too or by_skip_too) and len(gradients) + (alive is not None) > 1:  # in one, and read again
            by_sum, shape = torch.empty_like(g), Shape(g)
            _past_relu_kernel[shape.everywhere](
                g, g_too, alive, by_sum, rows, wide, g_too is not None, alive is not None, shape.tile,
                shape.block,
            )  # fmt: skip
            g, g_too, alive = by_sum, None, None
        of_g = products(g, x, g_too, alive)
        by_weight, scaled, bent = (torch.empty_like(weight) for _ in range(3))
        by_gamma, by_beta = x.new_empty(2, wide, dtype=torch.float32)
        _weights_kernel[(triton.cdiv(wide, FEW),)](
            weight, moments, of_g, spread, statistics, by_weight, by_gamma, by_beta, scaled, bent, rows, wide,
            narrow, FEW, side(narrow, 256),
        )  # fmt: skip
        by_skip = g if by_skip_too else None
        if not by_x_too:
            return None, by_weight, by_gamma, by_beta, by_skip, None, None
        square = weight.view(wide, narrow).T @ bent.view(wide, narrow)
        constant = x.new_empty(narrow, dtype=torch.float32)
        _constant_kernel[(triton.cdiv(narrow, FEW),)](
            of_g, moments, scaled, square, constant, rows, wide, narrow, 256, FEW
        )
        by_x = torch.empty_like(x)
        tiling, block = BACKWARD, side(narrow, BACKWARD.wide)
        _backward_kernel[(triton.cdiv(rows, tiling.high) * triton.cdiv(narrow, block),)](
            g, x, scaled, square, constant, by_x, rows, wide, narrow, tiling.high, block, tiling.deep,
            num_warps=tiling.warps, num_stages=tiling.stages,
        )  # fmt: skip
        return by_x, by_weight, by_gamma, by_beta, by_skip, None, None


def convolve_norm(
    x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, skip: Tensor | None = None, relu: bool = False
) -> tuple[Tensor, Tensor]:
    """norm(W x) + skip with the batch's statistics, or the ReLU of it, twice: the gradients of both meet in
    one kernel.

    x and skip are channels_last [N, C, H, W], the weight is [D, C, 1, 1]. The running statistics move as the
    norm's own would.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    skip = None if skip is None else like(skip, x)
    # Of a single column or row, either order of the weights is that of a matrix.
    flat = weight.to(x.dtype).contiguous()
    with on_device_of(x):  # autograd looks after the way back
        return _ConvolveNorm.apply(x, flat, norm.weight, norm.bias, skip, norm, relu)


def convolve_images(images: Tensor, weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """relu(norm(W * images)) for a 3x3 convolution of stride 1 with zeros around the images, twice as above.

    The weight is [D, C, 3, 3]. There is no gradient of the images.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    count, channels, height, width = images.shape
    columns, rows = max(16, triton.next_power_of_2(9 * channels)), count * height * width
    neighbours = torch.empty(
        (count, columns, height, width),
        dtype=images.dtype,
        device=images.device,
        memory_format=torch.channels_last,
    )
    with on_device_of(images):
        _neighbours_kernel[(triton.cdiv(rows, 128),)](
            images, neighbours, rows, height, width, channels, 128, columns
        )
    flat = F.pad(weight.permute(0, 2, 3, 1).flatten(1), (0, columns - 9 * channels))
    return convolve_norm(neighbours, flat[:, :, None, None], norm, relu=True)
