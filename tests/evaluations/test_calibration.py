from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.evaluations import frozen
from varcon.evaluations.calibration import (
    Calibration,
    ClassifierCalibration,
    Judged,
    fit_temperature,
    judge,
    reliability,
    summary,
)
from varcon.evaluations.discriminant import LinearDiscriminant, fit_discriminant
from varcon.evaluations.frozen import raw_pixels

CPU = torch.device("cpu")


def slow_posterior(pixels, data, temperature):
    """Class by class in float64."""
    train, test = (F.normalize(pixels.features(part).double(), dim=1) for part in (data.train, data.test))
    means = [train[data.train.labels == label].mean(0) for label in range(len(data.classes))]
    cosine = test @ F.normalize(torch.stack(means), dim=1).T
    return (cosine / temperature).softmax(1).numpy()


def slow_ece(confidence, correct, edges):
    error = worst = 0.0
    for low, high in pairwise(edges):
        chosen = [i for i, c in enumerate(confidence) if (low < c or low == edges[0]) and c <= high]
        if chosen:
            gap = abs(np.mean([correct[i] for i in chosen]) - np.mean([confidence[i] for i in chosen]))
            error += len(chosen) / len(confidence) * gap
            worst = max(worst, gap)
    return error, worst


def test_equals_scikit_learn_and_a_slow_loop_on_digits(digits, monkeypatch):
    monkeypatch.setattr(frozen, "CELLS_AT_ONCE", 1000)  # many blocks, the last one smaller
    pixels = raw_pixels(digits, CPU)
    findings = Calibration(temperature=0.05)(pixels, digits)
    scores, truth = findings.scores, digits.test.labels.numpy()
    for prefix in ("", "fitted_"):
        p = slow_posterior(pixels, digits, scores[f"{prefix}temperature"])
        confidence, correct = p.max(1), p.argmax(1) == truth
        assert scores[f"{prefix}top1"] == pytest.approx(100 * correct.mean())
        assert scores[f"{prefix}confidence"] == pytest.approx(100 * confidence.mean(), rel=1e-5)
        assert scores[f"{prefix}nll"] == pytest.approx(log_loss(truth, p), rel=1e-5)
        brier = sum(brier_score_loss(truth == label, p[:, label]) for label in range(10))
        assert scores[f"{prefix}brier"] == pytest.approx(brier, rel=1e-5)
        even = slow_ece(confidence, correct, np.linspace(0, 1, 16))
        assert scores[f"{prefix}ece"] == pytest.approx(100 * even[0], rel=1e-4)
        assert scores[f"{prefix}mce"] == pytest.approx(100 * even[1], rel=1e-4)
        full = slow_ece(confidence, correct, np.quantile(confidence, np.linspace(0, 1, 16)))
        assert scores[f"{prefix}ece_adaptive"] == pytest.approx(100 * full[0], rel=1e-3)
    assert scores["temperature"] == 0.05


@pytest.mark.parametrize(("strategy", "prefix"), [("uniform", "bin"), ("quantile", "adaptive_bin")])
def test_reliability_curves_are_those_of_scikit_learn(strategy, prefix):
    chance = np.random.default_rng(0)
    confidence = chance.beta(5, 1, 800)
    correct = chance.random(800) < confidence**2
    nothing = np.zeros(800)
    arrays = summary(Judged(confidence, correct, nothing, nothing), 15).arrays
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15, strategy=strategy)
    full = arrays[f"{prefix}_images"] > 0
    np.testing.assert_allclose(arrays[f"{prefix}_accuracy"][full], accuracy)
    np.testing.assert_allclose(arrays[f"{prefix}_confidence"][full], mean)
    assert np.isnan(arrays[f"{prefix}_accuracy"][~full]).all()
    assert arrays[f"{prefix}_images"].sum() == 800
    if strategy == "quantile":
        assert np.ptp(arrays["adaptive_bin_images"]) <= 1


def test_errors_by_hand():
    """Bins (0, .5] and (.5, 1]: accuracies 0 and 3/4, confidences .4 and .9."""
    confidence, correct = np.array([0.4, 0.8, 1.0, 0.8, 1.0]), np.array([0, 1, 1, 0, 1], bool)
    judged = Judged(confidence, correct, np.zeros(5), np.zeros(5))
    scores = summary(judged, 2).scores
    assert scores["ece"] == pytest.approx(100 * (0.4 / 5 + 4 / 5 * 0.15))
    assert scores["mce"] == pytest.approx(40)
    backwards = Judged(*(column[::-1] for column in judged))
    for bins in (1, 2, 15):  # equal confidences, in another order
        assert summary(backwards, bins).scores == pytest.approx(summary(judged, bins).scores)
    assert reliability(judged, np.linspace(0, 1, 3)).images.tolist() == [1, 4]


