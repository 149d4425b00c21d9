"""Whether class posteriors on the test images are as often right as they are sure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.core import Data, Findings, InputError
from varcon.criterion import TEMPERATURE
from varcon.data.subset import halves, hold_out
from varcon.evaluations.centroid import complete_centroids
from varcon.evaluations.discriminant import fit_discriminant
from varcon.evaluations.frozen import FrozenEncoder, checked_features, row_blocks
from varcon.layers import CosineClassifier
from varcon.limits import above_zero, at_least, declared, seed, within_one

TEMPERATURES = (1e-3, 10.0)  # between which one is fitted


@dataclass(frozen=True)
class Calibration:
    """The posterior of the paper's class-conditional likelihood: a softmax of the cosines between features
    and the training images' class centroids, at three temperatures:

    as set;
    fitted_: of least negative log-likelihood on training images that were left out of their centroids. The
        encoder has learned from them all the same and is surer of them than of test images, so this one is
        too low, the more the longer the training. Absent where no class has two training images;
    crossed_: fitted to one half of the test images and judged on the other, both ways. It takes test
        labels, and shows how well the posterior is calibrated where some labels can be spared for it.

    And, as predict_, the probabilities of `varcon predict`, by linear discriminants; these too are of test
    images to which nothing was fitted.
    """

    temperature: float = TEMPERATURE  # tau1 of the method
    bins: int = 15  # of confidence, in which it is compared with accuracy
    held_out: float = 0.2  # share of each class's training images to which the second temperature is fitted
    seed: int = 0  # of which images those are

    def __post_init__(self) -> None:
        declared(self, of="calibration")
        above_zero(self, "temperature", of="calibration")
        at_least(1, self, "bins", of="calibration")
        within_one(self, "held_out", of="calibration")
        seed(self, of="calibration")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        train, labels = checked_features(encoder, data.train)
        test, test_labels = checked_features(encoder, data.test)
        centroids = complete_centroids(train, labels, data.classes).directions
        results = {
            "": (self.temperature, judge(cosine_scores(centroids, self.temperature), test, test_labels))
        }
        fitted = self.fit_to_training(train, labels, data.classes)
        if fitted is not None:
            results["fitted_"] = fitted, judge(cosine_scores(centroids, fitted), test, test_labels)
        if len(test) > 1:
            results["crossed_"] = self.cross_fit(centroids, test, test_labels)
        discriminant, scores = fit_discriminant(encoder, data)
        results["predict_"] = discriminant.temperature, judge(nn.Identity(), scores, test_labels)
        findings = Findings({}, {})
        for prefix, (temperature, judged) in results.items():
            found = summary(judged, self.bins)
            findings.scores[f"{prefix}temperature"] = temperature
            findings.scores |= {prefix + name: value for name, value in found.scores.items()}
            findings.arrays |= {prefix + name: array for name, array in found.arrays.items()}
        return findings

    def fit_to_training(self, features: Tensor, labels: Tensor, classes: list[str]) -> float | None:
        """None where no class has an image to spare."""
        kept, held = hold_out(labels, self.held_out, self.seed)
        if not len(held):
            return None
        centroids = complete_centroids(features[kept], labels[kept], classes).directions
        return fit_temperature(centroids, features[held], labels[held])

    def cross_fit(self, centroids: Tensor, features: Tensor, labels: Tensor) -> tuple[float, Judged]:
        """The geometric mean of the two temperatures, and the judgement of all images."""
        temperatures, parts = [], []
        for part, rest in halves(len(labels), self.seed):
            temperatures.append(fit_temperature(centroids, features[rest], labels[rest]))
            parts.append(judge(cosine_scores(centroids, temperatures[-1]), features[part], labels[part]))
        return math.sqrt(math.prod(temperatures)), Judged(*map(np.concatenate, zip(*parts, strict=True)))


class ClassifierCalibration:
    """The same of the classifier that a method has trained along with its encoder, as it is.

    No temperature is fitted to it: it has learned from every training image, and none could be held out.
    """

    def __init__(self, layer: nn.Linear | CosineClassifier, settings: Calibration) -> None:
        self.layer, self.settings = layer, settings

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        features, labels = checked_features(encoder, data.test)
        ours = features.shape[1], len(data.classes)
        theirs = self.layer.in_features, self.layer.out_features
        if ours != theirs:
            raise InputError(
                f"the classifier takes {theirs[0]} features to {theirs[1]} classes, and here are {ours[0]} "
                f"features and {ours[1]} classes; judge it on the encoder and data that it was trained with"
            )
        return summary(judge(self.layer, features, labels), self.settings.bins)


class Judged(NamedTuple):
    """Image by image, [N]."""

    confidence: np.ndarray  # the posterior of the most likely class
    correct: np.ndarray  # whether that is the image's class
    nll: np.ndarray  # -log of the posterior of the image's class
    brier: np.ndarray  # squared distance of the posterior to the truth, 0 to 2


class Reliability(NamedTuple):
    """Bin by bin; an empty bin's means are NaN."""

    edges: np.ndarray  # [bins + 1]
    confidence: np.ndarray
    accuracy: np.ndarray
    images: np.ndarray  # how many

    def expected_error(self) -> float:
        """The mean distance of confidence and accuracy, each bin weighted by its images."""
        return float(np.nansum(self.images * abs(self.accuracy - self.confidence)) / self.images.sum())

    def largest_error(self) -> float:
        return float(np.nanmax(abs(self.accuracy - self.confidence)))


