"""Measures of a classifier from its scores [N, classes], in percent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from varcon.evaluations.accuracy import top_accuracy


def top1(scores: Tensor, labels: Tensor) -> float:
    return top_accuracy(scores, labels)[0]


def mean_per_class(scores: Tensor, labels: Tensor) -> float:
    """The mean of the classes' own accuracies, over the classes that have an image."""
    images = labels.bincount(minlength=scores.shape[1])
    hits = labels[scores.argmax(dim=1) == labels].bincount(minlength=scores.shape[1])
    return 100 * (hits[images > 0].double() / images[images > 0]).mean().item()


def mean_average_precision(scores: Tensor, targets: Tensor) -> float:
    """Mean over the classes of VOC2007's own average precision, the 11-point one.

    `targets` [N, classes] are 1 where an image shows the class, 0 where not, and negative where that does
    not count either way, as with VOC's difficult objects. Classes that no image shows are left out.
    """
    precisions = [
        eleven_point_precision(scores[counts, number], targets[counts, number] > 0)
        for number, counts in enumerate((targets >= 0).T)
        if (targets[:, number] > 0).any()
    ]
    return 100 * sum(precisions) / len(precisions) if precisions else float("nan")


def eleven_point_precision(scores: Tensor, positive: Tensor) -> float:
    """The best precision at a recall of at least 0, 0.1, ..., 1, averaged, as the VOC2007 challenge did."""
    hits, images = found_by_score(scores, positive)
    precision = hits.double() / images
    # In whole numbers: a recall of 3 of 10 must count as 0.3.
    best = [precision[10 * hits >= tenth * hits[-1]].max() for tenth in range(11)]
    return torch.stack(best).mean().item()


def found_by_score(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """How many positives and how many images lie at or above each distinct score, from the highest down.

    Images of equal score come together, so that the measure does not hang on their order.
    """
    ordered, order = scores.sort(descending=True)
    last_of_equals = torch.ones_like(positive)
    last_of_equals[:-1] = ordered[1:] != ordered[:-1]
    images = torch.arange(1, len(scores) + 1, device=scores.device)
    return positive[order].cumsum(0)[last_of_equals], images[last_of_equals]


# Each takes class scores [N, classes] and labels [N], or targets [N, classes] for "map".
METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "top1": top1,
    "mean-per-class": mean_per_class,
    "map": mean_average_precision,
}
