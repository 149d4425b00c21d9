import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from varcon.core import InputError
from varcon.data import DataSettings, load
from varcon.evaluations.classifier import OwnClassifier
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.knn import KNN, knn_votes
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.real import ReaL, RealAccuracy

CPU = torch.device("cpu")


def reassessed(labels):
    """Every tenth image has no label, every third a second one, every seventh another than its own."""
    lists = [[int(label)] for label in labels]
    for i, several in enumerate(lists):
        if i % 7 == 0:
            several[0] = (several[0] + 1) % 10
        if i % 3 == 0:
            several.append((several[0] + 5) % 10)
        if i % 10 == 0:
            several.clear()
    return lists


@pytest.fixture
def file(digits, tmp_path):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(reassessed(digits.test.labels)))
    return path


def by_hand(predictions, lists):
    right = judged = 0
    for guess, several in zip(predictions, lists, strict=True):
        if several:
            judged += 1
            right += any(guess == label for label in several)
    return 100 * right / judged, judged


def test_every_classifiers_predictions_equal_a_loop(digits, file):
    frozen = raw_pixels(digits, CPU)
    classifiers = {"knn": KNN(k=3), "linear": LinearProbe(epochs=3)}
    findings = RealAccuracy(ReaL(str(file)), classifiers)(frozen, digits)
    train, test = frozen.features(digits.train), frozen.features(digits.test)
    votes = knn_votes(test, train, digits.train.labels, 10, [3], 0.07)[3]
    expected, judged = by_hand(votes.argmax(dim=1).tolist(), reassessed(digits.test.labels))
    probe = classifiers["linear"](frozen, digits)
    by_probe, _ = by_hand(probe.arrays["predictions"].tolist(), reassessed(digits.test.labels))
    assert findings.scores == {
        "judged": judged,
        "left_out": 500 - judged,
        "knn_top1": pytest.approx(expected),
        "linear_top1": pytest.approx(by_probe),
    }
    assert set(findings.arrays) == {"judged"} | {
        f"{name}_{what}" for name in classifiers for what in ("predictions", "hits")
    }


def test_a_linear_classifiers_predictions(digits, file):
    frozen = raw_pixels(digits, CPU)
    layer = nn.utils.skip_init(nn.Linear, 3 * 64, 10)
    train = frozen.features(digits.train)
    targets = torch.eye(10)[digits.train.labels]
    with torch.no_grad():  # least squares, for a classifier that is better than chance
        layer.weight.copy_(torch.linalg.lstsq(train, targets, driver="gelsd").solution.T)
        layer.bias.zero_()
    own = OwnClassifier(layer)
    expected, _ = by_hand(own(frozen, digits).arrays["predictions"], reassessed(digits.test.labels))
    found = RealAccuracy(ReaL(str(file)), {"own": own})(frozen, digits)
    assert found.scores["own_top1"] == pytest.approx(expected)
    assert expected > 60


@pytest.mark.parametrize(
    "content, message",
    [
        ([[1]] * 499, "has 499 lists and there are 500 test images"),
        ([[]] * 500, "no label acceptable for any image"),
        ([[10]] * 500, "holds 10 at image 0; labels are whole numbers from 0 to 9"),
        ([[0]] * 7 + [["3"]] * 493, "holds '3' at image 7"),
        ([[True]] * 500, "holds True at image 0"),
        ([1] * 500, "not a JSON list of lists"),
        ({"a": [1]}, "not a JSON list of lists"),
        ([[4]] * 500, "its order is not the data's"),
    ],
)
def test_files_that_do_not_fit(digits, tmp_path, content, message):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        RealAccuracy(ReaL(str(path)), {})(raw_pixels(digits, CPU), digits)


def test_files_that_are_none(digits, tmp_path):
    with pytest.raises(InputError, match=r"real\.labels is empty"):
        RealAccuracy(ReaL(), {})(raw_pixels(digits, CPU), digits)
    with pytest.raises(InputError, match=r"cannot be opened .*; correct real\.labels"):
        ReaL(str(tmp_path / "absent.json")).read(digits)
    (tmp_path / "broken.json").write_bytes(b"\xff[[")
    with pytest.raises(InputError, match="not a JSON list of lists"):
        ReaL(str(tmp_path / "broken.json")).read(digits)


def test_images_in_class_folders_are_found_by_their_names(tmp_path):
    """As ImageNet's validation images, numbered over all classes, lie in a folder for each class."""
    draw = np.random.default_rng(0)
    labels = draw.permutation(np.arange(24) % 4)
    for number, label in enumerate(labels):
        for split in ("train", "val"):
            folder = tmp_path / split / f"n0{label}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.full((8, 8, 3), 20 + 60 * label + draw.integers(0, 9), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"val_{number:08d}.png")
    data = load(DataSettings("folder", str(tmp_path)))
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[int(label)] for label in labels]))
    settings = ReaL(str(path), images=str(tmp_path / "val"))
    assert settings.read(data) == [[label] for label in data.test.labels.tolist()]
    with pytest.raises(InputError, match="its order is not the data's"):
        ReaL(str(path)).read(data)
    with pytest.raises(InputError, match=r"there is no folder .*; correct real\.images"):
        ReaL(str(path), images=str(tmp_path / "absent")).read(data)
    (tmp_path / "val" / "n00" / "extra.png").write_bytes(b"")
    with pytest.raises(InputError, match="has 25 images with 25 names for 24 test images"):
        settings.read(data)
