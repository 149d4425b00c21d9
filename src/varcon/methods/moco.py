"""MoCo v2: queries find their keys, made by a slow teacher, among a queue of old ones (Chen et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from varcon.core import Batch, Encoder, Method, StepOutput
from varcon.distributed import gather_batch
from varcon.layers import ProjectionHead, Queue, Teacher, unit
from varcon.limits import above_zero, at_least, share
from varcon.losses.contrast import info_nce


@dataclass(frozen=True)
class MoCoSettings:
    temperature: float = 0.2  # divides the cosines between embeddings
    momentum: float = 0.999  # of the teacher
    queue: int = 65536  # embeddings of earlier batches to compare with
    dimensions: int = 128  # of the projection

    def __post_init__(self) -> None:
        above_zero(self, "temperature")
        share(self, "momentum")
        at_least(1, self, "queue", "dimensions")


class MoCo(Method):
    Settings = MoCoSettings
    uses_labels = False
    least_views = most_views = 2
    settings: MoCoSettings

    def __init__(self, encoder: Encoder, settings: MoCoSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.head = ProjectionHead(encoder.features, settings.dimensions)
        self.student = nn.Sequential(self.encoder, self.head)
        self.teacher = Teacher(self.student, settings.momentum)
        self.queue = Queue(settings.queue, settings.dimensions)

    def forward(self, batch: Batch) -> StepOutput:
        first, second = batch.views
        queries, keys = unit(self.student(first)), unit(self.teacher(second))
        losses = info_nce(
            queries, keys, self.queue.vectors.clone(), self.queue.usable, self.settings.temperature
        )
        if self.training:
            self.queue.push(gather_batch(keys), gather_batch(batch.labels))
        return StepOutput(losses.mean(), {})

    def after_step(self) -> None:
        self.teacher.follow(self.student)
