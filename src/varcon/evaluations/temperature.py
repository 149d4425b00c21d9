"""The adaptive temperature of every training image, and the images that the encoder is least sure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError
from varcon.criterion import EPSILON, TEMPERATURE
from varcon.evaluations.centroid import Centroids, complete_centroids
from varcon.evaluations.frozen import FrozenEncoder, checked_features, row_blocks
from varcon.limits import above_zero, at_least, declared
from varcon.losses.varcon import leave_one_out

PICTURES = 40  # of the hardest images, kept so that a report can show them without the data
PICTURE_SIDE = 64  # pixels, at most


@dataclass(frozen=True)
class AdaptiveTemperature:
    """p_r, the posterior of an image's own class, and tau2 = (tau1 - epsilon) + 2 epsilon p_r, Eq. 13.

    The posterior is the softmax of the cosines between the encoder's features and the classes' centroids
    over all training images. Images of the lowest p_r are the hardest, and wrong labels are among them.
    """

    temperature: float = TEMPERATURE  # tau1
    epsilon: float = EPSILON  # half the range of tau2
    # An image is part of its class's centroid, and the fewer there are the more it vouches for itself.
    leave_one_out: bool = True  # compare an image with its class's other images alone
    bins: int = 50  # of the density of tau2
    hardest: int = 100  # images to list, at most
    hardest_per_class: int = 5  # images of each class to list, at most

    def __post_init__(self) -> None:
        declared(self, of="temperature")
        above_zero(self, "temperature", of="temperature")
        if not 0 <= self.epsilon < self.temperature:
            raise InputError(
                f"temperature.epsilon is {self.epsilon}; it must be at least 0 and below the temperature "
                f"{self.temperature}"
            )
        at_least(1, self, "bins", "hardest", "hardest_per_class", of="temperature")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        features, labels = checked_features(encoder, data.train)
        centroids = complete_centroids(features, labels, data.classes)
        p, rivals = confidence(features, labels, centroids, self.temperature, self.leave_one_out)
        low, high = self.temperature - self.epsilon, self.temperature + self.epsilon
        tau2 = (low + 2 * self.epsilon * p).clip(low, high)  # rounding must not lead out of the density
        density, edges = np.histogram(tau2, self.bins, (low, high), density=True)
        least, lower, median, upper, most = np.quantile(tau2, [0, 0.25, 0.5, 0.75, 1])
        scores = {
            "tau2_mean": tau2.mean(),
            "tau2_std": tau2.std(),
            "tau2_min": least,
            "tau2_q25": lower,
            "tau2_median": median,
            "tau2_q75": upper,
            "tau2_max": most,
            "confidence_mean": p.mean(),
            "disagreement": 100 * (p < rivals.posterior).mean(),  # percent that look like another class
            "epsilon": self.epsilon,
        }
        order = np.argsort(p, kind="stable")
        hardest = order[: self.hardest]
        own = labels.cpu().numpy()
        arrays = {
            "confidence": p.astype(np.float32),  # [N] in the order of the training images
            "density": density,
            "edges": edges,
            "hardest": hardest,  # places among the training images, the hardest first
            "hardest_labels": own[hardest],
            "hardest_rivals": rivals.classes[hardest],  # what each looks like instead
            "hardest_confidence": p[hardest],
            "hardest_per_class": first_of_each(order, own, len(data.classes), self.hardest_per_class),
        }
        if data.train.files:
            arrays["hardest_files"] = np.array(data.train.files_at(torch.from_numpy(hardest)))
        if data.train.images.ndim == 4:  # and not vectors
            arrays["hardest_pictures"] = pictures(data.train.images[torch.from_numpy(hardest[:PICTURES])])
        return Findings({name: float(value) for name, value in scores.items()}, arrays)


class Rivals(NamedTuple):
    """The most likely class of each image but its own."""

    classes: np.ndarray  # [N]
    posterior: np.ndarray  # [N]


@torch.no_grad()
def confidence(
    features: Tensor, labels: Tensor, centroids: Centroids, temperature: float, without_itself: bool
) -> tuple[np.ndarray, Rivals]:
    """The posterior of each image's own class [N], and its strongest rival."""
    own, rival, rival_class = [], [], []
    for block in row_blocks(len(features), len(centroids.counts)):
        z, label = F.normalize(features[block], dim=1), labels[block, None]
        cosine = z @ centroids.directions.T  # [rows, C]
        if without_itself:
            others = leave_one_out(z, label[:, 0], centroids.sums, centroids.counts, centroids.directions)
            cosine.scatter_(1, label, (z * others).sum(1, keepdim=True))
        p = (cosine.double() / temperature).softmax(1)
        own.append(p.gather(1, label)[:, 0])
        most, place = p.scatter(1, label, -1).max(1)
        rival.append(most)
        rival_class.append(place)
    together = (torch.cat(parts).cpu().numpy() for parts in (own, rival_class, rival))
    return next(together), Rivals(*together)


def pictures(images: Tensor) -> np.ndarray:
    """Images [n, 3, H, W] in at most PICTURE_SIDE pixels a side, each the mean of its area: [n, h, w, 3]."""
    height, width = images.shape[2:]
    scale = min(1, PICTURE_SIDE / max(height, width))
    size = max(1, round(scale * height)), max(1, round(scale * width))
    small = F.adaptive_avg_pool2d(images.cpu().float(), size).round()
    return small.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def first_of_each(order: np.ndarray, labels: np.ndarray, classes: int, count: int) -> np.ndarray:
    """The first `count` of each class in `order`, [classes, count]; -1 where a class has fewer."""
    found = np.full((classes, count), -1)
    by_class = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels, minlength=classes)
    for label, (end, size) in enumerate(zip(sizes.cumsum(), sizes, strict=True)):
        kept = min(count, size)
        found[label, :kept] = by_class[end - size :][:kept]
    return found
