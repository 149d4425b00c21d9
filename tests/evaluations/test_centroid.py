import pytest
import torch
import torch.nn.functional as F

from varcon.core import Data, Split
from varcon.data import DataSettings, load
from varcon.evaluations.centroid import NearestCentroid, class_centroids, complete_centroids
from varcon.evaluations.frozen import raw_pixels

CPU = torch.device("cpu")


def test_equals_a_loop_on_digits():
    data = load(DataSettings())
    pixels = raw_pixels(data, CPU)
    findings = NearestCentroid()(pixels, data)
    train, test = pixels.features(data.train).double(), pixels.features(data.test).double()
    means = []
    for digit in range(10):
        rows = [
            row / row.norm() for row, label in zip(train, data.train.labels, strict=True) if label == digit
        ]
        means.append(sum(rows) / len(rows))
    hits = hits5 = 0
    for row, label in zip(test, data.test.labels.tolist(), strict=True):
        cosines = [float(torch.cosine_similarity(row, mean, dim=0)) for mean in means]
        ranked = sorted(range(10), key=lambda digit: -cosines[digit])
        hits += ranked[0] == label
        hits5 += label in ranked[:5]
    assert findings.scores["top1"] == pytest.approx(100 * hits / len(test))
    assert findings.scores["top5"] == pytest.approx(100 * hits5 / len(test))
    accuracy = (torch.tensor(findings.arrays["predictions"]) == data.test.labels).double().mean()
    assert findings.scores["top1"] == pytest.approx(100 * accuracy.item())


def test_the_length_of_a_feature_does_not_count():
    features = torch.tensor([[100.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    centroids = class_centroids(features, torch.tensor([0, 0, 1]), 3)
    expected = torch.tensor([[0.5**0.5, 0.5**0.5], [0.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(centroids, expected)


def test_one_class_is_always_right():
    split = Split(torch.randint(0, 256, (5, 3, 2, 2)).to(torch.uint8), torch.zeros(5, dtype=torch.int64))
    data = Data(split, split, ["a"], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
    assert NearestCentroid()(raw_pixels(data, CPU), data).scores["top1"] == 100


def test_centroids_are_normalised_means_of_normalised_features(generator):
    features = torch.randn(20, 5, generator=generator) * torch.arange(1, 21)[:, None]
    labels = torch.arange(20) % 3
    found = complete_centroids(features, labels, ["a", "b", "c"])
    for label in range(3):
        mean = torch.stack([row / row.norm() for row in features[labels == label]]).mean(0)
        torch.testing.assert_close(found.directions[label], F.normalize(mean, dim=0))
