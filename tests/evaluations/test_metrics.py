import math

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, precision_recall_curve

from varcon.evaluations.metrics import (
    eleven_point_precision,
    mean_average_precision,
    mean_per_class,
    top1,
)


def test_mean_per_class_equals_scikit_learn(generator):
    labels = torch.multinomial(torch.tensor([8.0, 4, 2, 1, 1]), 300, replacement=True, generator=generator)
    scores = torch.randn(300, 5, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 5)
    predictions = scores.argmax(1)
    expected = 100 * balanced_accuracy_score(labels.numpy(), predictions.numpy())
    assert mean_per_class(scores, labels) == pytest.approx(expected)
    assert top1(scores, labels) == pytest.approx(100 * (predictions == labels).double().mean().item())


def test_a_class_without_test_images_does_not_count():
    scores = torch.eye(3)[[0, 0, 1, 2]]  # an image of class 0 is taken for class 2, which has no image
    assert mean_per_class(scores, torch.tensor([0, 0, 1, 0])) == pytest.approx(100 * (2 / 3 + 1) / 2)


@pytest.mark.parametrize("distinct", [7, 10**6])  # few distinct scores: many ties
def test_eleven_points_are_scikit_learns(generator, distinct):
    positive = torch.rand(400, generator=generator) < 0.2
    scores = (torch.rand(400, generator=generator) + 0.3 * positive).mul(distinct).round()
    truth, values = positive.numpy(), scores.numpy()
    precision, recall, _ = precision_recall_curve(truth, values)
    # Its last point is (recall 0, precision 1), which no threshold gives.
    steps = [precision[:-1][recall[:-1] >= tenth - 1e-9].max() for tenth in np.arange(11) / 10]
    assert eleven_point_precision(scores, positive) == pytest.approx(np.mean(steps))


def test_eleven_points_by_hand():
    """Positives at ranks 1 and 4: precision 1 up to recall 0.5 (six points), then 2/4 (five points)."""
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    positive = torch.tensor([True, False, False, True, False])
    assert eleven_point_precision(scores, positive) == pytest.approx((6 * 1 + 5 * 0.5) / 11)


def test_mean_over_classes_leaves_out_what_does_not_count(generator):
    scores = torch.randn(60, 4, generator=generator)
    targets = (torch.rand(60, 4, generator=generator) < 0.3).long()
    targets[:, 3] = 0  # a class that no image shows
    difficult = torch.rand(60, generator=generator) < 0.2
    targets[difficult, 1] = -1
    clear = ~difficult
    expected = [
        eleven_point_precision(scores[:, 0], targets[:, 0] == 1),
        eleven_point_precision(scores[clear, 1], targets[clear, 1] == 1),
        eleven_point_precision(scores[:, 2], targets[:, 2] == 1),
    ]
    assert mean_average_precision(scores, targets) == pytest.approx(100 * np.mean(expected))
    assert math.isnan(mean_average_precision(scores, torch.zeros(60, 4)))
