import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from varcon.core import Data, Split
from varcon.data import DataSettings, load
from varcon.data.subset import few_indices, halves
from varcon.evaluations.centroid import NearestCentroid
from varcon.evaluations.discriminant import SHRINKAGES, LinearDiscriminant, discriminants, most_right
from varcon.evaluations.frozen import raw_pixels

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return load(DataSettings())


def test_every_shrinkage_equals_scikit_learns(digits):
    """Balanced classes, of which scikit-learn's average is that of all images."""
    pixels = raw_pixels(digits, CPU)
    rows = few_indices(digits.train.labels, 100, seed=0)
    train, labels = pixels.features(digits.train)[rows], digits.train.labels[rows]
    test = F.normalize(pixels.features(digits.test), dim=1).double().numpy()
    z = F.normalize(train.double(), dim=1).numpy()
    family = discriminants(train, labels, 10)
    assert [one.shrinkage for one in family] == list(SHRINKAGES)
    spread = np.mean([np.cov(z[labels == digit].T, bias=True) for digit in range(10)], axis=0)
    for one in family:
        theirs = LinearDiscriminantAnalysis(
            solver="lsqr", shrinkage=one.shrinkage, priors=np.full(10, 0.1)
        ).fit(z, labels)
        ours = one(torch.from_numpy(test).float()).numpy()
        odds = theirs.decision_function(test) * np.trace(spread) / len(spread)
        np.testing.assert_allclose(ours - ours[:, :1], odds - odds[:, :1], atol=2e-4)


def test_each_half_is_judged_by_what_the_other_chose(digits):
    pixels = raw_pixels(digits, CPU)
    train, test = pixels.features(digits.train), pixels.features(digits.test)
    findings = LinearDiscriminant()(pixels, digits)
    guesses = np.full(len(test), -1)
    for part, rest in halves(len(test), 0):
        assert sorted([*part.tolist(), *rest.tolist()]) == list(range(len(test)))
        right = []
        for one in discriminants(train, digits.train.labels, 10):
            scores = one(test)
            right.append((int((scores[rest].argmax(1) == digits.test.labels[rest]).sum()), scores))
        best = max(count for count, _ in right)
        chosen = next(scores for count, scores in right if count == best)
        guesses[part] = chosen[part].argmax(1).numpy()
    assert findings.arrays["predictions"].tolist() == guesses.tolist()
    truth = digits.test.labels.numpy()
    assert findings.scores["top1"] == pytest.approx(100 * np.mean(guesses == truth))
    per_class = [100 * np.mean(guesses[truth == digit] == digit) for digit in range(10)]
    assert findings.scores["mean_per_class"] == pytest.approx(np.mean(per_class))
    assert findings.scores["top5"] > findings.scores["top1"]
    assert findings.scores["shrinkage"] in SHRINKAGES
    assert findings.scores["top1"] > NearestCentroid()(pixels, digits).scores["top1"] + 2


def test_a_spread_that_says_nothing_of_classes_is_seen_through(generator):
    """Two classes a little apart along one axis, their images far along another: means alone confuse them."""
    labels = torch.arange(400) % 2
    features = torch.randn(400, 8, generator=generator) * 0.01
    features[:, 0] += 1
    features[:, 1] += labels * 0.1
    features[:, 2] += torch.randn(400, generator=generator)
    family = discriminants(features[:200], labels[:200], 2)
    chosen = most_right(family, features[200:], labels[200:])
    assert chosen.shrinkage < 0.5
    assert (chosen(features[200:]).argmax(1) == labels[200:]).float().mean() > 0.9
    assert (family[0](features[200:]).argmax(1) == labels[200:]).float().mean() < 0.8


def test_of_equals_the_nearest_mean_is_taken():
    features, labels = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    family = discriminants(features, labels, 3)
    assert most_right(family, features, labels).shrinkage == 1
    for one in family:  # images of a class do not differ at all
        torch.testing.assert_close(one.weight, torch.eye(3))
        torch.testing.assert_close(one.bias, torch.full((3,), -0.5))


def test_a_class_without_training_images_is_never_named(generator):
    features, labels = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    for one in discriminants(features, labels, 5):
        scores = one(torch.randn(100, 4, generator=generator))
        assert scores[:, 3:].isneginf().all()
        assert scores[:, :3].isfinite().all()


def test_a_single_test_image_chooses_nothing_for_itself(generator):
    def split(count):
        images = torch.randint(0, 256, (count, 3, 2, 2), generator=generator).to(torch.uint8)
        return Split(images, torch.arange(count) % 2)

    data = Data(split(6), split(1), ["a", "b"], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
    pixels = raw_pixels(data, CPU)
    z, image = (F.normalize(pixels.features(part), dim=1) for part in (data.train, data.test))
    distances = [(image[0] - z[label::2].mean(0)).norm().item() for label in (0, 1)]
    found = LinearDiscriminant()(pixels, data)
    assert found.arrays["predictions"].tolist() == [int(np.argmin(distances))]
