from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from varcon import run
from varcon.core import Data, InputError, Split
from varcon.criterion import VarConLoss
from varcon.engine.loop import fit
from varcon.evaluations import frozen
from varcon.evaluations import temperature as module
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.temperature import AdaptiveTemperature, first_of_each
from varcon.recipe import DIGITS

CPU = torch.device("cpu")


@pytest.mark.parametrize("without_itself", [False, True])
def test_equals_the_terms_of_the_loss_on_one_batch_of_everything(digits, without_itself, monkeypatch):
    monkeypatch.setattr(frozen, "CELLS_AT_ONCE", 1000)  # many blocks, the last one smaller
    pixels = raw_pixels(digits, CPU)
    settings = AdaptiveTemperature(temperature=0.15, epsilon=0.03, leave_one_out=without_itself)
    findings = settings(pixels, digits)
    loss = VarConLoss(10, 0.15, 0.03, references="leave-one-out" if without_itself else "batch")
    terms = loss.explain(pixels.features(digits.train), digits.train.labels)
    np.testing.assert_allclose(findings.arrays["confidence"], terms.confidence, rtol=2e-5, atol=1e-7)
    tau2 = terms.tau2.double().numpy()
    scores = findings.scores
    assert scores["tau2_mean"] == pytest.approx(tau2.mean(), rel=1e-5)
    assert scores["tau2_std"] == pytest.approx(tau2.std(), rel=1e-4)
    quartiles = [scores[f"tau2_{name}"] for name in ("min", "q25", "median", "q75", "max")]
    np.testing.assert_allclose(quartiles, np.percentile(tau2, [0, 25, 50, 75, 100]), rtol=1e-5)
    expected, edges = np.histogram(tau2, 50, (0.12, 0.18), density=True)
    np.testing.assert_allclose(findings.arrays["edges"], edges)
    assert abs(findings.arrays["density"] - expected).sum() <= 0.01 * expected.sum()  # rounding at an edge
    assert (np.diff(edges) * findings.arrays["density"]).sum() == pytest.approx(1)


def test_the_hardest_come_first(digits):
    findings = AdaptiveTemperature(hardest=40, hardest_per_class=3)(raw_pixels(digits, CPU), digits)
    p, labels = findings.arrays["confidence"], digits.train.labels.numpy()
    by_p = sorted(range(len(p)), key=lambda i: p[i])
    hardest = findings.arrays["hardest"]
    assert list(hardest) == by_p[:40]
    assert (findings.arrays["hardest_labels"] == labels[hardest]).all()
    assert (findings.arrays["hardest_rivals"] != labels[hardest]).all()
    for label, found in enumerate(findings.arrays["hardest_per_class"]):
        assert list(found) == [i for i in by_p if labels[i] == label][:3]
    few = first_of_each(np.array([2, 0, 1]), np.array([0, 1, 0]), 3, 2)
    assert few.tolist() == [[2, 0], [1, -1], [-1, -1]]


def test_the_hardest_come_with_their_pictures(digits):
    findings = AdaptiveTemperature(hardest=5)(raw_pixels(digits, CPU), digits)
    kept = findings.arrays["hardest_pictures"]
    assert kept.dtype == np.uint8
    originals = digits.train.images.numpy()[findings.arrays["hardest"]]
    np.testing.assert_array_equal(kept, originals.transpose(0, 2, 3, 1))  # small ones stay as they are
    many = AdaptiveTemperature()(raw_pixels(digits, CPU), digits).arrays
    assert len(many["hardest"]) == 100
    assert len(many["hardest_pictures"]) == module.PICTURES


def test_large_pictures_are_means_over_their_areas(generator):
    images = torch.randint(0, 256, (2, 3, 128, 96), dtype=torch.uint8, generator=generator)
    small = module.pictures(images)
    assert small.shape == (2, 64, 48, 3)
    blocks = images.double().reshape(2, 3, 64, 2, 48, 2).mean((3, 5))
    assert abs(small - blocks.permute(0, 2, 3, 1).numpy()).max() <= 0.5


