"""SwAV: each view predicts the cluster assignment of another (Caron et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from varcon.core import Batch, Encoder, Method, Progress, StepOutput
from varcon.distributed import gather_batch, own_share, sum_over_processes
from varcon.layers import NormedHead, Prototypes, Queue, unit
from varcon.limits import above_zero, at_least
from varcon.losses.swav import sinkhorn, swapped


@dataclass(frozen=True)
class SwAVSettings:
    temperature: float = 0.1  # divides the cosines between embeddings and prototypes
    sharpness: float = 0.05  # epsilon of the assignment
    iterations: int = 3  # of the assignment
    prototypes: int = 3000  # cluster centres that are learned
    frozen_epochs: int = 1  # at the start, in which the prototypes do not move
    queue: int = 0  # embeddings of earlier batches that join the assignment; 0: none
    queue_from: int = 15  # epoch from which they do, once there are as many
    hidden: int = 2048  # width of the projection's hidden layer
    dimensions: int = 128  # of the projection

    def __post_init__(self) -> None:
        above_zero(self, "temperature", "sharpness")
        at_least(0, self, "frozen_epochs", "queue", "queue_from")
        at_least(1, self, "iterations", "hidden", "dimensions")
        at_least(2, self, "prototypes")  # one would be everybody's


class SwAV(Method):
    Settings = SwAVSettings
    uses_labels = False
    least_views = most_views = 2
    takes_small_views = True
    settings: SwAVSettings

    def __init__(self, encoder: Encoder, settings: SwAVSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.head = NormedHead(encoder.features, (settings.hidden,), settings.dimensions)
        self.prototypes = Prototypes(settings.prototypes, settings.dimensions)
        self.queues = torch.nn.ModuleList(
            Queue(settings.queue, settings.dimensions) for _ in range(2 if settings.queue else 0)
        )
        self.queue_in_use = False

    def before_step(self, progress: Progress) -> None:
        self.prototypes.freeze(progress.epoch < self.settings.frozen_epochs)
        due = bool(self.queues) and progress.epoch >= self.settings.queue_from
        # Asking the device makes the host wait: only from that epoch on, and only until the queue is full.
        self.phase = self.queue_in_use = due and (self.queue_in_use or self.queue_of(0).is_full())

    def forward(self, batch: Batch) -> StepOutput:
        embeddings = [unit(self.head(self.encoder(view))) for view in batch.views]
        scores = [self.prototypes(z) for z in embeddings]
        losses = []
        for source in (0, 1):  # the full views are assigned; all others predict them
            assignments = self.assign(source, embeddings[source].detach(), scores[source].detach())
            for target, predicted in enumerate(scores):
                if target != source:
                    losses.append(swapped(predicted, assignments, self.settings.temperature).mean())
        return StepOutput(torch.stack(losses).mean(), {})

    def assign(self, view: int, embeddings: Tensor, scores: Tensor) -> Tensor:
        count = len(scores)
        if self.queues and self.training:
            queue = self.queue_of(view)
            if self.queue_in_use:
                scores = torch.cat([scores, self.prototypes(own_share(queue.vectors)).detach()])
            labels = torch.zeros(count, dtype=torch.int64, device=scores.device)
            queue.push(gather_batch(embeddings), gather_batch(labels))
        return sinkhorn(scores, self.settings.sharpness, self.settings.iterations, sum_over_processes)[:count]

    def queue_of(self, view: int) -> Queue:
        queue = self.queues[view]
        assert isinstance(queue, Queue)
        return queue

    def after_step(self) -> None:
        self.prototypes.normalise()
