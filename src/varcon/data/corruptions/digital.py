"""What processing does: contrast, warps, coarse pixels, JPEG."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from varcon.data.corruptions.blur import smooth
from varcon.data.corruptions.draws import LEVELS, Draws


def contrast(images: Tensor, draws: Draws, factor: float) -> Tensor:
    _, _, height, width = images.shape
    pixels = images.float() / 255
    sums = images.sum(dim=(2, 3), keepdim=True)  # of whole numbers: exact in any order
    means = sums.float() / (255 * height * width)
    return (pixels - means) * factor + means


def elastic_transform(
    images: Tensor, draws: Draws, strength: float, smoothness: float, shift: float
) -> Tensor:
    """A random affine map, then smooth random displacements, each with linear interpolation."""
    _, _, height, width = images.shape
    side = min(height, width)
    row = torch.arange(height, dtype=torch.float32, device=images.device)[:, None]
    column = torch.arange(width, dtype=torch.float32, device=images.device)
    # Three corners of a square about the middle move; the image follows.
    third, middle_y, middle_x = side // 3, height // 2, width // 2
    moves = (2 * draws.uniform(6) - 1) * (shift * side)
    (y0, x0), (y1, x1), (y2, x2) = (
        (
            (middle_y + down * third + moves[:, 2 * i])[:, None, None],
            (middle_x + right * third + moves[:, 2 * i + 1])[:, None, None],
        )
        for i, (down, right) in enumerate(((1, 1), (-1, 1), (-1, -1)))
    )
    # A pixel as second corner + a (first - second) + b (third - second), after the move; then, with the same
    # a and b, before it.
    determinant = (x0 - x1) * (y2 - y1) - (x2 - x1) * (y0 - y1)
    determinant = torch.where(determinant.abs() < 1, 1.0, determinant)  # three corners almost in a line
    a = ((column - x1) * (y2 - y1) - (x2 - x1) * (row - y1)) / determinant  # [N, H, W]
    b = ((x0 - x1) * (row - y1) - (column - x1) * (y0 - y1)) / determinant
    from_y, from_x = middle_y - third + a * (2 * third), middle_x + third - b * (2 * third)
    warped = sample(images.float() / 255, from_y, from_x, repeat_edge=False)
    if strength == 0:
        return warped
    noise = 2 * draws.levels(2, height, width).double() - (LEVELS - 1)  # whole, up to 2^16 either way
    field = smooth(noise, smoothness * side, "reflect", 3.0) * (strength * side / LEVELS)
    down, right = field.float().unbind(1)
    return sample(warped, row + down, column + right, repeat_edge=True)


def pixelate(images: Tensor, draws: Draws, share: float) -> Tensor:
    """Fewer pixels, each the mean of those whose centres it covers, and these spread out again."""
    full = images.shape
    for dim in (3, 2):  # rounded after each, columns first, as Pillow does
        images = _box_means(images, dim, max(1, int(full[dim] * share)))
    for dim in (3, 2):
        middles = 2 * torch.arange(full[dim], device=images.device) + 1  # twice the place of a pixel's middle
        images = images.index_select(dim, middles * images.shape[dim] // (2 * full[dim]))
    return images


def jpeg_compression(images: Tensor, draws: Draws, quality: float) -> Tensor:
    return through_jpeg(images, round(quality))


def through_jpeg(images: Tensor, quality: int) -> Tensor:
    from PIL import Image

    decoded = np.empty((len(images), *images.shape[2:], 3), np.uint8)
    for i, image in enumerate(images.permute(0, 2, 3, 1).cpu().numpy()):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=quality)
        with Image.open(stream, formats=["JPEG"]) as compressed:
            decoded[i] = compressed
    return torch.from_numpy(decoded).permute(0, 3, 1, 2).to(images.device)


def sample(images: Tensor, rows: Tensor, columns: Tensor, repeat_edge: bool) -> Tensor:
    """The images between their pixels, at [N, H, W] rows and columns; mirrored beyond the edges."""
    _, channels, height, width = images.shape
    flat = images.flatten(2)
    top, left = rows.floor(), columns.floor()
    down, right = ((at - first).flatten(1)[:, None] for at, first in ((rows, top), (columns, left)))

    def pixels(row: Tensor, column: Tensor) -> Tensor:
        row, column = mirror(row, height, repeat_edge), mirror(column, width, repeat_edge)
        return flat.gather(2, (row * width + column).flatten(1)[:, None].expand(-1, channels, -1))

    upper, lower = (
        before + (pixels(row, left.long() + 1) - before) * right
        for row in (top.long(), top.long() + 1)
        for before in (pixels(row, left.long()),)
    )
    return (upper + (lower - upper) * down).view_as(images)


def mirror(position: Tensor, size: int, repeat_edge: bool) -> Tensor:
    """Whole positions anywhere to those in 0..size-1: ...2 1 0 0 1 2... or ...2 1 0 1 2..."""
    if repeat_edge:
        position = position.remainder(2 * size)
        return torch.minimum(position, 2 * size - 1 - position)
    period = max(2 * (size - 1), 1)
    position = position.remainder(period)
    return torch.minimum(position, period - position)


def _box_means(images: Tensor, dim: int, size: int) -> Tensor:
    """`size` means along one axis, rounded to whole numbers, halves up."""
    before = images.shape[dim]
    borders = (2 * torch.arange(size + 1, device=images.device) * before + size) // (2 * size)
    running = torch.cat([images.new_zeros(()).expand(images.narrow(dim, 0, 1).shape), images], dim)
    running = running.cumsum(dim, dtype=torch.int64).index_select(dim, borders)
    counts = borders.diff().view([-1 if d == dim else 1 for d in range(4)])
    return ((2 * running.diff(dim=dim) + counts) // (2 * counts)).to(torch.uint8)
