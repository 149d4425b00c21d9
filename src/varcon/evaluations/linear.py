"""A linear classifier on the frozen encoder's pooled features, trained by the paper's schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from varcon.augment import AugmentSettings
from varcon.core import Data, Findings, InputError
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder


@dataclass(frozen=True)
class LinearProbe:
    """SGD with momentum 0.9, no weight decay, the rate cut to a fifth at 60, 75 and 90 % of the epochs."""

    epochs: int = 100
    batch_size: int = 1024
    learning_rate: float = 5.0
    augment: Literal["none", "crop-flip"] = "none"  # none: on features computed once; crop-flip: the paper's
    flip: float = 0.5  # probability of a mirrored image under crop-flip; 0 where mirroring changes the class
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"linear.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.learning_rate > 0:
            raise InputError(f"linear.learning_rate is {self.learning_rate}; it must be above 0")

    @property
    def name(self) -> str:
        """Of the findings: the two kinds of probe do not compare."""
        return "linear" if self.augment == "none" else "linear-augmented"

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        device = encoder.device
        train, test = encoder.features(data.train), encoder.features(data.test)
        labels, test_labels = data.train.labels.to(device), data.test.labels.to(device)
        drawing = torch.Generator(device).manual_seed(self.seed)
        ordering = torch.Generator().manual_seed(self.seed)
        policy = AugmentSettings(policy=self.augment, flip=self.flip)

        # Encoders differ in the scale of their features by orders of magnitude; dividing by the mean
        # length lets one learning rate serve them all and changes nothing that a linear layer can express.
        scale = train.norm(dim=1).mean().clamp_min(1e-12)
        classifier = linear_classifier(train.shape[1], len(data.classes), ordering).to(device)
        optimizer = torch.optim.SGD(classifier.parameters(), lr=self.learning_rate, momentum=0.9)
        milestones = [int(self.epochs * part) for part in (0.6, 0.75, 0.9)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.2)
        accuracy, top5 = [], 0.0
        for epoch in range(self.epochs):
            encoder.progress(epoch, self.epochs, "training the linear probe")
            for part in torch.randperm(len(labels), generator=ordering).to(device).split(self.batch_size):
                if self.augment == "none":
                    features = train[part]
                else:
                    images = data.train.images[part.cpu()].to(device)
                    features = encoder.augmented_features(images, policy, drawing)
                F.cross_entropy(classifier(features / scale), labels[part]).backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            top1, top5 = top_accuracy(classifier(test / scale).detach(), test_labels)
            accuracy.append(top1)
        best = int(np.argmax(accuracy))
        scores = {"last": accuracy[-1], "best": accuracy[best], "best_epoch": best + 1, "top5": top5}
        return Findings(scores, {"accuracy": np.array(accuracy)})


def linear_classifier(features: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer whose first weights come from a passed generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, features, classes)
    with torch.no_grad():
        layer.weight.normal_(0, 0.01, generator=generator)
        layer.bias.zero_()
    return layer
