"""Classification by the nearest class mean: how far each class is one cluster, with nothing to tune."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.metrics import mean_per_class


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
    sums = features.new_zeros(num_classes, features.shape[1])
    return F.normalize(sums.index_add_(0, labels, F.normalize(features, dim=1)), dim=1)