def swap_labels(data, share, seed):
    """A share of the training labels replaced by wrong ones, and which those are."""
    chance = np.random.default_rng(seed)
    labels = data.train.labels.clone()
    swapped = chance.choice(len(labels), round(share * len(labels)), replace=False)
    labels[swapped] = (labels[swapped] + torch.from_numpy(chance.integers(1, 10, len(swapped)))) % 10
    return replace(data, train=Split(data.train.images, labels)), swapped


def test_wrong_labels_are_among_the_hardest(digits, tmp_path):
    """1 in 20 is wrong; of as many hardest images, most are, and the rival tells the right label."""
    noisy, swapped = swap_labels(digits, 0.05, seed=0)
    settings = replace(DIGITS.train, epochs=3, warmup_epochs=1, device="cpu")
    recipe = replace(DIGITS, train=settings)
    method = run.build_method(recipe, noisy)
    fit(method, noisy, recipe, tmp_path, CPU, False, run.no_watcher)  # learns from the wrong labels too
    for encoder in (FrozenEncoder(method.encoder, noisy, CPU), raw_pixels(noisy, CPU)):
        arrays = AdaptiveTemperature(hardest=len(swapped))(encoder, noisy).arrays
        assert np.isin(arrays["hardest"], swapped).mean() > 0.7
        truth = digits.train.labels.numpy()[arrays["hardest"]]
        assert (arrays["hardest_rivals"] == truth).mean() > 0.65


def test_alone_in_its_class_an_image_vouches_for_itself_only_if_let():
    """Three images of class a lie around its axis, a fourth far from it, two of class b opposite."""
    images = torch.tensor([[9, 1, 0], [9, 0, 1], [9, 1, 1], [0, 9, 9], [1, 90, 0], [0, 90, 1]])
    split = Split(images.to(torch.uint8)[:, :, None, None], torch.tensor([0, 0, 0, 0, 1, 1]))
    data = Data(split, split, ["a", "b"], (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    encoder = FrozenEncoder(nn.Flatten(), data, CPU)
    alone = AdaptiveTemperature(leave_one_out=True)(encoder, data).arrays
    with_itself = AdaptiveTemperature(leave_one_out=False)(encoder, data).arrays
    assert alone["hardest"][0] == 3
    assert alone["confidence"][3] < 0.1 * with_itself["confidence"][3]


def test_no_adaptation_is_one_temperature(digits):
    findings = AdaptiveTemperature(epsilon=0.0)(raw_pixels(digits, CPU), digits)
    assert findings.scores["tau2_min"] == findings.scores["tau2_max"] == pytest.approx(0.1)
    assert findings.scores["tau2_std"] == pytest.approx(0)
    assert np.isfinite(findings.arrays["density"]).all()


def test_what_cannot_be(digits):
    with pytest.raises(InputError, match=r"temperature\.temperature is 0"):
        AdaptiveTemperature(temperature=0)
    with pytest.raises(InputError, match=r"temperature\.epsilon is 0\.1; .* below the temperature 0\.1"):
        AdaptiveTemperature(epsilon=0.1)
    with pytest.raises(InputError, match=r"temperature\.hardest is 0"):
        AdaptiveTemperature(hardest=0)
    with pytest.raises(InputError, match="one class only"):
        AdaptiveTemperature()(raw_pixels(digits, CPU), replace(digits, classes=["all"]))
    with pytest.raises(InputError, match="class 'ten' has no training image"):
        AdaptiveTemperature()(raw_pixels(digits, CPU), replace(digits, classes=[*digits.classes, "ten"]))
    with pytest.raises(InputError, match="hold NaN"):
        AdaptiveTemperature()(FrozenEncoder(Broken(), digits, CPU), digits)
    nothing = Split(digits.train.images[:0], digits.train.labels[:0])
    with pytest.raises(InputError, match="no images"):
        AdaptiveTemperature()(raw_pixels(digits, CPU), replace(digits, train=nothing))


class Broken(nn.Module):
    def forward(self, images):
        return images.flatten(1) * torch.nan
