"""PaCo: GPaCo's older form, one view against the keys that a slow teacher makes (Cui et al., ICCV 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from varcon.core import Batch, Encoder
from varcon.distributed import gather_batch
from varcon.layers import NormedHead, Teacher, unit
from varcon.limits import share
from varcon.methods.gpaco import GPaCo, GPaCoSettings


@dataclass(frozen=True)
class PaCoSettings(GPaCoSettings):
    momentum: float = 0.999  # of the teacher

    def __post_init__(self) -> None:
        super().__post_init__()
        share(self, "momentum")


class PaCo(GPaCo):
    Settings: ClassVar[type] = PaCoSettings
    least_views = most_views = 2
    settings: PaCoSettings

    def __init__(self, encoder: Encoder, settings: PaCoSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.student = nn.Sequential(self.encoder, self.head)
        self.teacher = Teacher(self.student, settings.momentum)

    def build_head(self, width: int) -> nn.Module:
        return NormedHead(width, (width,), self.settings.dimensions)

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        first, second = batch.views
        features = self.encoder(first)
        queries = unit(self.head(features))
        keys = unit(self.teacher(second))
        contrast = torch.cat([gather_batch(queries), gather_batch(keys)])
        contrast_labels = gather_batch(batch.labels).repeat(2)
        loss = self.compare(features, queries, batch.labels, contrast, contrast_labels)
        self.remember(keys, batch.labels)
        return loss, queries, batch.labels

    def after_step(self) -> None:
        self.teacher.follow(self.student)
