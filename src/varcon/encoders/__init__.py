"""Networks that turn images or vectors into features; each has an attribute `features`, their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from varcon.core import Encoder, InputError
from varcon.encoders import mlp, resnet, small, vit
from varcon.limits import declared

ENCODERS: dict[str, Callable[[Any], Encoder]] = {  # of a stem, or of the number of a vector's features
    "small": small.small,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnet200": resnet.resnet200,
    "vit_tiny": vit.vit_tiny,
    "vit_small": vit.vit_small,
    "vit_base": vit.vit_base,
    "mlp": mlp.MLP,
}
FOR_VECTORS = ("mlp",)


def stem_for(side: int) -> resnet.Stem:
    """By the pixels of an image's longer side: the small stem keeps the resolution, imagenet's does not."""
    return "small" if side <= 64 else "imagenet"


@dataclass(frozen=True)
class EncoderSettings:
    name: Literal[
        "small",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet101",
        "resnet200",
        "vit_tiny",
        "vit_small",
        "vit_base",
        "mlp",
    ] = "small"
    """the network: small is for a laptop, mlp for vectors"""
    stem: resnet.Stem = "small"
    """first layers: small, for images up to 64 pixels (3x3, or patches of 4), or imagenet (7x7 and pooling,
    or patches of 16)"""
    weights: str = ""
    """a file of weights to start from, in place of random ones: torchvision's, or a run's
    encoder.safetensors"""

    def __post_init__(self) -> None:
        declared(self, of="encoder")

    def build(self, shape: Sequence[int] = (3, 32, 32)) -> Encoder:
        """`shape` is that of one sample: [3, H, W] of an image, [d] of a vector."""
        if self.name in FOR_VECTORS:
            if len(shape) != 1:
                raise InputError(
                    f"encoder {self.name!r} reads vectors and the data are images; choose another"
                )
            return ENCODERS[self.name](shape[0])
        if len(shape) == 1:
            raise InputError(f"encoder {self.name!r} reads images and the data are vectors; choose 'mlp'")
        return ENCODERS[self.name](self.stem)
