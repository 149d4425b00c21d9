"""Networks that turn images into pooled features; each has an attribute `features`, their number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from varcon.core import Encoder
from varcon.encoders import resnet, small

ENCODERS: dict[str, Callable[[resnet.Stem], Encoder]] = {
    "small": small.small,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnet200": resnet.resnet200,
}


@dataclass(frozen=True)
class EncoderSettings:
    name: Literal["small", "resnet18", "resnet34", "resnet50", "resnet101", "resnet200"] = "small"
    stem: resnet.Stem = (
        "small"  # first layers: small (3x3, for images up to 64) or imagenet (7x7 and pooling)
    )

    def build(self) -> Encoder:
        return ENCODERS[self.name](self.stem)
