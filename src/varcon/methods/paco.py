"""PaCo: learned class centres join the contrast of queries with a teacher's keys (Cui et al., ICCV 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from varcon.core import Batch, Encoder, Method, Progress, StepOutput
from varcon.engine.distributed import gather_batch, own_positions
from varcon.layers import NormedHead, Queue, Teacher, unit
from varcon.losses.paco import paco


@dataclass(frozen=True)
class PaCoSettings:
    alpha: float = 0.05  # weight of the sample-to-sample terms
    beta: float = 1.0  # weight of the centre's term
    gamma: float = 1.0  # weight of the samples in the denominator
    temperature: float = 0.2
    queue: int = 8192
    momentum: float = 0.999  # of the teacher
    dimensions: int = 128  # of the projection


class PaCo(Method):
    Settings: ClassVar[type] = PaCoSettings
    uses_labels = True
    settings: PaCoSettings
    classifier: nn.Linear  # its rows are the centres

    def __init__(self, encoder: Encoder, settings: PaCoSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.classifier = nn.Linear(encoder.features, num_classes)
        self.head = NormedHead(encoder.features, (encoder.features,), settings.dimensions)
        self.student = nn.Sequential(self.encoder, self.head)
        self.teacher = Teacher(self.student)
        self.queue = Queue(settings.queue, settings.dimensions)

    def forward(self, batch: Batch) -> StepOutput:
        return StepOutput(self.contrast(batch)[0], {})

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and the projections and labels it compared."""
        features = self.encoder(batch.views[0])
        queries = unit(self.head(features))
        keys = unit(self.teacher(batch.views[1]))
        all_keys, all_labels = gather_batch(keys), gather_batch(batch.labels)
        usable = self.queue.usable
        losses = paco(
            self.classifier(features),
            batch.labels,
            queries,
            torch.cat([gather_batch(queries), all_keys, self.queue.vectors]),
            torch.cat([all_labels, all_labels, self.queue.labels]),
            torch.cat([usable.new_ones(2 * len(all_keys)), usable]),
            own_positions(queries),
            self.settings.temperature,
            self.settings.alpha,
            self.settings.beta,
            self.settings.gamma,
        )
        if self.training:
            self.queue.push(all_keys, all_labels)
        return losses.mean(), queries, batch.labels

    def after_step(self, progress: Progress) -> None:
        self.teacher.follow(self.student, self.settings.momentum)
