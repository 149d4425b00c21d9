from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp
from sklearn.covariance import ShrunkCovariance
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import nn

from varcon.core import InputError, Split
from varcon.evaluations import frozen
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.outliers import Outliers, Typical, separation, shuffled_patches, stand_in

CPU = torch.device("cpu")
SCORES = ("likelihood", "softmax", "neighbour", "mahalanobis")


def test_scores_equal_independent_ones(digits, monkeypatch):
    monkeypatch.setattr(frozen, "CELLS_AT_ONCE", 30_000)  # many blocks, the last one smaller
    pixels = raw_pixels(digits, CPU)
    settings = Outliers(temperature=0.2, k=3, shrinkage=0.1)
    found = Typical(settings, pixels, digits).scores(pixels.features(digits.test))
    train, test = (pixels.features(part).double().numpy() for part in (digits.train, digits.test))
    labels = digits.train.labels.numpy()

    unit, unit_test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test))
    centroids = np.stack([unit[labels == label].mean(0) for label in range(10)])
    scaled = unit_test @ (centroids / np.linalg.norm(centroids, axis=1, keepdims=True)).T / 0.2
    np.testing.assert_allclose(found["likelihood"], logsumexp(scaled, axis=1) - np.log(10), rtol=1e-5)
    posterior = np.exp(scaled - logsumexp(scaled, axis=1, keepdims=True))
    highest = posterior.max(1)
    np.testing.assert_allclose(found["softmax"], np.log(highest / (1 - highest)), rtol=1e-4, atol=1e-5)

    model = NearestNeighbors(n_neighbors=3, metric="cosine").fit(train)
    np.testing.assert_allclose(found["neighbour"], 1 - model.kneighbors(test)[0][:, -1], atol=1e-5)

    means = np.stack([train[labels == label].mean(0) for label in range(10)])
    shared = ShrunkCovariance(shrinkage=0.1, assume_centered=True).fit(train - means[labels])
    distances = np.stack([shared.mahalanobis(test - mean) for mean in means])
    np.testing.assert_allclose(found["mahalanobis"], -distances.min(0), rtol=1e-6)


def test_stand_ins_give_every_score_and_the_mean_over_them(digits):
    seen = []
    encoder = raw_pixels(digits, CPU)
    encoder.progress = lambda done, total, what: seen.append((done, total, what))
    findings = Outliers(images=300)(encoder, digits)
    for score in SCORES:
        inside = findings.arrays[f"{score}@test"]
        assert len(inside) == 500
        values = []
        for kind in ("noise", "patches", "constant"):
            outside = findings.arrays[f"{score}@{kind}"]
            assert len(outside) == 300
            both, truth = np.concatenate([inside, outside]), np.repeat([1, 0], [500, 300])
            auroc, aupr = roc_auc_score(truth, both), average_precision_score(truth, both)
            # The stored arrays are float32, so that a tie or two may be new.
            assert findings.scores[f"{score}_auroc@{kind}"] == pytest.approx(100 * auroc, abs=1e-3)
            assert findings.scores[f"{score}_aupr@{kind}"] == pytest.approx(100 * aupr, abs=1e-3)
            values.append(findings.scores[f"{score}_fpr95@{kind}"])
        assert findings.scores[f"{score}_fpr95"] == pytest.approx(np.mean(values))
    assert findings.scores["likelihood_auroc"] > 95
    assert {what for _, _, what in seen} >= {
        "encoding outliers (noise)",
        "comparing with the training images",
    }
    assert all(done <= total for done, total, _ in seen)


def test_separation_by_counting():
    chance = np.random.default_rng(0)
    inside, outside = chance.normal(1, 1, 200).round(1), chance.normal(0, 1, 150).round(1)  # with ties
    found = separation(inside, outside)
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert found["auroc"] == pytest.approx(100 * np.mean(pairs))
    threshold = max(t for t in inside if (inside >= t).mean() >= 0.95)
    assert found["fpr95"] == pytest.approx(100 * (outside >= threshold).mean())
    levels = sorted(set(inside) | set(outside), reverse=True)
    recall = [0.0, *((inside >= t).mean() for t in levels)]
    precision = [(inside >= t).sum() / ((inside >= t).sum() + (outside >= t).sum()) for t in levels]
    assert found["aupr"] == pytest.approx(100 * sum(np.diff(recall) * precision))
    assert separation(np.array([2.0, 3]), np.array([0.0, 1])) == {"auroc": 100, "aupr": 100, "fpr95": 0}
    assert separation(np.ones(4), np.ones(4)) == {"auroc": 50, "aupr": 50, "fpr95": 100}


