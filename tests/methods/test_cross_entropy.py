"""The settings of cross-entropy: what each makes of a batch. The losses themselves have their oracles."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from references.small_methods import CLASSES, SAMPLES, TinyEncoder, build, draw_batch

from varcon.core import Batch, InputError, Progress
from varcon.methods.cross_entropy import BINS, CrossEntropy, CrossEntropySettings


def small_batch():
    batch = draw_batch(0)
    batch.views = [view.float() for view in batch.views]
    return batch


def logits_of(method, images):
    return method.classifier(method.encoder(images))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_smoothing(smoothing):
    method, batch = build("ce", label_smoothing=smoothing).float(), small_batch()
    logits, labels = logits_of(method, torch.cat(batch.views)), batch.labels.repeat(2)
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(method(batch).loss, expected)
    accuracy = (logits.argmax(1) == labels).float().mean()
    torch.testing.assert_close(method(batch).metrics["accuracy"], accuracy)


@pytest.mark.parametrize(("loss", "runner_up"), [("focal", 0.0), ("dual-focal", 1.0)])
def test_focal_losses_weigh_by_confidence(loss, runner_up):
    method, batch = build("ce", loss=loss, gamma=2.0).float(), small_batch()
    p = logits_of(method, torch.cat(batch.views)).softmax(1)
    own = p.gather(1, batch.labels.repeat(2)[:, None])[:, 0]
    below = torch.where(p < own[:, None], p, 0).max(1).values
    expected = (-((1 - own + runner_up * below) ** 2.0) * own.log()).mean()
    torch.testing.assert_close(method(batch).loss, expected)


def test_mixup_blends_images_and_targets_alike():
    method, batch = build("ce", mixup=0.4).float(), small_batch()
    method.before_step(Progress(7, 20, 5))
    share = float(method.share)
    assert 0 < share < 1
    images, labels = torch.cat(batch.views), batch.labels.repeat(2)
    partners = torch.tensor([row + 1 if row % 2 == 0 else row - 1 for row in range(2 * SAMPLES)])
    blended = share * images + (1 - share) * images[partners]
    log_p = logits_of(method, blended).log_softmax(1)
    rows = torch.arange(2 * SAMPLES)
    expected = -(share * log_p[rows, labels] + (1 - share) * log_p[rows, labels[partners]]).mean()
    torch.testing.assert_close(method(batch).loss, expected)


def test_an_odd_batch_leaves_its_last_image_unmixed():
    method, batch = build("ce", mixup=0.4).float(), small_batch()
    method.before_step(Progress(7, 20, 5))
    batch = Batch([batch.views[0][:3]], batch.labels[:3], batch.indices[:3])
    share = float(method.share)
    first, second, last = batch.views[0]
    blended = [share * first + (1 - share) * second, share * second + (1 - share) * first, last]
    log_p = logits_of(method, torch.stack(blended)).log_softmax(1)
    own = log_p.gather(1, batch.labels[:, None])[:, 0]
    other = log_p.gather(1, batch.labels[[1, 0, 2]][:, None])[:, 0]
    torch.testing.assert_close(method(batch).loss, -(share * own + (1 - share) * other).mean())


def shares_of(seed, steps):
    torch.manual_seed(seed)
    method, shares = CrossEntropy(TinyEncoder(), CrossEntropySettings(mixup=0.5), CLASSES), []
    for step in steps:
        method.before_step(Progress(step, 2000, 10))
        shares.append(float(method.share))
    return shares


def test_mixup_draws_by_seed_and_step_alone():
    """So that a resumed run repeats and another seed does not; the draws are those of the Beta."""
    shares, others = shares_of(0, range(2000)), shares_of(1, range(2000))
    assert shares_of(0, [3, 1500]) == [shares[3], shares[1500]]
    assert abs(np.corrcoef(shares, others)[0, 1]) < 0.1
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert np.var(shares) == pytest.approx(0.125, abs=0.01)  # 1 / (4 (2 alpha + 1))


def test_adafocal_softens_where_it_is_too_sure():
    """All samples in one bin, sure and right half the time: that bin's gamma grows, the others' stay."""
    method = build("ce", loss="adafocal", adafocal_rate=1.0).float()
    method.rate = 1.0
    labels = torch.arange(SAMPLES) % 2  # half of them class 0
    logits = torch.zeros(SAMPLES, CLASSES)
    logits[:, 0] = 2.0  # always for class 0, with confidence e^2 / (e^2 + 2) = 0.787
    confidence = float(torch.tensor([2.0, 0, 0]).softmax(0)[0])
    own = int(confidence * BINS)
    expected = method.adafocal(logits, labels).mean()
    torch.testing.assert_close(
        expected,
        torch.stack(
            [  # gammas are 1 until the first update
                -(1 - p) * p.log() for p in logits.softmax(1)[torch.arange(SAMPLES), labels]
            ]
        ).mean(),
    )
    changed = method.gammas != 1
    assert changed.nonzero().flatten().tolist() == [own]
    assert float(method.gammas[own]) == pytest.approx(np.exp(confidence - 0.5), rel=1e-5)
    gammas = method.gammas.clone()
    method.eval().adafocal(logits, labels)
    assert torch.equal(method.gammas, gammas)  # judging teaches nothing


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"label_smoothing": 1.0}, r"label_smoothing is 1.0; it must lie in \[0, 1\)"),
        ({"loss": "focal", "mixup": 0.2}, "takes labels as they are"),
        ({"mixup": -1.0}, "mixup is -1.0; it must be at least 0"),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(InputError, match=words):
        CrossEntropySettings(**settings)
