"""AutoAugment and RandAugment: each image has its own few operations, drawn from a policy.

The geometric ones are composed with the crop and the mirror into one affine map, so that an image is
resampled once; what leaves it on the way is grey in the end, although a later operation may bring its place
back. The others change its tones afterwards, in their order. The authors' programs resample after each
operation, most of them to the nearest pixel, and let tones come before geometry where a policy says so.
What differs is that an image which is turned or sheared is smoother here and, of a tone that comes first,
that it meets the grey which fills what lies outside: the grey's level changes with the others, and equalize,
autocontrast and contrast count it in the histogram and the mean that they go by.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.augment import ops
from varcon.augment.tones import TONES, apply_tones

GEOMETRY = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
OPERATIONS = (*TONES, *GEOMETRY, "identity")  # an operation is its place here
LEVELS = 9  # magnitudes of AutoAugment's policies run from 0 to this
STRONGEST = {  # at the greatest magnitude; (Rand)AutoAugment's common ranges
    "shear_x": 0.3,
    "shear_y": 0.3,
    "translate_x": 150 / 331,  # of the image's width
    "translate_y": 150 / 331,
    "rotate": math.radians(30),
    "brightness": 0.9,  # above or below 1
    "contrast": 0.9,
    "colour": 0.9,
    "sharpness": 0.9,
    "posterize": -4.0,  # bits, of 8
    "solarize": -255.0,  # levels, of 255
}
AT_REST = {
    "brightness": 1.0,
    "contrast": 1.0,
    "colour": 1.0,
    "sharpness": 1.0,
    "posterize": 8.0,
    "solarize": 255.0,
}
SIGNED = (*GEOMETRY, "brightness", "contrast", "colour", "sharpness")
RAND_OPERATIONS = tuple(name for name in OPERATIONS if name != "invert")  # the usual fourteen
OUTSIDE = 128.0  # the level that fills an image that is moved

# Cubuk et al., CVPR 2019: sub-policies of two operations, each with its probability and its magnitude.
SubPolicy = tuple[tuple[str, float, int], tuple[str, float, int]]
POLICIES: dict[str, tuple[SubPolicy, ...]] = {
    "cifar10": (
        (("invert", 0.1, 0), ("contrast", 0.2, 6)),
        (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
        (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
        (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
        (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
        (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
        (("colour", 0.4, 3), ("brightness", 0.6, 7)),
        (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
        (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
        (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
        (("colour", 0.7, 7), ("translate_x", 0.5, 8)),
        (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
        (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
        (("brightness", 0.9, 6), ("colour", 0.2, 8)),
        (("solarize", 0.5, 2), ("invert", 0.0, 0)),
        (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
        (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
        (("colour", 0.9, 9), ("equalize", 0.6, 0)),
        (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
        (("brightness", 0.1, 3), ("colour", 0.7, 0)),
        (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
        (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
        (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
        (("equalize", 0.8, 0), ("invert", 0.1, 0)),
        (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
    ),
    "imagenet": (
        (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
        (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
        (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
        (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
        (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
        (("equalize", 0.4, 0), ("rotate", 0.8, 8)),
        (("solarize", 0.6, 3), ("equalize", 0.6, 0)),
        (("posterize", 0.8, 5), ("equalize", 1.0, 0)),
        (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
        (("equalize", 0.6, 0), ("posterize", 0.4, 6)),
        (("rotate", 0.8, 8), ("colour", 0.4, 0)),
        (("rotate", 0.4, 9), ("equalize", 0.6, 0)),
        (("equalize", 0.0, 0), ("equalize", 0.8, 0)),
        (("invert", 0.6, 0), ("equalize", 1.0, 0)),
        (("colour", 0.6, 4), ("contrast", 1.0, 8)),
        (("rotate", 0.8, 8), ("colour", 1.0, 2)),
        (("colour", 0.8, 8), ("solarize", 0.8, 7)),
        (("sharpness", 0.4, 7), ("invert", 0.6, 0)),
        (("shear_x", 0.6, 5), ("equalize", 1.0, 0)),
        (("colour", 0.4, 0), ("equalize", 0.6, 0)),
        (("equalize", 0.4, 0), ("solarize", 0.2, 4)),
        (("solarize", 0.6, 5), ("autocontrast", 0.6, 0)),
        (("invert", 0.6, 0), ("equalize", 1.0, 0)),
        (("colour", 0.6, 4), ("contrast", 1.0, 8)),
        (("equalize", 0.8, 0), ("equalize", 0.6, 0)),
    ),
}


class Chosen(NamedTuple):
    """The operations of a batch in the order in which they are applied."""

    operations: Tensor  # [K, N], places in OPERATIONS
    strengths: Tensor  # [K, N], in each operation's own unit


def draw_auto(uniforms: Tensor, policy: str) -> Chosen:
    """A sub-policy for each image; `uniforms` [5, N] decide which, and for its two operations whether they
    are applied and in which direction."""
    device = uniforms.device
    policies = POLICIES[policy]
    names = [[OPERATIONS.index(name) for name, _, _ in pair] for pair in policies]
    chosen = (uniforms[0] * len(policies)).long()

    def of_each(rows: list[list[float]]) -> Tensor:
        flat = [value for row in rows for value in row]
        return ops.constant(flat, device).view(-1, 2)[chosen].T  # [2, N]

    operations = of_each([[float(place) for place in row] for row in names]).long()
    probabilities = of_each([[probability for _, probability, _ in pair] for pair in policies])
    magnitudes = of_each([[level / LEVELS for _, _, level in pair] for pair in policies])
    applied = torch.where(uniforms[1:3] < probabilities, operations, OPERATIONS.index("identity"))
    return Chosen(applied, strengths(applied, magnitudes, uniforms[3:5]))


def draw_rand(uniforms: Tensor, magnitude: float) -> Chosen:
    """Operations of equal probability; `uniforms` [2, K, N] decide which and in which direction."""
    places = ops.constant([OPERATIONS.index(name) for name in RAND_OPERATIONS], uniforms.device).long()
    operations = places[(uniforms[0] * len(places)).long()]
    return Chosen(operations, strengths(operations, torch.full_like(uniforms[0], magnitude), uniforms[1]))


def strengths(operations: Tensor, magnitudes: Tensor, directions: Tensor) -> Tensor:
    """From magnitudes in [0, 1] to each operation's own unit; half of the signed ones go the other way."""
    device = operations.device
    strongest = ops.constant([STRONGEST.get(name, 0.0) for name in OPERATIONS], device)[operations]
    at_rest = ops.constant([AT_REST.get(name, 0.0) for name in OPERATIONS], device)[operations]
    signed = ops.constant([float(name in SIGNED) for name in OPERATIONS], device)[operations] > 0
    sign = torch.where(signed & (directions < 0.5), -1.0, 1.0)
    values = at_rest + sign * magnitudes * strongest
    whole = operations == OPERATIONS.index("posterize")
    return torch.where(whole, values.round(), values)


