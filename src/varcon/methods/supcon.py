"""SupCon: every view against every other, those of its class being positives (Khosla et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.distributed import gather_batch, own_positions
from varcon.layers import ProjectionHead, unit
from varcon.limits import above_zero, at_least, declared
from varcon.losses.supcon import Form, supcon

# Anchors, their labels, what they are compared with, its labels, and where each anchor stands in it.
Pairs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class SupConSettings:
    temperature: float = 0.1  # divides the cosines between embeddings
    form: Form = "out"  # whether the mean over positives is outside the logarithm or in it
    dimensions: int = 128  # of the projection

    def __post_init__(self) -> None:
        declared(self, of="method")
        above_zero(self, "temperature")
        at_least(1, self, "dimensions")


class Pairwise(Method):
    """Projects every view and compares it with every other, in all processes, by a loss of its own."""

    uses_labels = True

    def __init__(self, encoder: Encoder, settings: Any, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.head = ProjectionHead(encoder.features, settings.dimensions)

    def forward(self, batch: Batch) -> StepOutput:
        embeddings = unit(self.head(self.encoder(torch.cat(batch.views))))
        labels = batch.labels.repeat(len(batch.views))
        pairs = embeddings, labels, gather_batch(embeddings), gather_batch(labels), own_positions(labels)
        return StepOutput(self.losses(pairs).mean(), {})

    def losses(self, pairs: Pairs) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not define losses")


class SupCon(Pairwise):
    Settings = SupConSettings
    settings: SupConSettings

    def losses(self, pairs: Pairs) -> Tensor:
        return supcon(*pairs, self.settings.temperature, self.settings.form)