def fit_temperature(centroids: Tensor, features: Tensor, labels: Tensor) -> float:
    """The temperature of least negative log-likelihood."""
    from scipy.optimize import minimize_scalar

    def cost(log_temperature: float) -> float:
        return judge(cosine_scores(centroids, math.exp(log_temperature)), features, labels).nll.mean()

    # Convex in 1 / temperature, so there is one minimum and a bounded search finds it.
    low, high = map(math.log, TEMPERATURES)
    return math.exp(minimize_scalar(cost, bounds=(low, high), method="bounded").x)


def cosine_scores(centroids: Tensor, temperature: float) -> Callable[[Tensor], Tensor]:
    return lambda features: F.normalize(features, dim=1) @ centroids.T / temperature


@torch.no_grad()
def judge(scores_of: Callable[[Tensor], Tensor], features: Tensor, labels: Tensor) -> Judged:
    """`scores_of` turns features into class scores, of which the softmax is the posterior."""
    classes = scores_of(features[:1]).shape[1]
    parts = []
    for block in row_blocks(len(features), classes):
        log_p = scores_of(features[block]).double().log_softmax(1)  # [rows, C]
        p, own = log_p.exp(), labels[block, None]
        confidence, predicted = p.max(1)
        brier = p.square().sum(1) - 2 * p.gather(1, own)[:, 0] + 1
        parts.append((confidence, predicted == own[:, 0], -log_p.gather(1, own)[:, 0], brier))
    return Judged(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))


def summary(judged: Judged, bins: int) -> Findings:
    """Accuracy, confidence and calibration errors in percent; nll in nats."""
    even = reliability(judged, np.linspace(0, 1, bins + 1))
    # Bins of equally many images. Quantiles as edges keep equal confidences in one bin, whatever their order.
    full = reliability(judged, np.quantile(judged.confidence, np.linspace(0, 1, bins + 1)))
    scores = {
        "top1": 100 * judged.correct.mean(),
        "confidence": 100 * judged.confidence.mean(),
        "ece": 100 * even.expected_error(),
        "ece_adaptive": 100 * full.expected_error(),
        "mce": 100 * even.largest_error(),
        "nll": judged.nll.mean(),
        "brier": judged.brier.mean(),
    }
    arrays = {f"bin_{name}": array for name, array in even._asdict().items()}
    arrays |= {f"adaptive_bin_{name}": array for name, array in full._asdict().items()}
    return Findings({name: float(value) for name, value in scores.items()}, arrays)


def reliability(judged: Judged, edges: np.ndarray) -> Reliability:
    """Bins open below and closed above, the first and the last without end."""
    places = np.searchsorted(edges[1:-1], judged.confidence)
    count = np.bincount(places, minlength=len(edges) - 1)
    some = np.where(count > 0, count, np.nan)
    confidence = np.bincount(places, judged.confidence, len(count)) / some
    accuracy = np.bincount(places, judged.correct, len(count)) / some
    return Reliability(edges, confidence, accuracy, count)
