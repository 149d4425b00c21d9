import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from varcon.core import Data, Split
from varcon.evaluations import discriminant, frozen
from varcon.evaluations.centroid import NearestCentroid
from varcon.evaluations.discriminant import (
    SHRINKAGES,
    TEMPERATURES,
    LinearDiscriminant,
    discriminants,
    fit,
    fit_discriminant,
)
from varcon.evaluations.frozen import raw_pixels

CPU = torch.device("cpu")


@pytest.fixture
def small_blocks(monkeypatch):
    """As where images are many and features wide."""
    monkeypatch.setattr(frozen, "CELLS_AT_ONCE", 192 * 100)


def uneven(digits):
    """All ones, half of the twos and so on: the classes differ in number."""
    rows = torch.cat(
        [(digits.train.labels == digit).nonzero()[:, 0][: 130 - 12 * digit] for digit in range(10)]
    )
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def test_every_shrinkage_equals_scikit_learns(digits, small_blocks):
    pixels = raw_pixels(digits, CPU)
    rows = uneven(digits)
    train, labels = pixels.features(digits.train)[rows], digits.train.labels[rows]
    assert len({*labels.bincount().tolist()}) > 5
    test = F.normalize(pixels.features(digits.test), dim=1).double().numpy()
    z = F.normalize(train.double(), dim=1).numpy()
    family = discriminants(train, labels, 10)
    assert [one.shrinkage for one in family] == list(SHRINKAGES)
    for one in family:
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=one.shrinkage).fit(z, labels)
        ours, odds = one(torch.from_numpy(test).float()).numpy(), theirs.decision_function(test)
        odds, ours = odds - odds.mean(1, keepdims=True), ours - ours.mean(1, keepdims=True)
        np.testing.assert_allclose(ours, odds, atol=2e-4 * np.abs(odds).max())


def test_directions_that_are_nearly_one(digits):
    """As an encoder gives them that has hardly begun: float32 must not round their differences away."""
    pixels = raw_pixels(digits, CPU)
    far = torch.full((1, 192), 30.0)
    train, test = pixels.features(digits.train) + far, pixels.features(digits.test) + far
    z, queries = (F.normalize(part.double(), dim=1).numpy() for part in (train, test))
    assert 1 - np.linalg.norm(z.mean(0)) < 1e-3
    for one in discriminants(train, digits.train.labels, 10):
        theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=one.shrinkage).fit(
            z, digits.train.labels
        )
        same = one(test).argmax(1).numpy() == theirs.predict(queries)
        assert same.mean() > 0.99, one.shrinkage


def test_the_fit_is_the_likeliest_of_all(digits):
    """By brute force over shrinkages and temperatures; neither ends at a bound."""
    pixels = raw_pixels(digits, CPU)
    family = discriminants(pixels.features(digits.train), digits.train.labels, 10)
    features, labels = pixels.features(digits.test), digits.test.labels
    found = fit(family, features, labels)
    costs = {}
    for one in family:
        plain = one.plain(features).double().numpy()
        for warmth in np.geomspace(0.05, 20, 100):
            scores = plain / warmth + one.prior.double().numpy()
            log_p = scores - logsumexp(scores, axis=1, keepdims=True)
            total = log_p[np.arange(len(labels)), labels].sum() + log_p.mean()
            costs[one.shrinkage, warmth] = -total / (len(labels) + 1)
    shrinkage, temperature = min(costs, key=costs.get)
    assert found.shrinkage == shrinkage < 1
    assert found.temperature == pytest.approx(temperature, rel=0.07)


@pytest.mark.parametrize("width", [8, 2048])
def test_confidence_is_as_often_right_however_many_the_features(width, generator):
    """Also where class means are of few images for so many features."""
    labels = torch.arange(8000) % 5
    centres = 2.5 * F.normalize(torch.randn(5, width, generator=generator), dim=1)
    features = centres[labels] + torch.randn(8000, width, generator=generator)
    features[:, 0] += 100  # directions then are nearly flat
    family = discriminants(features[:4000], labels[:4000], 5)
    found = fit(family, features[4000:6000], labels[4000:6000])
    p = found(features[6000:]).softmax(1)
    right = (p.argmax(1) == labels[6000:]).double().mean().item()
    assert 0.5 < right < 0.95
    assert p.amax(1).mean().item() == pytest.approx(right, abs=0.04)
    assert 2 * TEMPERATURES[0] < found.temperature < TEMPERATURES[1] / 2


