"""VICReg: views agree, dimensions vary and do not covary (Bardes et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.distributed import gather_batch
from varcon.layers import NormedHead
from varcon.limits import at_least, not_negative
from varcon.losses.vicreg import vicreg


@dataclass(frozen=True)
class VICRegSettings:
    similarity: float = 25.0  # weight of the distance between an image's views
    variance: float = 25.0  # weight of the term that keeps each dimension's spread
    covariance: float = 1.0  # weight of the term that keeps dimensions uncorrelated
    dimensions: int = 8192  # of the expanded embedding

    def __post_init__(self) -> None:
        not_negative(self, "similarity", "variance", "covariance")
        at_least(1, self, "dimensions")


class VICReg(Method):
    Settings = VICRegSettings
    uses_labels = False
    least_views = most_views = 2
    settings: VICRegSettings

    def __init__(self, encoder: Encoder, settings: VICRegSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        width = settings.dimensions
        self.head = NormedHead(encoder.features, (width, width), width)

    def forward(self, batch: Batch) -> StepOutput:
        first, second = (gather_batch(self.head(self.encoder(view))) for view in batch.views)
        weights = self.settings.similarity, self.settings.variance, self.settings.covariance
        loss, terms = vicreg(first, second, *weights)
        return StepOutput(loss, terms)
