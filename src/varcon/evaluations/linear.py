"""A linear classifier on the frozen encoder's pooled features, trained by the authors' schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.augment import AugmentSettings
from varcon.core import Data, Findings, InputError
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder
from varcon.limits import above_zero, at_least, declared, seed, share


@dataclass(frozen=True)
class LinearProbe:
    """SGD with momentum 0.9, no weight decay, the rate cut to a fifth at 60, 75 and 90 % of the epochs."""

    epochs: int = 100  # passes over the training images
    batch_size: int = 1024  # images per step
    learning_rate: float = 5.0  # at the start
    augment: Literal["none", "resized-crop"] = "none"
    """none: on features computed once; resized-crop: a crop of 0.2 to 1 of each image's area, resized, drawn
    and encoded anew in every epoch, as in the authors' code"""
    flip: float = 0.5  # probability of a mirrored crop; 0 where mirroring changes the class
    seed: int = 0  # of the first weights and of the images' order

    def __post_init__(self) -> None:
        declared(self, of="linear")
        at_least(1, self, "epochs", "batch_size", of="linear")
        above_zero(self, "learning_rate", of="linear")
        share(self, "flip", of="linear")
        seed(self, of="linear")

    @property
    def name(self) -> str:
        """Of the findings: the two kinds of probe do not compare."""
        return "linear" if self.augment == "none" else "linear-augmented"

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        if self.augment != "none" and data.train.images.ndim == 2:
            raise InputError("linear.augment crops images and the data are vectors; leave it at none")
        device = encoder.device
        train, test = encoder.features(data.train), encoder.features(data.test)
        labels, test_labels = data.train.labels.to(device), data.test.labels.to(device)
        drawing = torch.Generator(device).manual_seed(self.seed)
        ordering = torch.Generator().manual_seed(self.seed)
        crops = AugmentSettings(
            "sim", crop_area=(0.2, 1), flip=self.flip, jitter_probability=0, grey=0, blur=0
        )

        def features_of(part: Tensor) -> Tensor:
            if self.augment == "none":
                return train[part]
            return encoder.augmented_features(data.train.images[part.cpu()].to(device), crops, drawing)

        steps_an_epoch = math.ceil(len(labels) / self.batch_size)
        classifier = TrainedLinear(
            train, len(data.classes), self.learning_rate, self.epochs, steps_an_epoch, ordering
        )
        accuracy = []
        for epoch in range(self.epochs):
            encoder.progress(epoch, self.epochs, "training the linear probe")
            order = torch.randperm(len(labels), generator=ordering).to(device)
            classifier.train(order.split(self.batch_size), features_of, labels)
            outputs = classifier(test)  # [N, classes]
            top1, top5 = top_accuracy(outputs, test_labels)
            accuracy.append(top1)
        encoder.progress(self.epochs, self.epochs, "training the linear probe")
        best = int(np.argmax(accuracy))
        scores = {"last": accuracy[-1], "best": accuracy[best], "best_epoch": best + 1, "top5": top5}
        predictions = outputs.argmax(dim=1).cpu().numpy().astype(np.int32)  # the last epoch's
        return Findings(scores, {"accuracy": np.array(accuracy), "predictions": predictions})


class TrainedLinear:
    """A linear classifier on features, and the schedule by which it learns."""

    def __init__(
        self,
        features: Tensor,
        classes: int,
        learning_rate: float,
        rounds: int,
        steps_a_round: int,
        generator: torch.Generator,
    ) -> None:
        """For features like these [N, F]; the rate is cut after 60, 75 and 90 % of the rounds."""
        # Encoders differ in the scale of their features by orders of magnitude; dividing by the mean
        # length lets one learning rate serve them all and changes nothing that a linear layer can express.
        self.scale = features.norm(dim=1).mean().clamp_min(1e-12)
        self.layer = linear_classifier(features.shape[1], classes, generator).to(features.device)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=learning_rate, momentum=0.9)
        # Not before the first round is over: where it is the only one, the rate would begin cut three times.
        milestones = [max(1, int(rounds * part)) * steps_a_round for part in (0.6, 0.75, 0.9)]
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, milestones, gamma=0.2)

    def train(
        self, batches: Iterable[Tensor], features_of: Callable[[Tensor], Tensor], labels: Tensor
    ) -> None:
        """One step for each batch of positions among the labels."""
        for part in batches:
            F.cross_entropy(self.layer(features_of(part) / self.scale), labels[part]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Class scores [N, C] of features [N, F]."""
        return self.layer(features / self.scale)


def linear_classifier(features: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer whose first weights come from a passed generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, features, classes)
    with torch.no_grad():
        layer.weight.normal_(0, 0.01, generator=generator)
        layer.bias.zero_()
    return layer
