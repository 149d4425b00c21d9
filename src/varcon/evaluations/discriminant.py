"""Classification by linear discriminants: the nearest class mean, where the way that images of one class
differ anyway counts less."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings
from varcon.data.subset import choose, halves, hold_out
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.frozen import FrozenEncoder, checked_features, row_blocks
from varcon.evaluations.metrics import mean_per_class
from varcon.losses.varcon import class_sums

# The first is the nearest mean; of those that do equally well the first is taken.
SHRINKAGES = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)
TEMPERATURES = (1e-2, 1e5)  # 1 where other images differ as training images do, more where by more
EVEN = 100  # temperature over the greatest difference of scores, at which all classes are about as likely
SPARED = 0.2  # of each class's training images, to fit to where there are no test images
ENOUGH = 10_000  # images to fit two numbers to


@dataclass(frozen=True)
class LinearDiscriminant:
    """The classifier of `varcon predict`: Fisher's discriminants of the features' directions, for classes as
    frequent as in training.

    The covariance within the classes is shrunk towards a sphere. By how much is chosen by the other half of
    the test images, both ways, and not by training images: those that an encoder knows by heart differ less
    than others do.
    """

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        fitted, scores = fit_discriminant(encoder, data)
        labels = data.test.labels.to(encoder.device)
        top1, top5 = top_accuracy(scores, labels)
        found = {
            "top1": top1,
            "top5": top5,
            "mean_per_class": mean_per_class(scores, labels),
            "shrinkage": fitted.shrinkage,
        }
        return Findings(found, {"predictions": scores.argmax(dim=1).cpu().numpy()})


@dataclass(frozen=True)
class Discriminant:
    """Log odds of classes, linear in a feature's direction."""

    shrinkage: float
    weight: Tensor  # [C, F]
    bias: Tensor  # [C]
    prior: Tensor  # [C], log frequencies of the classes; minus infinity for one without training images
    temperature: float = 1.0  # divides all but the prior

    def __call__(self, features: Tensor) -> Tensor:
        return self.plain(features) / self.temperature + self.prior

    def plain(self, features: Tensor) -> Tensor:
        """Of equally frequent classes, at temperature 1."""
        return F.normalize(features, dim=1) @ self.weight.T + self.bias


@torch.no_grad()
def fit_discriminant(encoder: FrozenEncoder, data: Data) -> tuple[Discriminant, Tensor]:
    """What is fitted to the test images, which the encoder has not learned from; and of each half of them the
    scores [N, C] by what is fitted to the other. Of a single one, what is fitted to some training images."""
    train, labels = checked_features(encoder, data.train)
    test, test_labels = checked_features(encoder, data.test)
    family = discriminants(train, labels, len(data.classes))
    if len(test) > 1:
        scores = test.new_empty(len(test), len(data.classes))
        for part, rest in halves(len(test), seed=0):
            scores[part] = fit(family, test[rest], test_labels[rest])(test[part])
        return fit(family, test, test_labels), scores
    chosen = family[0]
    kept, held = hold_out(labels, SPARED, seed=0)
    if len(held):
        found = fit(discriminants(train[kept], labels[kept], len(data.classes)), train[held], labels[held])
        chosen = replace(family[SHRINKAGES.index(found.shrinkage)], temperature=found.temperature)
    return chosen, chosen(test)


def discriminants(features: Tensor, labels: Tensor, num_classes: int) -> list[Discriminant]:
    """One for each of SHRINKAGES."""
    sums = features.new_zeros(num_classes, features.shape[1], dtype=torch.float64)
    counts = sums.new_zeros(num_classes)
    blocks = list(row_blocks(len(features), features.shape[1]))
    for block in blocks:
        part = class_sums(F.normalize(features[block], dim=1), labels[block], num_classes)
        sums, counts = sums + part[0], counts + part[1]
    means, centre = sums / counts.clamp_min(1)[:, None], sums.sum(0) / len(features)
    spread = means.new_zeros(means.shape[1], means.shape[1])
    for block in blocks:
        apart = F.normalize(features[block], dim=1) - means[labels[block]].to(features.dtype)
        spread += apart.T @ apart
    variances, axes = torch.linalg.eigh(spread / len(features))
    average = variances.mean()
    prior = (counts / len(features)).log().to(features)
    found = []
    for shrinkage in SHRINKAGES:
        shrunk = (1 - shrinkage) * variances + shrinkage * average
        precision = torch.where(average > 0, 1 / shrunk, 1)  # 1: no class has two images that differ
        # From the centre: directions that are all alike differ by less than their own products round.
        weight = (means - centre) @ axes * precision @ axes.T
        bias = -(weight * (means + centre)).sum(1) / 2
        found.append(Discriminant(shrinkage, weight.to(features), bias.to(features), prior))
    return found


def fit(family: list[Discriminant], features: Tensor, labels: Tensor) -> Discriminant:
    """The one under which, at its best temperature, the labels are likeliest."""
    some = choose(len(labels), ENOUGH, seed=0).to(labels.device)
    some = some[
        family[0].prior.isfinite()[labels[some]]
    ]  # no temperature suits a class without training images
    if not len(some):
        return family[0]
    fitted = [at_best_temperature(one, features[some], labels[some]) for one in family]
    return min(fitted, key=itemgetter(0))[1]


def at_best_temperature(one: Discriminant, features: Tensor, labels: Tensor) -> tuple[float, Discriminant]:
    """With what it costs: the mean negative log-likelihood of these images and of one that could be of any
    class, for a few that are all right prove no certainty."""
    from scipy.optimize import minimize_scalar

    plain, prior = one.plain(features).double(), one.prior.double()

    def cost(log_temperature: float) -> float:
        log_p = (plain / math.exp(log_temperature) + prior).log_softmax(1)
        own = log_p.gather(1, labels[:, None])
        return -float(own.sum() + log_p[:, prior.isfinite()].mean()) / (len(labels) + 1)

    low, high = TEMPERATURES
    # Where a class's training images are copies of one, others differ more by any factor.
    high = max(high, EVEN * float((plain.amax(1) - plain.amin(1)).max()))
    found = minimize_scalar(cost, bounds=(math.log(low), math.log(high)), method="bounded")
    return float(found.fun), replace(one, temperature=math.exp(found.x))