def test_another_data_set_is_brought_to_size(digits, tmp_path):
    """Its test images, of 12 pixels, are bright where digits are dark."""
    images = np.full((40, 12, 12), 250, np.uint8)
    images[20:] = digits.train.images[:20, 0].repeat_interleave(2, 1).repeat_interleave(2, 2)[:, 2:14, 2:14]
    labels = np.arange(20) % 2
    arrays = {"train_images": images[20:], "test_images": images[:20]}
    np.savez(tmp_path / "other.npz", train_labels=labels, test_labels=labels, **arrays)
    pixels = raw_pixels(digits, CPU)
    findings = Outliers(name="npz", path=str(tmp_path / "other.npz"), images=15)(pixels, digits)
    assert len(findings.arrays["likelihood@npz"]) == 15
    for score in ("likelihood", "neighbour", "mahalanobis"):
        assert findings.scores[f"{score}_auroc"] == findings.scores[f"{score}_auroc@npz"] > 99
    with pytest.raises(InputError, match=r"^outliers: .*gone\.npz cannot be opened"):
        Outliers(name="npz", path=str(tmp_path / "gone.npz"))(pixels, digits)


def test_images_as_they_are_get_the_scores_of_the_test_images(digits, tmp_path):
    """The data against themselves: encoded on another path, and told apart by nothing."""
    findings = Outliers(name="digits")(raw_pixels(digits, CPU), digits)
    for score in SCORES:
        assert (findings.arrays[f"{score}@digits"] == findings.arrays[f"{score}@test"]).all()
        assert findings.scores[f"{score}_auroc"] == 50


def test_shuffled_patches_are_the_same_patches(generator):
    images = torch.randint(0, 256, (6, 3, 9, 9), dtype=torch.uint8, generator=generator)
    shuffled = shuffled_patches(images, 4, generator)
    assert (shuffled != images).any(dim=(1, 2, 3)).all()
    assert (shuffled[..., 8:] == images[..., 8:]).all()  # 4 patches of 2 pixels, and one pixel over
    assert (shuffled[..., 8:, :] == images[..., 8:, :]).all()

    def pieces(image):
        corners = [(y, x) for y in range(0, 8, 2) for x in range(0, 8, 2)]
        return sorted(image[:, y : y + 2, x : x + 2].flatten().tolist() for y, x in corners)

    for before, after in zip(images, shuffled, strict=True):
        assert pieces(before) == pieces(after)
    assert (shuffled_patches(images[..., :1, :1], 4, generator) == images[..., :1, :1]).all()


def test_noise_and_constant_images(generator):
    images = torch.zeros(50, 3, 8, 8, dtype=torch.uint8)
    noise = stand_in("noise", images, 4, generator)
    assert noise.shape == images.shape
    assert noise.min() == 0
    assert noise.max() == 255
    constant = stand_in("constant", images, 4, generator)
    assert (constant == constant[..., :1, :1]).all()
    assert len(constant[:, :, 0, 0].unique(dim=0)) == 50


def test_same_seed_same_findings(digits):
    first, second, other = (
        Outliers(images=50, seed=seed)(raw_pixels(digits, CPU), digits).arrays["likelihood@noise"]
        for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


class Single(nn.Module):
    def forward(self, images):
        return F.one_hot(torch.zeros(len(images), dtype=torch.long), 4).float()


def test_what_cannot_be(digits):
    for settings, words in (
        ({"name": "cifar"}, r"outliers\.name is 'cifar'; choose one of digits,"),
        ({"path": "here"}, r"outliers\.path is here and outliers\.name is empty; .* cifar10, cifar100"),
        ({"name": "folder"}, r"outliers\.name is folder; say where it lies with outliers\.path"),
        ({"temperature": 0.0}, r"outliers\.temperature is 0"),
        ({"k": 0}, r"outliers\.k is 0"),
        ({"images": 0}, r"outliers\.images is 0"),
        ({"patches": 1}, r"outliers\.patches is 1"),
        ({"shrinkage": 1.5}, r"outliers\.shrinkage is 1\.5"),
        ({"seed": -1}, r"outliers\.seed is -1"),
    ):
        with pytest.raises(InputError, match=words):
            Outliers(**settings)
    pixels = raw_pixels(digits, CPU)
    with pytest.raises(InputError, match=r"outliers\.k is 2000 but there are only 1297 training images"):
        Outliers(k=2000)(pixels, digits)
    with pytest.raises(InputError, match=r"raise outliers\.shrinkage"):
        Outliers(shrinkage=0)(pixels, digits)  # the corner of a digit is always black
    with pytest.raises(InputError, match="collapsed encoder"):
        Outliers()(FrozenEncoder(Single(), digits, CPU), digits)
    with pytest.raises(InputError, match="one class only"):
        labels = torch.zeros_like(digits.train.labels)
        Outliers()(pixels, replace(digits, train=Split(digits.train.images, labels), classes=["digit"]))


def test_one_image_a_class(digits):
    one_each = torch.stack([(digits.train.labels == label).nonzero()[0, 0] for label in range(10)])
    alone = Split(digits.train.images[one_each], digits.train.labels[one_each])
    few = replace(digits, train=alone)
    with pytest.raises(InputError, match="each class has one alone; leave this evaluation out"):
        Outliers(images=50)(raw_pixels(few, CPU), few)
