"""Blurs of the lens, of glass and of movement.

Sums are of whole numbers, which floating point holds exactly, or run element by element in a fixed order:
the order in which a matrix product or a convolution adds would depend on the size of the batch.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.data.corruptions.draws import Draws

FIXED_POINT = 1 << 16  # of the weights of a Gaussian
LEAST_WEIGHT = 1e-5  # of a streak's pixel; what weighs less cannot change a level
LEAST_BOX = 1e-7  # of a box of a defocused disk; all that weigh less together are a hundredth of a level


def defocus_blur(images: Tensor, draws: Draws, radius: float, rim: float) -> Tensor:
    """Each point becomes a disk."""
    kernel = disk(radius, rim)
    reach = len(kernel) // 2
    _, _, height, width = images.shape
    running = F.pad(F.pad(images.float(), (reach,) * 4, mode="reflect").cumsum(dim=3), (1, 0))
    total = torch.zeros(images.shape, device=images.device)
    # A row of the kernel, and the equal one on the other side of its middle, is a sum of boxes; a box is a
    # difference of running sums.
    for away, row in enumerate(kernel[reach:, reach:]):
        line = running[:, :, reach + away : reach + away + height]
        if away:
            line = line + running[:, :, reach - away : reach - away + height]
        for half, weight in enumerate((row - np.append(row[1:], 0)).tolist()):
            if abs(weight) > LEAST_BOX:
                end, start = reach + half + 1, reach - half
                box = line[..., end : end + width] - line[..., start : start + width]
                total.add_(box, alpha=weight / 255)
    return total


def disk(radius: float, rim: float) -> np.ndarray:
    """The weights of a disk whose rim a Gaussian smooths over 3 x 3 pixels (5 x 5 above radius 8).

    As published it is smoothed within an array of its own, at least 17 x 17, that is mirrored at its borders:
    where the disk touches them, at the radii 8 and 10, its weights sum to 1.013 and 1.011.
    """
    from scipy.ndimage import correlate1d

    reach, extra = (8, 1) if radius <= 8 else (int(radius), 2)
    places = np.arange(-reach, reach + 1)
    inside = (places**2 + places[:, None] ** 2 <= radius**2).astype(float)
    taps = np.exp(-0.5 * (np.arange(-extra, extra + 1) / rim) ** 2)
    kernel = inside / inside.sum()
    for axis in (0, 1):
        kernel = correlate1d(kernel, taps / taps.sum(), axis, mode="mirror")
    unused = int(np.argmax(kernel.max(axis=1) > 0))  # empty rows above; the images need no padding for them
    return kernel[unused : len(kernel) - unused, unused : len(kernel) - unused]


def glass_blur(images: Tensor, draws: Draws, deviation: float, reach: float, rounds: float) -> Tensor:
    """Pixels near to each other change places, between two Gaussian blurs.

    From the last pixel to the first, each takes the value that another within `reach` has by then. (The
    published script means to swap the two; its assignment of array views copies, and so do its images.)
    """
    _, _, height, width = images.shape
    distance = round(reach)
    soft = gaussian_blur(images, deviation).mul_(255).round_()
    source = torch.arange(height * width, device=images.device)[:, None].repeat(1, len(images))  # [H W, N]
    for _ in range(round(rounds)):
        down, right = (draws.below(2 * distance, 2, height * width) - distance).unbind(1)
        taken = (down * width + right).T.contiguous()
        for pixels in _waves(height, width, distance, images.device):
            source[pixels] = source.gather(0, pixels[:, None] + taken[pixels])
    moved = soft.flatten(2).gather(2, source.T[:, None].expand(-1, 3, -1)).view_as(soft)
    return gaussian_blur(moved, deviation)


def motion_blur(images: Tensor, draws: Draws, radius: float, deviation: float) -> Tensor:
    cosine, sine = draws.direction(-45, 45)
    return streak(images.float() / 255, round(radius), deviation, cosine, sine)


def zoom_blur(images: Tensor, draws: Draws, end: float, step: float) -> Tensor:
    """The mean of the image and of its enlargements; the range's first, of factor 1, is the image again."""
    pixels = (images.float() / 255).permute(2, 3, 0, 1).contiguous()
    factors = np.arange(1, end, step).tolist()
    total = pixels.clone()
    for factor in factors:
        total += zoomed(pixels, factor)
    return (total / (len(factors) + 1)).permute(2, 3, 0, 1)


