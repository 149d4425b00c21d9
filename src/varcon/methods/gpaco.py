"""GPaCo: PaCo without a teacher, both views being queries (Cui et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.engine.distributed import gather_batch, own_positions
from varcon.layers import Queue, unit
from varcon.losses.paco import paco


@dataclass(frozen=True)
class GPaCoSettings:
    alpha: float = 0.05  # weight of the sample-to-sample terms
    beta: float = 1.0  # weight of the centre's term
    gamma: float = 1.0  # weight of the samples in the denominator
    temperature: float = 0.2
    queue: int = 8192
    dimensions: int = 128  # of the projection


class GPaCo(Method):
    Settings: ClassVar[type] = GPaCoSettings
    uses_labels = True
    settings: GPaCoSettings
    classifier: nn.Linear  # its rows are the centres

    def __init__(self, encoder: Encoder, settings: GPaCoSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        width = encoder.features
        self.classifier = nn.Linear(width, num_classes)
        hidden = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.head = nn.Sequential(*hidden, nn.Linear(width, settings.dimensions))
        self.queue = Queue(settings.queue, settings.dimensions)

    def forward(self, batch: Batch) -> StepOutput:
        return StepOutput(self.contrast(batch)[0], {})

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and the projections and labels it compared."""
        features = self.encoder(torch.cat(batch.views))
        queries = unit(self.head(features))
        labels = batch.labels.repeat(len(batch.views))
        contrast, contrast_labels = gather_batch(queries), gather_batch(labels)
        usable = self.queue.usable
        losses = paco(
            self.classifier(features),
            labels,
            queries,
            torch.cat([contrast, self.queue.vectors]),
            torch.cat([contrast_labels, self.queue.labels]),
            torch.cat([usable.new_ones(len(contrast)), usable]),
            own_positions(queries),
            self.settings.temperature,
            self.settings.alpha,
            self.settings.beta,
            self.settings.gamma,
        )
        if self.training:
            second_view = queries.detach().chunk(len(batch.views))[-1]
            self.queue.push(gather_batch(second_view), gather_batch(batch.labels))
        return losses.mean(), queries, labels
