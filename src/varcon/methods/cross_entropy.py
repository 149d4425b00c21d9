"""Cross-entropy, and the regularisers the paper sets its adaptive temperature against, as settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.core import Batch, Encoder, InputError, Method, Progress, StepOutput
from varcon.distributed import gather_batch
from varcon.limits import below_one, declared, not_negative
from varcon.losses import cross_entropy as losses

BINS = 15  # of confidence, AdaFocal's
Loss = Literal["cross-entropy", "focal", "dual-focal", "adafocal"]


@dataclass(frozen=True)
class CrossEntropySettings:
    loss: Loss = "cross-entropy"  # as it is, or one of the focal losses
    label_smoothing: float = 0.0  # share of the target spread over all classes
    mixup: float = 0.0  # alpha of the Beta distribution of blended images; 0: none
    gamma: float = 3.0
    """of focal (3 is from Mukhoti et al., 2020; Lin et al., 2017, have 2) and dual focal (Tao et al., 2023,
    have 5 for a ResNet-50 on CIFAR-10); adafocal's own start from 1"""
    adafocal_rate: float = 1.0  # lambda, how far the gammas move in an epoch

    def __post_init__(self) -> None:
        declared(self, of="method")
        not_negative(self, "mixup", "gamma", "adafocal_rate")
        below_one(self, "label_smoothing")
        if self.loss != "cross-entropy" and (self.label_smoothing or self.mixup):
            raise InputError(
                f"method.loss {self.loss!r} takes labels as they are; set mixup and smoothing to 0"
            )


class CrossEntropy(Method):
    Settings = CrossEntropySettings
    uses_labels = True
    settings: CrossEntropySettings
    classifier: nn.Linear
    gammas: Tensor  # [BINS] AdaFocal's
    share: Tensor  # of an image that mixup keeps

    def __init__(self, encoder: Encoder, settings: CrossEntropySettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.classifier = nn.Linear(encoder.features, num_classes)
        self.register_buffer("gammas", torch.ones(BINS))
        self.register_buffer("share", torch.ones(1))
        self.rate = 0.0
        # After all weights, which it leaves as they were. The seed alone decides it, also in a resumed run.
        self.mixup_seed = int(torch.randint(2**31, ()))

    def before_step(self, progress: Progress) -> None:
        self.rate = self.settings.adafocal_rate / progress.steps_per_epoch
        if self.settings.mixup:
            # By seed and step alone, so that a resumed run draws the same and another seed does not.
            generator = np.random.default_rng([self.mixup_seed, progress.step])
            self.share.fill_(generator.beta(self.settings.mixup, self.settings.mixup))

    def forward(self, batch: Batch) -> StepOutput:
        images, labels = torch.cat(batch.views), batch.labels.repeat(len(batch.views))
        targets = labels
        if self.settings.mixup:
            # A batch is in random order already: the next image is as good a partner as any, and the same
            # one where several processes share the batch, if each holds an even number.
            onehot = F.one_hot(labels, self.classifier.out_features).float()
            order = torch.arange(len(labels), device=labels.device)
            images, targets = losses.mix(images, onehot, self.share, (order ^ 1).clamp_max(len(order) - 1))
        logits = self.classifier(self.encoder(images))
        loss = self.loss(logits, labels, targets).mean()
        accuracy = (logits.argmax(1) == labels).float().mean()
        return StepOutput(loss, {"accuracy": accuracy})

    def loss(self, logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        if self.settings.loss == "focal":
            return losses.focal(logits, labels, self.settings.gamma)
        if self.settings.loss == "dual-focal":
            return losses.dual_focal(logits, labels, self.settings.gamma)
        if self.settings.loss == "adafocal":
            return self.adafocal(logits, labels)
        return losses.cross_entropy(logits, targets, self.settings.label_smoothing)

    def adafocal(self, logits: Tensor, labels: Tensor) -> Tensor:
        """AdaFocal on training batches: its authors update once an epoch, from validation images, which a run
        here does not have, and between bins of equal numbers; here every step does, between equal widths."""
        p = logits.detach().float().softmax(1)
        edges = torch.linspace(0, 1, BINS + 1, device=p.device)[1:-1]
        own_bin = torch.bucketize(p.gather(1, labels[:, None])[:, 0].contiguous(), edges, right=True)
        result = losses.adafocal(logits, labels, self.gammas[own_bin])
        if self.training:
            confidence, guess = (gather_batch(part) for part in p.max(1))
            correct = guess == gather_batch(labels)
            gammas = losses.update_gammas(self.gammas, confidence, correct, edges, self.rate, (-2.0, 20.0))
            self.gammas.copy_(gammas)
        return result
