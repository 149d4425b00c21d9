"""GPaCo: learned class centres join the contrast of both views of a batch (Cui et al., TPAMI 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from varcon.core import Batch, Encoder, InputError, Method, StepOutput
from varcon.distributed import gather_batch, own_positions
from varcon.layers import Queue, unit
from varcon.limits import above_zero, at_least, not_negative
from varcon.losses.paco import paco


@dataclass(frozen=True)
class GPaCoSettings:
    alpha: float = 0.05  # weight of the sample-to-sample terms
    beta: float = 1.0  # weight of the centre's term
    gamma: float = 1.0  # weight of the samples in the denominator
    temperature: float = 0.2  # divides the cosines between embeddings
    queue: int = 8192  # embeddings of earlier batches to compare with
    dimensions: int = 128  # of the projection

    def __post_init__(self) -> None:
        not_negative(self, "alpha", "beta", "gamma")
        above_zero(self, "temperature")
        at_least(1, self, "queue", "dimensions")
        if self.alpha == self.beta == 0:
            raise InputError("method.alpha and method.beta are both 0, which leaves no loss; raise one")


class GPaCo(Method):
    Settings: ClassVar[type] = GPaCoSettings
    uses_labels = True
    settings: GPaCoSettings
    classifier: nn.Linear  # its rows are the centres

    def __init__(self, encoder: Encoder, settings: GPaCoSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.classifier = nn.Linear(encoder.features, num_classes)
        self.head = self.build_head(encoder.features)
        self.queue = Queue(settings.queue, settings.dimensions)

    def build_head(self, width: int) -> nn.Module:
        hidden = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(width, self.settings.dimensions))

    def forward(self, batch: Batch) -> StepOutput:
        return StepOutput(self.contrast(batch)[0], {})

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and the projections and labels it compared."""
        features = self.encoder(torch.cat(batch.views))
        queries = unit(self.head(features))
        labels = batch.labels.repeat(len(batch.views))
        loss = self.compare(features, queries, labels, gather_batch(queries), gather_batch(labels))
        self.remember(queries.detach().chunk(len(batch.views))[-1], batch.labels)
        return loss, queries, labels

    def compare(
        self, features: Tensor, queries: Tensor, labels: Tensor, contrast: Tensor, contrast_labels: Tensor
    ) -> Tensor:
        """Queries against the centres, the queue and `contrast`, which begins with all processes' queries."""
        usable = self.queue.usable
        return paco(
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
        ).mean()

    def remember(self, vectors: Tensor, labels: Tensor) -> None:
        if self.training:
            self.queue.push(gather_batch(vectors), gather_batch(labels))
