"""Augmentation policies: uint8 images in, normalised float32 views out, a fresh draw for every image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from varcon.augment import ops
from varcon.core import InputError

CROP_RATIO = (3 / 4, 4 / 3)  # width / height of a random crop, everywhere since Inception
BLUR_SIGMA = (0.1, 2.0)  # pixels, SimCLR


@dataclass(frozen=True)
class AugmentSettings:
    policy: Literal["none", "crop-flip", "sim"] = "sim"  # sim is SimCLR's; crop-flip suits cross-entropy
    views: int = 2  # differently augmented copies of each image in a batch
    crop_area: tuple[float, float] = (0.2, 1.0)  # least and greatest share of the image kept (sim)
    flip: float = 0.5  # probability of a mirror image; 0 for digits and text
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """strength of brightness, contrast, saturation and hue jitter (sim)"""
    jitter_probability: float = 0.8  # probability of jittering an image's colours (sim)
    grey: float = 0.2  # probability of a grey image (sim)
    blur: float = 0.0  # probability of a blurred image; 0.5 for ImageNet (sim)
    shift: int = 4  # greatest shift in pixels, edges reflected (crop-flip)
    small_views: int = 0  # further views of less of the image and fewer pixels (sim; SwAV's multi-crop)
    small_size: int = 16  # their side in pixels
    small_crop_area: tuple[float, float] = (0.05, 0.2)  # least and greatest share of the image in them

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise InputError(f"augment has no policy {self.policy!r}; choose one of {', '.join(POLICIES)}.")
        if self.views < 1:
            raise InputError(f"augment.views is {self.views}, but a batch needs a view; set it to 1 or more.")
        for name in ("crop_area", "small_crop_area"):
            least, greatest = getattr(self, name)
            if not 0 < least <= greatest <= 1:
                raise InputError(
                    f"augment.{name} is {(least, greatest)}; give the least and the greatest share of the "
                    "image, in that order, each above 0 and at most 1."
                )
        if self.small_views < 0 or self.small_size < 1:
            raise InputError(
                f"augment.small_views is {self.small_views} and small_size {self.small_size}; "
                "neither may be negative, and the size counts pixels."
            )
        if self.small_views and self.policy != "sim":
            raise InputError(f"augment.small_views need the policy 'sim', not {self.policy!r}.")
        for name in ("flip", "jitter_probability", "grey", "blur"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"augment.{name} is {getattr(self, name)}, but it is a probability; set it within 0 to 1."
                )
        if len(self.jitter) != 4 or not all(s >= 0 for s in self.jitter) or self.jitter[3] > 0.5:
            raise InputError(
                f"augment.jitter is {self.jitter}; give four strengths of at least 0 for brightness, "
                "contrast, saturation and hue, the last in turns and at most 0.5."
            )
        if self.shift < 0:
            raise InputError(f"augment.shift is {self.shift}, but it counts pixels; set it to 0 or more.")


def augment(
    images: Tensor,
    settings: AugmentSettings,
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
) -> Tensor:
    """One view of uint8 images [N, 3, H, W], normalised, float32; `generator` lives on their device.

    The result's memory is channels_last, which convolutions prefer: the conversion costs about a tenth of
    the "sim" policy on a CPU and spares the encoder doing it.
    """
    _check(images)
    # Under the training step's autocast the matrix products would run in half precision.
    with torch.autocast(images.device.type, enabled=False):
        view = POLICIES[settings.policy](images, settings, generator)
        return _finish(view, mean, std)


def draw_views(
    images: Tensor,
    settings: AugmentSettings,
    mean: Sequence[float],
    std: Sequence[float],
    generator: torch.Generator,
) -> list[Tensor]:
    """All the views of a batch, the small ones last."""
    n = len(images)
    # Equal views in one call: on a GPU it is the launches that cost, not the images.
    views = augment(images.repeat(settings.views, 1, 1, 1), settings, mean, std, generator).split(n)
    if not settings.small_views:
        return list(views)
    close = replace(settings, crop_area=settings.small_crop_area)
    with torch.autocast(images.device.type, enabled=False):
        many = images.repeat(settings.small_views, 1, 1, 1)
        draw = draw_sim(len(many), (images.shape[2], images.shape[3]), close, generator)
        small = _finish(apply_sim(many, draw, settings.small_size), mean, std).split(n)
    return [*views, *small]


def prepare(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The images as they are, normalised: what evaluation sees, and what the "none" policy makes."""
    _check(images)
    return _finish(_unit_range(images), mean, std)


def none(images: Tensor, settings: AugmentSettings, generator: torch.Generator) -> Tensor:
    return _unit_range(images)


