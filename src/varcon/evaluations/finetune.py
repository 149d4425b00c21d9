"""A copy of the encoder trained on with a linear head: where the frozen features are not the last word."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.augment import AugmentSettings, augment, prepare
from varcon.core import Data, Findings, InputError, Split
from varcon.evaluations.frozen import IMAGES_AT_ONCE, FrozenEncoder, check_finite
from varcon.evaluations.linear import linear_classifier
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.metrics import METRICS, mean_per_class
from varcon.evaluations.transfer import Target, open_target
from varcon.limits import above_zero, at_least, declared, not_negative, seed, share


@dataclass(frozen=True)
class FineTune:
    """SGD with Nesterov momentum 0.9 on all weights, the rate falling to zero along a cosine."""

    target: Target | None = None  # the data to train on; None: the encoder's own
    epochs: int = 10  # passes over the training images
    batch_size: int = 64  # images per step
    learning_rate: float = 0.01  # at the start
    weight_decay: float = 1e-4  # of all weights
    head: Literal["logistic", "random"] = "logistic"
    """how the linear head begins: as the regression on the frozen features, or with random weights"""
    augment: Literal["none", "crop-flip", "sim"] = "crop-flip"
    """policy for the training images, as in augment.policy"""
    flip: float = 0.5  # probability of a mirrored image; 0 where mirroring changes the class
    seed: int = 0  # of the images' order and augmentation, and of a random head

    def __post_init__(self) -> None:
        declared(self, of="finetune")
        at_least(1, self, "epochs", of="finetune")
        at_least(2, self, "batch_size", of="finetune")  # of one image a batch norm learns nothing
        above_zero(self, "learning_rate", of="finetune")
        not_negative(self, "weight_decay", of="finetune")
        share(self, "flip", of="finetune")
        seed(self, of="finetune")

    @property
    def name(self) -> str:
        """Of the findings: one for each target."""
        return f"finetune-{self.target.name}" if self.target else "finetune"

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        other = open_target(self.target, encoder, data) if self.target else data
        if len(other.train) < 2 or len(other.classes) < 2:
            raise InputError("fine-tuning needs two classes and an image of each at least; give more data")
        cuda = [encoder.device] if encoder.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):  # an encoder with dropout draws from the global state
            torch.manual_seed(self.seed)
            return self._train(encoder, other)

    def _train(self, encoder: FrozenEncoder, data: Data) -> Findings:
        device = encoder.device
        labels, test_labels = data.train.labels.to(device), data.test.labels.to(device)
        policy = AugmentSettings(policy=self.augment, flip=self.flip, shift=usual_shift(data.train))
        drawing = torch.Generator(device).manual_seed(self.seed)
        ordering = torch.Generator().manual_seed(self.seed)
        body = copy.deepcopy(encoder.encoder).requires_grad_(True)
        head = self._first_head(encoder, data, labels, ordering)
        model = nn.Sequential(body, head)
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=self.learning_rate,
            momentum=0.9,
            nesterov=True,
            weight_decay=self.weight_decay,
        )
        # Parts of equal size, and of two images at least: a single one would stop the batch norm.
        steps_an_epoch = max(1, min(math.ceil(len(labels) / self.batch_size), len(labels) // 2))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs * steps_an_epoch)
        where = self.target.name if self.target else "its own data"
        several = labels.ndim == 2  # classes an image, which mAP alone can judge
        losses, accuracy, per_class = [], [], []
        for epoch in range(self.epochs):
            encoder.progress(epoch, self.epochs, f"fine-tuning on {where}")
            model.train()
            total = torch.zeros((), device=device)
            for part in torch.randperm(len(labels), generator=ordering).tensor_split(steps_an_epoch):
                images = data.train.images[part].to(device)
                views = augment(images, policy, encoder.mean, encoder.std, drawing)
                loss = classification_loss(model(views), labels[part.to(device)])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.detach() * len(part)
            losses.append(total.item() / len(labels))
            if not math.isfinite(losses[-1]):
                raise InputError(
                    f"fine-tuning diverged in epoch {epoch + 1}; lower finetune.learning_rate, "
                    f"which is {self.learning_rate}"
                )
            outputs = outputs_of(model, data.test, encoder)
            accuracy.append(METRICS["map" if several else "top1"](outputs, test_labels))
            if not several:
                per_class.append(mean_per_class(outputs, test_labels))
        encoder.progress(self.epochs, self.epochs, f"fine-tuning on {where}")
        best = int(np.argmax(accuracy))
        # Each measure at its own best epoch, which the test images choose: kinder than the last.
        scores = {"last": accuracy[-1], "best": accuracy[best], "best_epoch": float(best + 1)}
        if several:
            return Findings(scores, {"loss": np.array(losses), "map": np.array(accuracy)})
        scores |= {"last_mean_per_class": per_class[-1], "best_mean_per_class": max(per_class)}
        arrays = {"loss": losses, "accuracy": accuracy, "mean_per_class": per_class}
        return Findings(scores, {name: np.array(values) for name, values in arrays.items()})

    def _first_head(
        self, encoder: FrozenEncoder, data: Data, labels: Tensor, generator: torch.Generator
    ) -> nn.Linear:
        """A random head pulls the features about until it has learned what they already say; in few epochs it
        does not even come to where the regression begins."""
        features = outputs_of(encoder.encoder, data.train, encoder)
        head = linear_classifier(features.shape[1], len(data.classes), generator).to(encoder.device)
        if self.head == "logistic":
            judge = METRICS["map" if labels.ndim == 2 else "top1"]
            model = LogisticProbe().fit(features, labels, len(data.classes), judge, encoder.progress).model
            with torch.no_grad():
                head.weight.copy_(model.weight)
                head.bias.copy_(model.bias)
        return head


def classification_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with labels [N], or with targets [N, classes] the sum of each class's own, without those
    that are negative."""
    if targets.ndim == 1:
        return F.cross_entropy(outputs, targets)
    counts, shown = (targets >= 0).to(outputs.dtype), (targets > 0).to(outputs.dtype)
    losses = F.binary_cross_entropy_with_logits(outputs, shown, weight=counts, reduction="sum")
    return losses / len(targets)


@torch.no_grad()
def outputs_of(model: nn.Module, split: Split, encoder: FrozenEncoder) -> Tensor:
    model.eval()
    parts = split.images.split(IMAGES_AT_ONCE)
    each = [model(prepare(part.to(encoder.device), encoder.mean, encoder.std)) for part in parts]
    outputs = torch.cat(each)
    check_finite(outputs)
    return outputs


def usual_shift(split: Split) -> int:
    """An eighth of the side: 4 pixels of 32, and no more than small images allow."""
    return max(1, split.images.shape[-1] // 8)
