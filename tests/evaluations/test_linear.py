import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.linear import LinearProbe, TrainedLinear

CPU = torch.device("cpu")


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


@pytest.mark.parametrize(("rounds", "expected"), [(1, [5.0]), (2, [5.0, 0.04]), (4, [5.0, 5.0, 1.0, 0.04])])
def test_few_rounds_begin_at_the_full_rate(digits, rounds, expected):
    features, labels = raw_pixels(digits, CPU).features(digits.train), digits.train.labels
    classifier = TrainedLinear(features, 10, 5.0, rounds, 1, torch.Generator().manual_seed(0))
    rates = []
    for part in torch.arange(rounds).split(1):
        rates.append(classifier.optimizer.param_groups[0]["lr"])
        classifier.train([part], features.__getitem__, labels)
    assert rates == pytest.approx(expected)


def test_augmented_images_are_encoded_anew(digits):
    """From crops of different sizes raw pixels learn something else than from still images."""
    pixels = raw_pixels(digits, CPU)
    still = LinearProbe(epochs=5)(pixels, digits).scores["last"]
    moved = LinearProbe(epochs=5, augment="resized-crop", flip=0.0)(pixels, digits).scores["last"]
    assert moved < still - 5
    assert moved > 20


class Watching(nn.Module):
    """Keeps the images that come to be trained on, and has features of no use."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images):
        self.seen.append(images)
        return images.mean(dim=(2, 3))


@pytest.mark.parametrize(("side", "flip"), [(16, 0.0), (64, 0.5), (64, 1.0)])
def test_augmented_images_are_resized_crops_of_a_fifth_to_all_of_the_area(side, flip):
    """Of images whose red grows with the column and green with the row, so that a view tells its crop."""
    ramp = torch.linspace(0, 255, side).round().to(torch.uint8)
    across, down, blue = ramp.expand(side, side), ramp[:, None].expand(side, side), torch.full_like(ramp, 200)
    image = torch.stack([across, down, blue.expand(side, side)])
    split = Split(image.repeat(300, 1, 1, 1), torch.arange(300) % 2)
    data = Data(split, split, ["a", "b"], (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    watching = Watching()
    LinearProbe(epochs=2, augment="resized-crop", flip=flip)(FrozenEncoder(watching, data, CPU), data)
    still, first, second = watching.seen  # those as they are are encoded once
    assert len(still) == len(first) == len(second) == 300
    assert not torch.equal(first, second)
    views = torch.cat([first, second])
    across, down = views[:, 0, side // 2], views[:, 1, :, side // 2]
    mirrored = (across[:, 0] > across[:, -1]).double().mean().item()
    assert mirrored == pytest.approx(flip, abs=0.1 if flip == 0.5 else 0)
    width, height = (((line[:, 0] - line[:, -1]).abs() * (side - 1) + 1) / side for line in (across, down))
    area = width * height
    assert 0.17 < area.min() < 0.25
    assert 0.9 < area.max() <= 1
    assert area.mean() == pytest.approx(0.6, abs=0.07)  # shares between 0.2 and 1 are alike likely
    assert (views[:, 2] - 200 / 255).abs().max() < 1e-4  # colours stay


def test_vectors_have_nothing_to_crop():
    split = Split(torch.zeros(4, 5), torch.arange(4) % 2)
    data = Data(split, split, ["a", "b"], (0.0,) * 5, (1.0,) * 5)
    with pytest.raises(InputError, match=r"linear\.augment crops images and the data are vectors"):
        LinearProbe(augment="resized-crop")(raw_pixels(data, CPU), data)


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match=r"linear\.epochs is 0"):
        LinearProbe(epochs=0)
    with pytest.raises(InputError, match=r"linear\.learning_rate is -1"):
        LinearProbe(learning_rate=-1)
    with pytest.raises(InputError, match=r"linear\.augment is 'crop-flip'; choose one of none, resized-crop"):
        LinearProbe(augment="crop-flip")
