"""The fifteen corruptions of ImageNet-C, Tiny-ImageNet-C and CIFAR-C, made on the fly.

Defined by Hendrycks and Dietterich (2019). An image's corruption depends on the seed, its index, the
corruption and the severity alone, bit for bit: not on the other images of its batch. Departures from the
published images: frost is drawn and not photographed (see `weather.frost`), values are rounded where the
published scripts cut off the fraction, and the random numbers are others. ImageNet-C and Tiny-ImageNet-C are
published as JPEG files, which lack part of the noise: images of their sizes go through JPEG at last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from varcon.core import InputError
from varcon.data.corruptions.blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from varcon.data.corruptions.digital import (
    contrast,
    elastic_transform,
    jpeg_compression,
    pixelate,
    through_jpeg,
)
from varcon.data.corruptions.draws import Draws
from varcon.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from varcon.data.corruptions.parameters import TINY, parameters
from varcon.data.corruptions.weather import brightness, fog, frost, snow

__all__ = ["CORRUPTIONS", "NAMES", "SEVERITIES", "CorruptionName", "corrupt"]

CorruptionName = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
]
NAMES: tuple[CorruptionName, ...] = get_args(CorruptionName)
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 8  # pixels; smaller images have no room for the blurs
# Values of the images in work: what a CPU's cache holds with the sums, what keeps a GPU busy.
VALUES_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 24}
SAVED_QUALITY = 85  # of ImageNet-C's and Tiny-ImageNet-C's files; CIFAR-C's keep every pixel

# Each takes (images, draws, *parameters) and returns uint8 images, or float32 ones to be cut to [0, 1].
CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}


@torch.no_grad()
def corrupt(images: Tensor, indices: Tensor, name: str, severity: int, seed: int) -> Tensor:
    """Corrupted uint8 images [N, 3, H, W], on the device of `images`; `indices` [N] number them in their set.

    Images of up to 32 pixels get the strength of CIFAR-C, those of 64 that of Tiny-ImageNet-C and those from
    224 that of ImageNet-C; those from 64 go through JPEG, as theirs do.
    """
    corrupted = before_saving(images, indices, name, severity, seed)
    return through_jpeg(corrupted, SAVED_QUALITY) if min(images.shape[2:]) >= TINY else corrupted


def before_saving(images: Tensor, indices: Tensor, name: str, severity: int, seed: int) -> Tensor:
    """The same before the JPEG of images from 64 pixels on."""
    if name not in CORRUPTIONS:
        raise InputError(f"there is no corruption {name!r}; choose one of {', '.join(NAMES)}")
    if severity not in SEVERITIES:
        raise InputError(f"severity is {severity}; it must be one of 1 to 5")
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"images are {images.dtype} {list(images.shape)}; a corruption takes uint8 [N, 3, H, W]"
        )
    if indices.shape != images.shape[:1]:
        raise InputError(f"there are {len(images)} images and {indices.numel()} indices; give each image one")
    side = min(images.shape[2:])
    if side < SMALLEST:
        raise InputError(f"images of {side} pixels are too small to corrupt; they need at least {SMALLEST}")
    values = parameters(name, severity, side)
    at_once = max(1, VALUES_AT_ONCE[images.device.type] // (3 * images.shape[2] * images.shape[3]))
    parts = [
        _finish(
            CORRUPTIONS[name](part.contiguous(), Draws(seed, index.to(part.device), name, severity), *values)
        )
        for part, index in zip(images.split(at_once), indices.split(at_once), strict=True)
    ]
    return torch.cat(parts)


def _finish(images: Tensor) -> Tensor:
    return images if images.dtype == torch.uint8 else images.clamp(0, 1).mul_(255).round_().to(torch.uint8)
