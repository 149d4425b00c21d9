"""X-CLR: the similarity of two samples should follow that of their classes (Sobal et al., ICLR 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from varcon.core import Encoder
from varcon.data.similarity import class_similarity
from varcon.limits import above_zero, at_least
from varcon.losses.xclr import xclr
from varcon.methods.supcon import Pairs, Pairwise


@dataclass(frozen=True)
class XCLRSettings:
    similarity: str = "identity"
    """of classes: a .npy file, "names" (by a text encoder, as in the paper), "superclasses" (CIFAR-100's), or
    "identity", which says nothing of any two classes and makes this SupCon with a softened target"""
    temperature: float = 0.07  # divides the cosines between embeddings
    similarity_temperature: float = 0.1  # of the target
    dimensions: int = 128  # of the projection

    def __post_init__(self) -> None:
        above_zero(self, "temperature", "similarity_temperature")
        at_least(1, self, "dimensions")


class XCLR(Pairwise):
    Settings = XCLRSettings
    settings: XCLRSettings
    similarity: Tensor  # [C, C]

    def __init__(self, encoder: Encoder, settings: XCLRSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.register_buffer("similarity", torch.eye(num_classes))

    def meet_classes(self, names: list[str]) -> None:
        self.similarity.copy_(class_similarity(self.settings.similarity, names))

    def losses(self, pairs: Pairs) -> Tensor:
        return xclr(*pairs, self.similarity, self.settings.temperature, self.settings.similarity_temperature)
