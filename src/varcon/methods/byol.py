"""BYOL: each view predicts what a slow teacher makes of the other; no negatives (Grill et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from varcon.core import Batch, Encoder, Method, Progress, StepOutput
from varcon.layers import NormedHead, Teacher, rising_momentum
from varcon.limits import at_least, share
from varcon.losses.byol import regression


@dataclass(frozen=True)
class BYOLSettings:
    momentum: float = 0.996  # of the teacher at the start; it rises to 1
    hidden: int = 4096  # of projection and prediction
    dimensions: int = 256  # of the projection

    def __post_init__(self) -> None:
        share(self, "momentum")
        at_least(1, self, "hidden", "dimensions")


class BYOL(Method):
    Settings = BYOLSettings
    uses_labels = False
    least_views = most_views = 2
    settings: BYOLSettings

    def __init__(self, encoder: Encoder, settings: BYOLSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        head = NormedHead(encoder.features, (settings.hidden,), settings.dimensions)
        self.student = nn.Sequential(self.encoder, head)
        self.teacher = Teacher(self.student, settings.momentum)
        self.predictor = NormedHead(settings.dimensions, (settings.hidden,), settings.dimensions)

    def before_step(self, progress: Progress) -> None:
        self.teacher.set_momentum(rising_momentum(self.settings.momentum, progress))

    def forward(self, batch: Batch) -> StepOutput:
        first, second = batch.views
        losses = regression(self.predictor(self.student(first)), self.teacher(second))
        losses = losses + regression(self.predictor(self.student(second)), self.teacher(first))
        return StepOutput(losses.mean(), {})

    def after_step(self) -> None:
        self.teacher.follow(self.student)
