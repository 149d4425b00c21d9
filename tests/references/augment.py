"""One image at a time, one operation after another: what the batched augmentation has to equal.

Float images are numpy [3, H, W] in float64, on the scale 0 to 1, and never clamped here.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

LUMA = np.array([0.299, 0.587, 0.114])


def resized_crop(image: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int], flip: bool):
    top, left, height, width = box
    crop = torch.from_numpy(image[:, top : top + height, left : left + width].astype(np.float64))
    resized = F.interpolate(crop[None], size=size, mode="bilinear", antialias=True, align_corners=False)[0]
    return (resized.flip(-1) if flip else resized).numpy() / 255


def resized_crop_by_pillow(image: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int]):
    """Rounded to whole grey levels after each of the two axes."""
    top, left, height, width = box
    crop = Image.fromarray(image.transpose(1, 2, 0)).crop((left, top, left + width, top + height))
    return np.asarray(crop.resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def crop_box(attempts, size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float]):
    """`attempts` lists numbers in [0, 1) for area, aspect, top and left; returns top, left, height, width."""
    image_height, image_width = size
    for share, aspect, down, right in attempts:
        target = image_height * image_width * (area[0] + share * (area[1] - area[0]))
        aspect = math.exp(math.log(ratio[0]) + aspect * (math.log(ratio[1]) - math.log(ratio[0])))
        width = round(math.sqrt(target * aspect))
        height = round(math.sqrt(target / aspect))
        if 0 < width <= image_width and 0 < height <= image_height:
            places_down, places_right = image_height - height + 1, image_width - width + 1
            return math.floor(down * places_down), math.floor(right * places_right), height, width
    height, width = image_height, image_width
    if image_width / image_height < ratio[0]:
        height = round(image_width / ratio[0])
    elif image_width / image_height > ratio[1]:
        width = round(image_height * ratio[1])
    return (image_height - height) // 2, (image_width - width) // 2, height, width


def blurred(image: np.ndarray, sigma: float, radius: int) -> np.ndarray:
    """A direct two-dimensional convolution; `sigma` 0 is no blur."""
    if sigma == 0:
        return image
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (radius, radius), (radius, radius)), mode="reflect")
    result, total = np.zeros_like(image), 0.0
    for down in range(2 * radius + 1):
        for right in range(2 * radius + 1):
            weight = math.exp(-((down - radius) ** 2 + (right - radius) ** 2) / (2 * sigma**2))
            result += weight * padded[:, down : down + height, right : right + width]
            total += weight
    return result / total


def shifted(image: np.ndarray, down: int, right: int, padding: int, flip: bool) -> np.ndarray:
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), mode="reflect")
    moved = padded[:, padding + down :, padding + right :][:, :height, :width]
    return moved[:, :, ::-1] if flip else moved


def grey(image: np.ndarray) -> np.ndarray:
    luma = sum(weight * channel for weight, channel in zip(LUMA, image, strict=True))
    return np.stack([luma, luma, luma])


def brighter(image: np.ndarray, factor: float) -> np.ndarray:
    return factor * image


def contrasted(image: np.ndarray, factor: float) -> np.ndarray:
    return factor * image + (1 - factor) * grey(image)[0].mean()


def saturated(image: np.ndarray, factor: float) -> np.ndarray:
    return factor * image + (1 - factor) * grey(image)


def turned(image: np.ndarray, turns: float) -> np.ndarray:
    """Chroma as a complex number I + iQ; hue grows from red to yellow, which is clockwise there."""
    to_yiq = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    luma, in_phase, quadrature = to_yiq @ image.reshape(3, -1)
    chroma = (in_phase + 1j * quadrature) * np.exp(-2j * np.pi * turns)
    return np.linalg.solve(to_yiq, np.stack([luma, chroma.real, chroma.imag])).reshape(image.shape)


JITTERS = (brighter, contrasted, saturated, turned)


def jittered(image: np.ndarray, factors: tuple[float, float, float, float], order) -> np.ndarray:
    """`factors` of brightness, contrast, saturation and hue, applied in `order`, a permutation of 0 to 3."""
    for which in order:
        image = JITTERS[which](image, factors[which])
    return image
