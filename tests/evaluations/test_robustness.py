from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

from varcon.core import Data, InputError, Split
from varcon.data.corruptions import NAMES, corrupt
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.robustness import ALEXNET, BaselineErrors, Robustness

CPU = torch.device("cpu")
QUICK = Robustness(("gaussian_noise", "contrast", "glass_blur"), classifier="centroid")


@pytest.fixture(scope="module")
def quick_findings(digits):
    return QUICK(raw_pixels(digits, CPU), digits)


def flat(images, data):
    mean, std = (np.array(values)[:, None, None] for values in (data.mean, data.std))
    return ((images.double().numpy() / 255 - mean) / std).reshape(len(images), -1)


def test_accuracies_equal_nearest_centroids_by_hand(digits, quick_findings):
    train = flat(digits.train.images, digits)
    train /= np.linalg.norm(train, axis=1, keepdims=True)
    centroids = np.stack([train[digits.train.labels.numpy() == c].mean(axis=0) for c in range(10)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)

    def accuracy(images):
        return 100 * ((flat(images, digits) @ centroids.T).argmax(1) == digits.test.labels.numpy()).mean()

    found = quick_findings.arrays["accuracy"]
    assert found.shape == (3, 5)
    for i, name in enumerate(QUICK.corruptions):
        for severity in (1, 4):
            images = corrupt(digits.test.images, torch.arange(500), name, severity, seed=0)
            assert found[i, severity - 1] == pytest.approx(accuracy(images), abs=0.41)  # near ties
    assert quick_findings.scores["clean"] == pytest.approx(accuracy(digits.test.images), abs=0.41)
    assert list(quick_findings.arrays["corruptions"]) == list(QUICK.corruptions)


def test_scores_come_from_the_accuracies(digits, quick_findings):
    scores, accuracy = quick_findings.scores, quick_findings.arrays["accuracy"]
    assert scores["mean"] == pytest.approx(accuracy.mean())
    assert scores["severity3"] == pytest.approx(accuracy[:, 2].mean())
    assert scores["contrast"] == pytest.approx(accuracy[1].mean())
    assert scores["mce"] == pytest.approx(100 - accuracy.mean())
    assert scores["relative_mce"] == pytest.approx(scores["clean"] - accuracy.mean())
    assert scores["images"] == 500
    assert not any("baseline" in name for name in scores)


def test_errors_over_a_baseline_equal_their_definition(digits, quick_findings):
    """For each corruption a ratio of sums over the severities, then the mean of the ratios."""
    theirs = {"clean": 5.0, "gaussian_noise": 20.0, "contrast": 30.0, "glass_blur": 60.0}
    settings = replace(QUICK, baseline="given", given=BaselineErrors(**theirs))
    found = settings(raw_pixels(digits, CPU), digits).scores
    ratios, relative = [], []
    for name, accuracy in zip(QUICK.corruptions, quick_findings.arrays["accuracy"], strict=True):
        ours = sum(100 - value for value in accuracy)
        clean = 100 - quick_findings.scores["clean"]
        ratios.append(ours / (5 * theirs[name]))
        relative.append((ours - 5 * clean) / (5 * theirs[name] - 5 * 5.0))
    assert found["mce_over_baseline"] == pytest.approx(100 * np.mean(ratios))
    assert found["relative_mce_over_baseline"] == pytest.approx(100 * np.mean(relative))


def test_alexnet_measured_by_itself():
    assert {f.name for f in fields(BaselineErrors)} == {"clean", *NAMES}
    errors = np.array([asdict(ALEXNET)[name] for name in NAMES])
    scores = Robustness(baseline="alexnet")._corruption_errors(errors, ALEXNET.clean)
    assert scores["mce_over_baseline"] == pytest.approx(100)
    assert scores["relative_mce_over_baseline"] == pytest.approx(100)
    assert scores["mce"] == pytest.approx(78.9, abs=0.1)  # the mean of AlexNet's published errors


def test_the_linear_classifier_comes_near_logistic_regression(digits):
    settings = Robustness(("gaussian_noise",), (5,), steps=300)
    pixels = raw_pixels(digits, CPU)
    findings = settings(pixels, digits)
    model = LogisticRegression(max_iter=300, C=1.0)
    model.fit(pixels.features(digits.train).numpy(), digits.train.labels.numpy())
    truth = digits.test.labels.numpy()
    clean = 100 * model.score(pixels.features(digits.test).numpy(), truth)
    noisy = corrupt(digits.test.images, torch.arange(500), "gaussian_noise", 5, seed=0)
    assert findings.scores["clean"] == pytest.approx(clean, abs=1.5)
    assert findings.scores["gaussian_noise"] == pytest.approx(
        100 * model.score(flat(noisy, digits), truth), abs=1.5
    )


def test_same_seed_same_scores(digits):
    settings = Robustness(("gaussian_noise",), (5,), steps=20)
    first, again = (settings(raw_pixels(digits, CPU), digits).scores for _ in range(2))
    assert first == again
    assert first != replace(settings, seed=1)(raw_pixels(digits, CPU), digits).scores


def test_a_part_of_the_test_images(digits, monkeypatch):
    settings = Robustness(("contrast",), (2,), images=60, classifier="centroid", seed=4)
    findings = settings(raw_pixels(digits, CPU), digits)
    assert findings.scores["images"] == 60
    monkeypatch.setattr("varcon.evaluations.robustness.IMAGES_AT_ONCE", 7)
    assert settings(raw_pixels(digits, CPU), digits).scores == findings.scores


def test_published_folders_give_what_the_fly_gives(digits, quick_findings, tmp_path):
    everything = np.concatenate(
        [corrupt(digits.test.images, torch.arange(500), "contrast", s, 0).numpy() for s in range(1, 6)]
    )
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays/contrast.npy", everything.transpose(0, 2, 3, 1))
    np.save(tmp_path / "arrays/labels.npy", np.tile(digits.test.labels.numpy().astype(np.uint8), 5))
    settings = replace(QUICK, corruptions=("contrast",), path=str(tmp_path / "arrays"))
    found = settings(raw_pixels(digits, CPU), digits)
    assert (found.arrays["accuracy"][0] == quick_findings.arrays["accuracy"][1]).all()

    for i, (image, label) in enumerate(zip(everything[1000:1500], digits.test.labels, strict=True)):
        file = tmp_path / "folders/contrast/3" / str(int(label)) / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(file)
    settings = replace(settings, severities=(3,), path=str(tmp_path / "folders"))
    found = settings(raw_pixels(digits, CPU), digits)
    assert found.arrays["accuracy"][0, 0] == quick_findings.arrays["accuracy"][1, 2]


def test_a_missing_file_shows_before_the_work(digits, tmp_path):
    class Refusing(torch.nn.Module):
        def forward(self, images):
            raise AssertionError("encoded before the folder was looked at")

    (tmp_path / "labels.npy").touch()
    settings = replace(QUICK, path=str(tmp_path))
    with pytest.raises(InputError, match=r"there is no file .*gaussian_noise\.npy"):
        settings(FrozenEncoder(Refusing(), digits, CPU), digits)


def test_progress_is_reported_and_nothing_is_kept(digits):
    seen = []
    encoder = FrozenEncoder(torch.nn.Flatten(), digits, CPU, lambda *report: seen.append(report))
    replace(QUICK, severities=(1, 2))(encoder, digits)
    corrupted = [(done, total) for done, total, what in seen if what == "encoding corrupted images"]
    assert corrupted == [(500 * cell, 3000) for cell in range(7)]  # before each, and at the end
    assert len(encoder._kept) == 2  # the clean training and test images


def test_data_that_cannot_be_judged():
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    split = Split(images, torch.zeros(4, dtype=torch.int64))
    data = Data(split, split, ["all"], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))
    with pytest.raises(InputError, match="only one"):
        QUICK(raw_pixels(data, CPU), data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corruptions": ()}, "robustness.corruptions is"),
        ({"corruptions": ("fog", "fog")}, "none twice"),
        ({"corruptions": ("rain",)}, "robustness.corruptions is 'rain'; choose one of gaussian_noise"),
        ({"severities": (0, 1)}, "robustness.severities is"),
        ({"images": 0}, "robustness.images is 0"),
        ({"steps": 0}, "robustness.steps is 0"),
        ({"learning_rate": float("nan")}, "robustness.learning_rate is nan"),
        ({"classifier": "knn"}, "robustness.classifier is 'knn'"),
        ({"baseline": "vgg"}, "robustness.baseline is 'vgg'"),
        ({"baseline": "alexnet", "severities": (1, 2)}, "means of the five"),
        ({"baseline": "given", "corruptions": ("fog",)}, "error 0.0 for fog and 0.0 for clean images"),
        ({"seed": -1}, "robustness.seed is -1"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(InputError, match=message):
        Robustness(**settings)
