"""SimCLR: two views of an image find each other among all others (Chen et al., ICML 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.distributed import gather_batch, own_positions
from varcon.layers import ProjectionHead, unit
from varcon.limits import above_zero, at_least
from varcon.losses.contrast import nt_xent


@dataclass(frozen=True)
class SimCLRSettings:
    temperature: float = 0.5  # divides the cosines between embeddings
    dimensions: int = 128  # of the projection

    def __post_init__(self) -> None:
        above_zero(self, "temperature")
        at_least(1, self, "dimensions")


class SimCLR(Method):
    Settings = SimCLRSettings
    uses_labels = False
    least_views = most_views = 2
    settings: SimCLRSettings

    def __init__(self, encoder: Encoder, settings: SimCLRSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.head = ProjectionHead(encoder.features, settings.dimensions)

    def forward(self, batch: Batch) -> StepOutput:
        embeddings = unit(self.head(self.encoder(torch.cat(batch.views))))
        itself = own_positions(embeddings)
        other_view = torch.cat(itself.chunk(2)[::-1])
        losses = nt_xent(embeddings, gather_batch(embeddings), itself, other_view, self.settings.temperature)
        return StepOutput(losses.mean(), {})
