"""Barlow Twins: the correlation between views becomes the identity (Zbontar et al., ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.distributed import gather_batch
from varcon.layers import NormedHead
from varcon.limits import above_zero, at_least, not_negative
from varcon.losses.barlow import barlow


@dataclass(frozen=True)
class BarlowSettings:
    redundancy: float = 0.0051  # weight of the off-diagonal terms, lambda
    scale: float = 0.024  # of the whole loss, which sums over all dimensions
    dimensions: int = 8192  # of the projection

    def __post_init__(self) -> None:
        not_negative(self, "redundancy")
        above_zero(self, "scale")
        at_least(1, self, "dimensions")


class Barlow(Method):
    Settings = BarlowSettings
    uses_labels = False
    least_views = most_views = 2
    settings: BarlowSettings

    def __init__(self, encoder: Encoder, settings: BarlowSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        width = settings.dimensions
        self.head = NormedHead(encoder.features, (width, width), width)

    def forward(self, batch: Batch) -> StepOutput:
        first, second = (gather_batch(self.head(self.encoder(view))) for view in batch.views)
        loss, terms = barlow(first, second, self.settings.redundancy)
        return StepOutput(self.settings.scale * loss, terms)