def gaussian_blur(images: Tensor, deviation: float) -> Tensor:
    """Of whole numbers in 0..255, edges repeated; float32 in [0, 1]."""
    return (smooth(images.double(), deviation, "nearest", 4.0) / 255).float()


def smooth(values: Tensor, deviation: float, edges: str, truncate: float) -> Tensor:
    """A Gaussian blur of whole numbers up to 2^17, float64 [..., H, W], as scipy.ndimage defines it.

    Its weights are whole multiples of 2^-16, so the products and sums of both passes fit into float64's 53
    bits and are exact, in whatever order a matrix product adds.
    """
    height, width = values.shape[-2:]
    across = values @ gaussian_matrix(width, deviation, edges, truncate, values.device).T
    return gaussian_matrix(height, deviation, edges, truncate, values.device) @ across / FIXED_POINT**2


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def gaussian_matrix(size: int, deviation: float, edges: str, truncate: float, device: torch.device) -> Tensor:
    """[size, size] whole numbers; every row sums to 2^16, so that an even image stays as it is."""
    from scipy.ndimage import gaussian_filter1d

    weights = gaussian_filter1d(np.eye(size), deviation, axis=0, mode=edges, truncate=truncate)
    fixed = np.rint(weights * FIXED_POINT)
    fixed[np.arange(size), fixed.argmax(axis=1)] += FIXED_POINT - fixed.sum(axis=1)
    return torch.from_numpy(fixed).to(device)


def streak(images: Tensor, radius: int, deviation: float, cosine: Tensor, sine: Tensor) -> Tensor:
    """Each pixel becomes a half-Gaussian mean of those along a line from it, edges repeated.

    As ImageMagick's motion blur: 2 radius + 1 taps a pixel apart, at the nearest whole pixels. The direction
    is one for each image, [N, 1, 1], or one for each pixel, [N, H, W].
    """
    _, channels, height, width = images.shape
    taps = np.exp(-0.5 * (np.arange(2 * radius + 1) / deviation) ** 2)
    taps = taps[taps > LEAST_WEIGHT * taps.sum()]
    flat, blurred = images.flatten(2), torch.zeros(1, device=images.device)
    row = torch.arange(height, device=images.device)[:, None]
    column = torch.arange(width, device=images.device)
    for distance, weight in enumerate((taps / taps.sum()).tolist()):
        down, right = ((distance * part - 0.5).ceil().long() for part in (sine, cosine))
        rows, columns = (row + down).clamp(0, height - 1), (column + right).clamp(0, width - 1)
        source = (rows * width + columns).flatten(1)[:, None]  # [N, 1, H W]
        blurred = blurred + weight * flat.gather(2, source.expand(-1, channels, -1))
    return blurred.view_as(images)


def zoomed(images: Tensor, factor: float) -> Tensor:
    """The middle of images [H, W, ...], enlarged to their size by linear interpolation.

    Rows and columns come first: whole runs of values then share a weight, which a CPU finds much faster.
    """
    for dim in (0, 1):
        first, share = (taps.to(images.device) for taps in _zoom_taps(images.shape[dim], factor))
        before = images.index_select(dim, first)
        images = images.index_select(dim, (first + 1).clamp(max=images.shape[dim] - 1))
        share = share.view([-1 if d == dim else 1 for d in range(images.ndim)])
        images = images.sub_(before).mul_(share).add_(before)
    return images


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _zoom_taps(size: int, factor: float) -> tuple[Tensor, Tensor]:
    """The crop's pixel before each output pixel, and how far the output lies towards the next."""
    crop = math.ceil(size / factor)
    enlarged = round(crop * factor)
    position = np.arange(size) + (enlarged - size) // 2
    source = (size - crop) // 2 + position * (crop - 1) / max(
        enlarged - 1, 1
    )  # the ends meet the crop's ends
    first = np.floor(source)
    return torch.from_numpy(first.astype(np.int64)), torch.from_numpy((source - first).astype(np.float32))


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _waves(height: int, width: int, reach: int, device: torch.device) -> list[Tensor]:
    """The pixels from the last to the first in groups that may be displaced at once.

    A pixel asks no further than `reach`. A row that begins reach + 1 steps after the one below it finds all
    it may ask for done or undone just as one by one, in far fewer steps.
    """
    down, right = np.mgrid[height - reach : reach : -1, width - reach : reach : -1]
    step = (height - reach - down) * (reach + 1) + (width - reach - right)
    flat = down * width + right
    return [torch.from_numpy(flat[step == wave]).to(device) for wave in range(int(step.max()) + 1)]
