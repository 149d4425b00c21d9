import pytest
import torch
from sklearn.linear_model import LogisticRegression

from varcon.core import InputError
from varcon.data import DataSettings, load
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.linear import LinearProbe, TrainedLinear

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    return load(DataSettings())


def test_comes_near_logistic_regression_on_the_same_features(digits):
    pixels = raw_pixels(digits, CPU)
    findings = LinearProbe()(pixels, digits)
    model = LogisticRegression(max_iter=2000, C=10.0)
    model.fit(pixels.features(digits.train).numpy(), digits.train.labels.numpy())
    expected = 100 * model.score(pixels.features(digits.test).numpy(), digits.test.labels.numpy())
    assert findings.scores["last"] == pytest.approx(expected, abs=1.5)


def test_last_and_best_come_from_the_curve(digits):
    findings = LinearProbe(epochs=10)(raw_pixels(digits, CPU), digits)
    curve = findings.arrays["accuracy"]
    assert len(curve) == 10
    assert findings.scores["last"] == curve[-1]
    assert findings.scores["best"] == curve.max()
    assert curve[int(findings.scores["best_epoch"]) - 1] == curve.max()
    assert findings.scores["top5"] >= findings.scores["last"]
    hits = findings.arrays["predictions"] == digits.test.labels.numpy()
    assert findings.scores["last"] == pytest.approx(100 * hits.mean())


def test_same_seed_same_curve(digits):
    pixels = raw_pixels(digits, CPU)
    first, second, other = (
        LinearProbe(epochs=3, seed=s)(pixels, digits).arrays["accuracy"] for s in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_the_rate_is_cut_after_shares_of_the_rounds(digits):
    features, labels = raw_pixels(digits, CPU).features(digits.train), digits.train.labels
    classifier = TrainedLinear(features, 10, 5.0, 20, 3, torch.Generator().manual_seed(0))
    rates = []
    for part in torch.arange(60).split(1):
        rates.append(classifier.optimizer.param_groups[0]["lr"])
        classifier.train([part], features.__getitem__, labels)
    expected = [5.0] * 36 + [1.0] * 9 + [0.2] * 9 + [0.04] * 6  # after 12, 15 and 18 rounds of 3 steps
    assert rates == pytest.approx(expected)


def test_augmented_images_are_encoded_anew(digits):
    """With images shifted by up to 4 of 8 pixels raw pixels learn something else than from still ones."""
    pixels = raw_pixels(digits, CPU)
    still = LinearProbe(epochs=5)(pixels, digits).scores["last"]
    moved = LinearProbe(epochs=5, augment="crop-flip", flip=0.0)(pixels, digits).scores["last"]
    assert moved < still - 5
    assert moved > 20


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match=r"linear\.epochs is 0"):
        LinearProbe(epochs=0)
    with pytest.raises(InputError, match=r"linear\.learning_rate is -1"):
        LinearProbe(learning_rate=-1)