def crop_flip(images: Tensor, settings: AugmentSettings, generator: torch.Generator) -> Tensor:
    """Shift by whole pixels and mirror: the usual light augmentation of small images."""
    n, _, height, width = images.shape
    if settings.shift >= min(height, width):
        raise InputError(
            f"augment.shift is {settings.shift}, which is too far for images of {height}x{width} pixels; "
            f"set it to at most {min(height, width) - 1}."
        )
    down, right = torch.randint(
        -settings.shift, settings.shift + 1, (2, n), device=generator.device, generator=generator
    )
    flip = _chance(n, settings.flip, generator)
    rows = ops.shift_indices(down, height, torch.zeros_like(flip))
    columns = ops.shift_indices(right, width, flip)
    return _unit_range(ops.pick(images, rows, columns))


def sim(images: Tensor, settings: AugmentSettings, generator: torch.Generator) -> Tensor:
    """SimAugment: random resized crop, mirror, colour jitter, grey and, where asked for, blur."""
    height, width = images.shape[2:]
    return apply_sim(images, draw_sim(len(images), (height, width), settings, generator))


POLICIES: dict[str, Callable[[Tensor, AugmentSettings, torch.Generator], Tensor]] = {
    "none": none,
    "crop-flip": crop_flip,
    "sim": sim,
}


class SimDraw(NamedTuple):
    """What "sim" does to each image of a batch; each tensor [N]."""

    boxes: ops.Boxes
    flip: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    grey: Tensor
    sigma: Tensor | None  # of the blur, 0 where there is none; None where no image is ever blurred


def draw_sim(n: int, size: tuple[int, int], settings: AugmentSettings, generator: torch.Generator) -> SimDraw:
    boxes = ops.random_resized_crop_boxes(n, size, settings.crop_area, CROP_RATIO, generator)
    flip = _chance(n, settings.flip, generator)
    jittered = _chance(n, settings.jitter_probability, generator)
    *strengths, hue = settings.jitter
    brightness, contrast, saturation = (
        torch.where(jittered, _uniform(n, max(0.0, 1 - strength), 1 + strength, generator), 1.0)
        for strength in strengths
    )
    turn = torch.where(jittered, _uniform(n, -hue, hue, generator), 0.0)
    grey = _chance(n, settings.grey, generator)
    sigma = None
    if settings.blur > 0:
        sigma = torch.where(_chance(n, settings.blur, generator), _uniform(n, *BLUR_SIGMA, generator), 0.0)
    return SimDraw(boxes, flip, brightness, contrast, saturation, turn, grey, sigma)


def apply_sim(images: Tensor, draw: SimDraw, size: int | None = None) -> Tensor:
    """Blurring before the colours change is the same as after, as SimCLR has it, for affine colours; only
    the mean grey that contrast blends with is then the blurred image's, which the edges move a little."""
    height, width = images.shape[2:]
    out_height, out_width = (height, width) if size is None else (size, size)
    upright = torch.zeros_like(draw.flip)
    rows = ops.resize_matrix(draw.boxes.top, draw.boxes.height, height, out_height, upright)
    columns = ops.resize_matrix(draw.boxes.left, draw.boxes.width, width, out_width, draw.flip)
    if draw.sigma is not None:
        rows = ops.blur_matrix(draw.sigma, out_height, blur_radius(out_height)) @ rows
        columns = ops.blur_matrix(draw.sigma, out_width, blur_radius(out_width)) @ columns
    view = ops.resample(images, rows, columns)
    saturation = torch.where(draw.grey, 0.0, draw.saturation)  # grey after jitter is jitter without chroma
    matrix = ops.colour_matrix(ops.mean_grey(view), draw.brightness, draw.contrast, saturation, draw.hue)
    return ops.apply_colour(view, matrix)


def blur_radius(size: int) -> int:
    """Half of SimCLR's kernel, which is about a tenth of the image's side."""
    return max(1, size // 20)


def _check(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        shape = list(images.shape)
        raise InputError(f"images are {images.dtype} {shape}; pass them as torch.uint8 [N, 3, H, W].")


def _unit_range(images: Tensor) -> Tensor:
    return images.float().div_(255)


def _finish(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    # Normalising first is quicker: on a CPU the channel's constant is then one number for a run of pixels.
    return ops.normalise(images, mean, std).contiguous(memory_format=torch.channels_last)


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty(n, device=generator.device).uniform_(low, high, generator=generator)


def _chance(n: int, probability: float, generator: torch.Generator) -> Tensor:
    return torch.rand(n, device=generator.device, generator=generator) < probability
