"""Barlow Twins: the correlation between views becomes the identity (Zbontar et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.engine.distributed import gather_batch
from varcon.layers import NormedHead
from varcon.losses.barlow import barlow


@dataclass(frozen=True)
class BarlowSettings:
    redundancy: float = 0.0051  # weight of the off-diagonal terms, lambda
    scale: float = 0.024  # of the whole loss, which sums over all dimensions
    dimensions: int = 8192  # of the projection


class Barlow(Method):
    Settings = BarlowSettings
    uses_labels = False
    settings: BarlowSettings

    def __init__(self, encoder: Encoder, settings: BarlowSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        width = settings.dimensions
        self.head = NormedHead(encoder.features, (width, width), width)

    def forward(self, batch: Batch) -> StepOutput:
        first, second = (gather_batch(self.head(self.encoder(view))) for view in batch.views[:2])
        loss, terms = barlow(first, second, self.settings.redundancy)
        return StepOutput(self.settings.scale * loss, terms)