def change_tones(images: Tensor, chosen: Chosen) -> Tensor:
    for operations, strength in zip(*chosen, strict=True):
        images = apply_tones(images, operations, strength)
    return images


def affine(chosen: Chosen, size: tuple[int, int]) -> Tensor:
    """Where a pixel of the changed image was before its last operation, its last two, and so on to all K of
    them, in pixels from the centre, [K, N, 2, 3]."""
    height, width = size
    total = torch.eye(3, device=chosen.strengths.device)
    places = []
    for operation, strength in zip(chosen.operations.flip(0), chosen.strengths.flip(0), strict=True):
        total = _one_affine(operation, strength, height, width) @ total
        places.append(total[..., :2, :])
    return torch.stack(places)


def _one_affine(operation: Tensor, strength: Tensor, height: int, width: int) -> Tensor:
    def only(name: str) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), strength, 0.0)

    angle = only("rotate")
    zero, one = torch.zeros_like(strength), torch.ones_like(strength)
    # As published: an image moves by whole pixels, and a shear leaves its first row or column where it is.
    right = (only("translate_x") * width).trunc() + only("shear_x") * (height / 2)
    down = (only("translate_y") * height).trunc() + only("shear_y") * (width / 2)
    x = torch.stack([angle.cos(), -angle.sin() + only("shear_x"), right], -1)
    y = torch.stack([angle.sin() + only("shear_y"), angle.cos(), down], -1)
    return torch.stack([x, y, torch.stack([zero, zero, one], -1)], -2)


def warp(images: Tensor, boxes: ops.Boxes, flip: Tensor, changes: Tensor) -> Tensor:
    """Bilinear, once: from the result through `changes`, as `affine` has them, and the mirror into the crop,
    and so the image. A pixel that lay outside before any of the operations is grey."""
    height, width = images.shape[2:]
    down = torch.arange(height, device=images.device) - (height - 1) / 2
    right = torch.arange(width, device=images.device) - (width - 1) / 2
    y, x = torch.meshgrid(down, right, indexing="ij")
    place = torch.stack([x, y, torch.ones_like(x)]).flatten(1)  # [3, H W]
    inside = torch.ones((), dtype=torch.bool, device=images.device)
    for change in changes:
        x, y = (change @ place).unbind(1)  # [N, H W] each, in the end in the crop as if it filled the image
        inside = inside & (x.abs() <= width / 2) & (y.abs() <= height / 2)
    x = torch.where(flip[:, None], -x, x)
    # In grid_sample's coordinates the image's edges are -1 and 1.
    left, across = boxes.left[:, None], boxes.width[:, None]
    top, along = boxes.top[:, None], boxes.height[:, None]
    source_x = 2 * (left + across * (x / width + 0.5)) / width - 1
    source_y = 2 * (top + along * (y / height + 0.5)) / height - 1
    grid = torch.stack([source_x, source_y], -1).view(len(images), height, width, 2)
    # A crop that reaches beyond the image, which is then a shift, sees it mirrored at its edges.
    sampled = F.grid_sample(
        images.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    return torch.where(inside.view(-1, 1, height, width), sampled.round_(), OUTSIDE).to(torch.uint8)


def cut_out(views: Tensor, side: int, uniforms: Tensor) -> Tensor:
    """Normalised views with a square of zeros, their mean, around a random pixel; `uniforms` [2, N]."""
    height, width = views.shape[2:]

    def hidden(at: Tensor, size: int) -> Tensor:
        start = (at * size).floor() - side // 2  # [N]
        place = torch.arange(size, device=views.device)
        return (place >= start[:, None]) & (place < start[:, None] + side)

    covered = hidden(uniforms[0], height)[:, :, None] & hidden(uniforms[1], width)[:, None]
    return views.masked_fill_(covered[:, None], 0.0)  # in place, which keeps the layout
