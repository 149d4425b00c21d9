"""How an embedding came about: maps of the same test images, from snapshot to snapshot of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from varcon.core import Data, Findings, InputError, Split
from varcon.data.subset import choose
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder
from varcon.evaluations.knn import KNN, nearest, votes_of
from varcon.evaluations.map2d import LEAST_POINTS, Projection, Projector, check_settings

NEIGHBOURS = 5  # that vote on the class of a mapped image


@dataclass(frozen=True)
class Maps:
    """Of one map for each snapshot and one for the finished encoder."""

    method: Projection = "tsne"  # umap needs the extra varcon[umap]
    perplexity: float = 50.0  # the paper's; of UMAP, the number of neighbours
    points: int = 2000  # test images, at most, the same in every map
    seed: int = 0  # of the images that are drawn and of the maps

    def __post_init__(self) -> None:
        check_settings(self, of="maps")


class SnapshotMaps:
    """Each map begins where the one before it ended and is turned onto it, so that the eye can follow."""

    def __init__(
        self, settings: Maps, earlier: Mapping[int, Callable[[], FrozenEncoder]], epochs: int
    ) -> None:
        """`earlier` opens the snapshot of each epoch, ascending; the encoder to be judged is of `epochs`."""
        self.settings, self.earlier, self.epochs = settings, earlier, epochs

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        settings = self.settings
        if not self.earlier:
            raise InputError(
                "the run has kept no snapshots to map; train one with train.snapshots, for example "
                f"--train.snapshots 0 {max(1, self.epochs // 2)}"
            )
        if len(data.test) < LEAST_POINTS:
            raise InputError(
                f"maps need at least {LEAST_POINTS} test images and there are {len(data.test)}; give more"
            )
        project = Projector(settings.method, settings.perplexity, settings.seed)
        chosen = choose(len(data.test), settings.points, settings.seed)
        mapped = Split(data.test.images[chosen], data.test.labels[chosen])
        stages = {**self.earlier, self.epochs: lambda: encoder}
        maps: list[np.ndarray] = []
        scores = {}
        for number, (epoch, opened) in enumerate(stages.items()):
            features = opened().features(mapped)
            scores[f"knn_top1@epoch{epoch}"] = neighbours_accuracy(features, mapped, len(data.classes))
            encoder.progress(number, len(stages), "drawing maps")
            before = maps[-1] if maps else None
            points = project(features, before)
            points -= points.mean(axis=0)
            maps.append(points if before is None else turned_onto(before, points))
        encoder.progress(len(stages), len(stages), "drawing maps")
        arrays = {
            "points": np.stack(maps),  # [snapshots, N, 2]
            "labels": mapped.labels.numpy(),
            "epochs": np.array(list(stages)),
            "chosen": chosen.numpy(),  # positions among the test images
        }
        return Findings(scores, arrays)


def turned_onto(fixed: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The points, rotated and perhaps reflected, as near to the fixed ones as they come; distances stay."""
    return points @ orthogonal_procrustes(points, fixed)[0]


def neighbours_accuracy(features: Tensor, split: Split, num_classes: int) -> float:
    """Of the vote of each image's nearest among the others: cheap, for no training image is encoded."""
    labels = split.labels.to(features.device)
    k = min(NEIGHBOURS, len(labels) - 1)
    similarity, neighbours = nearest(features, features, k + 1)
    itself = neighbours == torch.arange(len(labels), device=features.device)[:, None]
    itself[:, -1] |= ~itself.any(dim=1)  # of more equals than neighbours: any one of them is left out
    cosines, classes = (tensor[~itself].view(len(labels), k) for tensor in (similarity, labels[neighbours]))
    votes = votes_of(cosines, classes, num_classes, [k], KNN().temperature)
    return top_accuracy(votes[k], labels)[0]
