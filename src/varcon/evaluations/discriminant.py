"""Classification by linear discriminants: the nearest class mean, where the way that images of one class
differ anyway counts less."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings
from varcon.data.subset import halves
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder, checked_features, row_blocks
from varcon.evaluations.metrics import mean_per_class
from varcon.losses.varcon import class_sums

# 1 is the nearest mean. Least first: of those that do equally well the first is taken.
SHRINKAGES = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class LinearDiscriminant:
    """The classifier of `varcon predict`: Fisher's discriminants of the features' directions.

    The covariance within the classes is shrunk towards a sphere. By how much is chosen by the other half of
    the test images, both ways, and not by training images: those that an encoder knows by heart differ less
    than others do.
    """

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        train, train_labels = checked_features(encoder, data.train)
        test, labels = checked_features(encoder, data.test)
        family = discriminants(train, train_labels, len(data.classes))
        scores = family[0](test)  # [N, classes]
        if len(test) > 1:
            for part, rest in halves(len(test), seed=0):
                scores[part] = most_right(family, test[rest], labels[rest])(test[part])
        top1, top5 = top_accuracy(scores, labels)
        found = {
            "top1": top1,
            "top5": top5,
            "mean_per_class": mean_per_class(scores, labels),
            "shrinkage": most_right(family, test, labels).shrinkage,
        }
        return Findings(found, {"predictions": scores.argmax(dim=1).cpu().numpy()})


@dataclass(frozen=True)
class Discriminant:
    """Class scores, linear in a feature's direction; their differences are log odds, but for a factor."""

    shrinkage: float
    weight: Tensor  # [C, F]
    bias: Tensor  # [C], minus infinity for a class without training images

    def __call__(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=1) @ self.weight.T + self.bias


@torch.no_grad()
def discriminants(features: Tensor, labels: Tensor, num_classes: int) -> list[Discriminant]:
    """One for each of SHRINKAGES, on one scale: that of cosines, in which the nearest mean is."""
    sums = features.new_zeros(num_classes, features.shape[1], dtype=torch.float64)
    counts = features.new_zeros(num_classes)
    blocks = list(row_blocks(len(features), features.shape[1]))
    for block in blocks:
        part = class_sums(F.normalize(features[block], dim=1), labels[block], num_classes)
        sums, counts = sums + part[0], counts + part[1]
    means = sums / counts.clamp_min(1)[:, None]
    spread = means.new_zeros(means.shape[1], means.shape[1])
    for block in blocks:
        apart = F.normalize(features[block], dim=1) - means[labels[block]].to(features.dtype)
        spread += apart.T @ apart
    lengths, axes = torch.linalg.eigh(spread)
    lengths = lengths.clamp_min(0)  # below it by rounding only
    average = lengths.mean()
    found = []
    for shrinkage in SHRINKAGES:
        shrunk = (1 - shrinkage) * lengths + shrinkage * average
        closeness = torch.where(average > 0, average / shrunk, 1)  # 1: no class has two different images
        weight = means @ axes * closeness @ axes.T
        bias = torch.where(counts > 0, -(weight * means).sum(1) / 2, -torch.inf)
        found.append(Discriminant(shrinkage, weight.to(features.dtype), bias.to(features.dtype)))
    return found


@torch.no_grad()
def most_right(family: list[Discriminant], features: Tensor, labels: Tensor) -> Discriminant:
    """The one that gets the most of these images right."""

    def right(one: Discriminant) -> int:
        blocks = row_blocks(len(features), len(one.bias))
        return sum(int((one(features[block]).argmax(1) == labels[block]).sum()) for block in blocks)

    return max(family, key=right)
