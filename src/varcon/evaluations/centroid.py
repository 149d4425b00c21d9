"""Classification by the nearest class mean: how far each class is one cluster, with nothing to tune."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder, row_blocks
from varcon.evaluations.metrics import mean_per_class
from varcon.losses.varcon import class_sums


@dataclass(frozen=True)
class NearestCentroid:
    """A test image goes to the class whose mean training direction has the greatest cosine with its own."""

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        labels = data.test.labels.to(encoder.device)
        centroids = class_centroids(
            encoder.features(data.train), data.train.labels.to(encoder.device), len(data.classes)
        )
        cosines = F.normalize(encoder.features(data.test), dim=1) @ centroids.T  # [N, classes]
        top1, top5 = top_accuracy(cosines, labels)
        scores = {"top1": top1, "top5": top5, "mean_per_class": mean_per_class(cosines, labels)}
        return Findings(scores, {"predictions": cosines.argmax(dim=1).cpu().numpy()})


def class_centroids(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The mean direction [classes, F] of each class, of length 1; zero for a class without images."""
    return F.normalize(class_sums(F.normalize(features, dim=1), labels, num_classes)[0], dim=1)


class Centroids(NamedTuple):
    directions: Tensor  # [C, F] unit vectors
    sums: Tensor  # [C, F] of the normalised features of each class
    counts: Tensor  # [C]


@torch.no_grad()
def complete_centroids(features: Tensor, labels: Tensor, classes: list[str]) -> Centroids:
    """The same for a class posterior, which needs two classes or more and an image of each."""
    if len(classes) < 2:
        raise InputError("the data have one class only; a class posterior needs at least two")
    sums = features.new_zeros(len(classes), features.shape[1])
    counts = features.new_zeros(len(classes))
    for block in row_blocks(len(features), features.shape[1]):
        part = class_sums(F.normalize(features[block], dim=1), labels[block], len(classes))
        sums, counts = sums + part[0], counts + part[1]
    if not counts.all():
        missing = int((counts == 0).nonzero()[0])
        raise InputError(f"class {classes[missing]!r} has no training image; add some or leave the class out")
    return Centroids(F.normalize(sums, dim=1), sums, counts)
