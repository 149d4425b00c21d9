"""Networks that turn images into pooled features; each has an attribute `features`, their number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from varcon.core import Encoder
from varcon.encoders import resnet, small, vit

ENCODERS: dict[str, Callable[[resnet.Stem], Encoder]] = {
    "small": small.small,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnet200": resnet.resnet200,
    "vit_tiny": vit.vit_tiny,
    "vit_small": vit.vit_small,
    "vit_base": vit.vit_base,
}


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
    ] = "small"
    stem: resnet.Stem = "small"
    """first layers: small, for images up to 64 pixels (3x3, or patches of 4), or imagenet (7x7 and pooling,
    or patches of 16)"""

    def build(self) -> Encoder:
        return ENCODERS[self.name](self.stem)
