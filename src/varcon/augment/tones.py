"""Operations on the tones of uint8 images, a different one for every image of a batch, exact as Pillow's.

All but two of them map each channel's 256 levels by a table, which is made for the operation that an image
has; the pixels are then looked up once, whatever their number.
"""

from __future__ import annotations

import torch
from torch import Tensor

TONES = (
    "brightness",
    "contrast",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
    "invert",
    "colour",
    "sharpness",
)


def apply_tones(images: Tensor, chosen: Tensor, strength: Tensor) -> Tensor:
    """`chosen` [N] is each image's place in TONES, or another number for none.

    `strength` [N] is the factor of brightness, contrast, colour and sharpness (1 changes nothing), the bits
    that posterize keeps, the level from which solarize inverts; the others have none.
    """
    table = tables(images, chosen, strength)  # [N, 3, 256]
    looked_up = table.flatten(1).gather(1, _places(images)).view_as(images)
    factor = strength[:, None, None, None]
    grey = _grey(images)[:, None].expand_as(images)
    result = torch.where(_is("colour", chosen), _blend(grey, images, factor), looked_up)
    return torch.where(_is("sharpness", chosen), _blend(_smooth(images), images, factor), result)


def tables(images: Tensor, chosen: Tensor, strength: Tensor) -> Tensor:
    """What becomes of each level in each channel, uint8 [N, 3, 256]."""
    level = torch.arange(256, device=images.device).expand(len(images), 3, 256)
    number = strength[:, None, None]
    counts = histograms(images)
    mean_grey = (_grey(images).float().mean((1, 2)) + 0.5).floor()[:, None, None]
    step = 2 ** (8 - number).clamp(0, 8)
    by_name = {
        "brightness": _blend(torch.zeros_like(level), level, number),
        "contrast": _blend(mean_grey.expand_as(level), level, number),
        "posterize": (level / step).floor() * step,
        "solarize": torch.where(level < number, level, 255 - level),
        "autocontrast": _stretched(level, counts),
        "equalize": _equalized(level, counts),
        "invert": 255 - level,
    }
    result = level.to(torch.uint8)
    for name, table in by_name.items():
        result = torch.where(_is(name, chosen)[..., 0], table.to(torch.uint8), result)
    return result


def histograms(images: Tensor) -> Tensor:
    """How many pixels of each channel have each level, [N, 3, 256]."""
    n = len(images)
    places = _places(images) + 768 * torch.arange(n, device=images.device)[:, None]
    counts = torch.zeros(n * 768, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(0, places.flatten(), counts.new_ones(()).expand(places.numel())).view(
        n, 3, 256
    )


def _places(images: Tensor) -> Tensor:
    """Of each pixel in its image's three histograms or tables, one after the other, [N, 3 H W]."""
    channel = torch.arange(3, device=images.device)[:, None, None]
    return (images.long() + 256 * channel).flatten(1)


def _stretched(level: Tensor, counts: Tensor) -> Tensor:
    """From the darkest and the brightest level there are to 0 and 255."""
    present = counts > 0
    low = present.int().argmax(2, keepdim=True)
    high = 255 - present.flip(2).int().argmax(2, keepdim=True)
    span = (high - low).clamp(min=1).double()
    scale = torch.full_like(span, 255.0) / span  # torch's number / tensor multiplies by a rounded reciprocal
    # As Pillow rounds: the offset is a product of its own.
    stretched = (level * scale + (-low * scale)).clamp(0, 255).long()
    return torch.where(high > low, stretched, level)


def _equalized(level: Tensor, counts: Tensor) -> Tensor:
    """Levels as far apart as pixels lie between them."""
    high = 255 - (counts > 0).flip(2).int().argmax(2, keepdim=True)
    step = (counts.sum(2, keepdim=True) - counts.gather(2, high)) // 255
    before = counts.cumsum(2) - counts
    spread = (before + step // 2) // step.clamp(min=1)
    return torch.where(step > 0, spread.clamp(max=255), level)


def _grey(images: Tensor) -> Tensor:
    """Pillow's luma in whole numbers, [N, H, W]."""
    red, green, blue = images.int().unbind(1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def _smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: the mean of 3 x 3 pixels, the middle one counted five times; edges stay."""
    if min(images.shape[2:]) < 3:
        return images
    level = images.short()
    rows = level[:, :, :-2] + level[:, :, 1:-1] + level[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    smoothed = images.clone()
    smoothed[:, :, 1:-1, 1:-1] = ((box + 4 * level[:, :, 1:-1, 1:-1] + 6) // 13).to(torch.uint8)
    return smoothed


def _blend(other: Tensor, own: Tensor, factor: Tensor) -> Tensor:
    """other + factor (own - other), rounded towards zero like Pillow's."""
    blended = other + factor * (own.float() - other)
    return blended.clamp(0, 255).to(torch.uint8)


def _is(name: str, chosen: Tensor) -> Tensor:
    return (chosen == TONES.index(name))[:, None, None, None]