def test_the_fitted_temperature_is_that_of_the_model(generator):
    """Labels drawn from the softmax at a temperature: it is found again."""
    centroids = F.normalize(torch.randn(8, 16, generator=generator), dim=1)
    features = torch.randn(40_000, 16, generator=generator)
    p = (F.normalize(features, dim=1) @ centroids.T / 0.07).softmax(1)
    labels = torch.multinomial(p, 1, generator=generator)[:, 0]
    assert fit_temperature(centroids, features, labels) == pytest.approx(0.07, rel=0.02)


def test_fitting_lowers_the_cost_where_the_encoder_has_not_learned_the_images(digits):
    """Pixels have learned nothing: temperatures of both kinds agree, and both serve the test images."""
    scores = Calibration()(raw_pixels(digits, CPU), digits).scores
    assert scores["fitted_nll"] < scores["nll"]
    assert scores["fitted_ece"] < scores["ece"]
    assert scores["crossed_temperature"] == pytest.approx(scores["fitted_temperature"], rel=0.1)
    assert scores["crossed_nll"] == pytest.approx(scores["fitted_nll"], rel=0.05)
    assert scores["crossed_top1"] == scores["top1"] == scores["fitted_top1"]


def test_what_predict_says_is_judged_too(digits):
    pixels = raw_pixels(digits, CPU)
    findings = Calibration(bins=7)(pixels, digits)
    _, odds = fit_discriminant(pixels, digits)
    p, truth = odds.double().softmax(1).numpy(), digits.test.labels.numpy()
    assert findings.scores["predict_nll"] == pytest.approx(log_loss(truth, p))
    error, _ = slow_ece(p.max(1), p.argmax(1) == truth, np.linspace(0, 1, 8))
    assert findings.scores["predict_ece"] == pytest.approx(100 * error)
    assert findings.scores["predict_top1"] == LinearDiscriminant()(pixels, digits).scores["top1"]
    assert findings.arrays["predict_bin_images"].sum() == len(truth)


def test_own_classifier(digits, generator):
    pixels = raw_pixels(digits, CPU)
    layer = nn.Linear(192, 10)
    with torch.no_grad():
        layer.weight.normal_(0, 0.1, generator=generator)
        layer.bias.normal_(0, 0.1, generator=generator)
    scores = ClassifierCalibration(layer, Calibration(bins=7))(pixels, digits).scores
    p = layer(pixels.features(digits.test)).double().softmax(1).detach().numpy()
    truth = digits.test.labels.numpy()
    assert scores["nll"] == pytest.approx(log_loss(truth, p))
    error, _ = slow_ece(p.max(1), p.argmax(1) == truth, np.linspace(0, 1, 8))
    assert scores["ece"] == pytest.approx(100 * error)
    for wrong in (nn.Linear(192, 100), nn.Linear(64, 10)):
        with pytest.raises(InputError, match="judge it on the encoder and data that it was trained with"):
            ClassifierCalibration(wrong, Calibration())(pixels, digits)


def test_extreme_scores_stay_finite():
    far = 1e4 * torch.eye(3)
    judged = judge(lambda features: features, torch.cat([far, -far]), torch.tensor([0, 1, 2, 0, 1, 2]))
    assert np.isfinite(np.stack([column.astype(float) for column in judged])).all()
    assert judged.nll.max() == pytest.approx(1e4 + np.log(2))
    assert 0 <= judged.brier.min() < judged.brier.max() <= 2


def test_what_cannot_be(digits):
    for settings, words in (
        ({"temperature": -1.0}, r"calibration\.temperature is -1"),
        ({"temperature": float("nan")}, r"calibration\.temperature is nan"),
        ({"bins": 0}, r"calibration\.bins is 0"),
        ({"held_out": 1.0}, r"calibration\.held_out is 1"),
        ({"seed": -1}, r"calibration\.seed is -1"),
    ):
        with pytest.raises(InputError, match=words):
            Calibration(**settings)
    with pytest.raises(InputError, match="one class only"):
        Calibration()(raw_pixels(digits, CPU), replace(digits, classes=["all"]))


def test_of_one_image_a_class_nothing_is_fitted_to_training():
    images = torch.tensor([[9, 0, 0], [0, 9, 0]], dtype=torch.uint8)[:, :, None, None]
    split = Split(images, torch.tensor([0, 1]))
    single = Data(split, split, ["a", "b"], (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    scores = Calibration()(raw_pixels(single, CPU), single).scores
    assert scores["top1"] == scores["crossed_top1"] == 100.0
    assert not any(name.startswith("fitted_") for name in scores)
