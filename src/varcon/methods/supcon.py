"""SupCon: every view against every other, those of its class being positives (Khosla et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.engine.distributed import gather_batch, own_positions
from varcon.layers import ProjectionHead, unit
from varcon.losses.supcon import supcon


@dataclass(frozen=True)
class SupConSettings:
    temperature: float = 0.1
    form: Literal["out", "in"] = "out"  # whether the mean over positives is outside the logarithm or in it
    dimensions: int = 128  # of the projection


class SupCon(Method):
    Settings = SupConSettings
    uses_labels = True
    settings: SupConSettings

    def __init__(self, encoder: Encoder, settings: SupConSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.head = ProjectionHead(encoder.features, settings.dimensions)

    def forward(self, batch: Batch) -> StepOutput:
        embeddings = unit(self.head(self.encoder(torch.cat(batch.views))))
        labels = batch.labels.repeat(len(batch.views))
        losses = supcon(
            embeddings,
            labels,
            gather_batch(embeddings),
            gather_batch(labels),
            own_positions(labels),
            self.settings.temperature,
            self.settings.form,
        )
        return StepOutput(losses.mean(), {})