def test_a_few_images_that_are_right_prove_no_certainty(digits):
    pixels = raw_pixels(digits, CPU)
    family = discriminants(pixels.features(digits.train), digits.train.labels, 10)
    features, labels = pixels.features(digits.test), digits.test.labels
    right = (fit(family, features, labels)(features).argmax(1) == labels).nonzero()[:6, 0]
    found = fit(family, features[right], labels[right])
    assert (found(features[right]).argmax(1) == labels[right]).all()
    assert found.temperature > 2 * TEMPERATURES[0]
    assert F.cross_entropy(found(features), labels) < 0.6  # where certainty would cost several


@pytest.mark.parametrize("apart", [0, 1e-6, 1e-3])
def test_copies_of_a_training_image_make_no_one_surer(apart, generator):
    """Against one image of each class, which says the same: what classes vary by is then the copies' rounding
    or noise, and no measure of how other images differ."""
    centres = torch.randn(5, 16, generator=generator)
    labels = torch.arange(400) % 5
    features = centres[labels] + torch.randn(400, 16, generator=generator)
    once = fit(discriminants(centres, torch.arange(5), 5), features[:200], labels[:200])
    copies = centres.repeat(3, 1) + apart * torch.randn(15, 16, generator=generator)
    found = fit(discriminants(copies, torch.arange(15) % 5, 5), features[:200], labels[:200])
    expected = F.cross_entropy(once(features[200:]), labels[200:]).item()
    assert F.cross_entropy(found(features[200:]), labels[200:]).item() == pytest.approx(expected, abs=0.02)
    p = found(features[200:]).softmax(1)
    right = (p.argmax(1) == labels[200:]).double().mean().item()
    assert p.amax(1).mean().item() == pytest.approx(right, abs=0.04)


def test_each_half_is_judged_by_what_the_other_chose(digits, monkeypatch):
    pixels = raw_pixels(digits, CPU)
    test, labels = pixels.features(digits.test), digits.test.labels
    given = []

    def fitted(family, features, labels):
        given.append(features)
        return replace(family[0], temperature=float(len(given)))

    monkeypatch.setattr(discriminant, "fit", fitted)
    chosen, scores = fit_discriminant(pixels, digits)
    assert [len(features) for features in given] == [250, 250, 500]
    assert chosen.temperature == 3
    rows = [{tuple(row) for row in features.tolist()} for features in given[:2]]
    assert len(rows[0] | rows[1]) == len({tuple(row) for row in test.tolist()})  # all of them, in two parts
    mixed = [labels[[tuple(row) in part for row in test.tolist()]].unique() for part in rows]
    assert all(len(found) == 10 for found in mixed)  # not the first half of the file and the second
    for temperature, part in ((1.0, rows[0]), (2.0, rows[1])):
        others = torch.tensor([tuple(row) not in part for row in test.tolist()])
        one = discriminants(pixels.features(digits.train), digits.train.labels, 10)[0]
        torch.testing.assert_close(scores[others], replace(one, temperature=temperature)(test[others]))


def test_the_evaluation_counts_what_is_right(digits):
    pixels = raw_pixels(digits, CPU)
    findings = LinearDiscriminant()(pixels, digits)
    chosen, scores = fit_discriminant(pixels, digits)
    guesses, truth = findings.arrays["predictions"], digits.test.labels.numpy()
    assert guesses.tolist() == scores.argmax(1).tolist()
    assert findings.scores["top1"] == pytest.approx(100 * np.mean(guesses == truth))
    per_class = [100 * np.mean(guesses[truth == digit] == digit) for digit in range(10)]
    assert findings.scores["mean_per_class"] == pytest.approx(np.mean(per_class))
    assert findings.scores["top5"] > findings.scores["top1"]
    assert findings.scores["shrinkage"] == chosen.shrinkage
    assert findings.scores["top1"] > NearestCentroid()(pixels, digits).scores["top1"] + 2


def test_a_spread_that_says_nothing_of_classes_is_seen_through(generator):
    """Two classes a little apart along one axis, their images far along another: means alone confuse them."""
    labels = torch.arange(400) % 2
    features = torch.randn(400, 8, generator=generator) * 0.01
    features[:, 0] += 1
    features[:, 1] += labels * 0.1
    features[:, 2] += torch.randn(400, generator=generator)
    family = discriminants(features[:200], labels[:200], 2)
    chosen = fit(family, features[200:], labels[200:])
    assert chosen.shrinkage < 0.5
    assert (chosen(features[200:]).argmax(1) == labels[200:]).float().mean() > 0.9
    assert (family[0](features[200:]).argmax(1) == labels[200:]).float().mean() < 0.8


def test_images_of_a_class_that_do_not_differ():
    features, labels = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    family = discriminants(features, labels, 3)
    for one in family:  # the squared distance to each mean, halved
        odds = one(features[:3])
        torch.testing.assert_close(odds - odds.diagonal()[:, None], torch.eye(3) - 1)
    assert fit(family, features, labels).shrinkage == 1


def test_a_class_without_training_images_is_never_named(generator):
    features, labels = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
    family = discriminants(features, labels, 5)
    for one in family:
        scores = one(torch.randn(100, 4, generator=generator))
        assert scores[:, 3:].isneginf().all()
        assert scores[:, :3].isfinite().all()
    with_others = fit(family, torch.cat([features, features[:5]]), torch.cat([labels, torch.full((5,), 4)]))
    assert with_others.temperature == pytest.approx(fit(family, features, labels).temperature)
    assert fit(family, features, torch.full((30,), 4)) is family[0]


def test_one_test_image_leaves_the_choice_to_training_images(digits):
    one = replace(digits, test=Split(digits.test.images[:1], digits.test.labels[:1]))
    pixels = raw_pixels(one, CPU)
    chosen, scores = fit_discriminant(pixels, one)
    of_all = discriminants(pixels.features(digits.train), digits.train.labels, 10)
    assert chosen.shrinkage < 1
    assert torch.equal(chosen.weight, of_all[SHRINKAGES.index(chosen.shrinkage)].weight)
    # Left out of the means, they differ from them as new images do.
    usual, _ = fit_discriminant(pixels, digits)
    assert chosen.temperature == pytest.approx(usual.temperature, rel=0.5)
    torch.testing.assert_close(scores, chosen(pixels.features(one.test)))


def test_training_images_are_spared_from_what_is_fitted_to_them(digits, monkeypatch):
    one = replace(digits, test=Split(digits.test.images[:1], digits.test.labels[:1]))
    pixels = raw_pixels(one, CPU)
    train, labels = pixels.features(digits.train), digits.train.labels
    given = []
    monkeypatch.setattr(discriminant, "fit", lambda *arguments: given.append(arguments) or arguments[0][3])
    chosen, _ = fit_discriminant(pixels, one)
    ((family, features, of_them),) = given
    held = {tuple(row) for row in features.tolist()}
    others = torch.tensor([tuple(row) not in held for row in train.tolist()])
    assert 0.15 < len(of_them) / len(labels) < 0.25
    spared = discriminants(train[others], labels[others], 10)
    torch.testing.assert_close(family[3].weight, spared[3].weight)
    assert chosen.shrinkage == SHRINKAGES[3]
    assert torch.equal(chosen.weight, discriminants(train, labels, 10)[3].weight)


def test_one_image_of_everything(generator):
    images = torch.randint(0, 256, (3, 3, 2, 2), generator=generator).to(torch.uint8)
    data = Data(
        Split(images[:2], torch.arange(2)), Split(images[2:], torch.zeros(1, dtype=torch.int64)),
        ["a", "b"], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0),
    )  # fmt: skip
    pixels = raw_pixels(data, CPU)
    z, image = (F.normalize(pixels.features(part), dim=1) for part in (data.train, data.test))
    chosen, scores = fit_discriminant(pixels, data)
    distances = [(image[0] - mean).square().sum().item() / 2 for mean in z]
    assert (chosen.shrinkage, chosen.temperature) == (1, 1)
    assert (scores[0, 0] - scores[0, 1]).item() == pytest.approx(distances[1] - distances[0], abs=1e-5)
    assert math.isfinite(scores.sum())
