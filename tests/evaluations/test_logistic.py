import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from varcon.core import Data, InputError, Split
from varcon.evaluations import logistic
from varcon.evaluations.frozen import raw_pixels
from varcon.evaluations.logistic import LogisticProbe, LogisticProblem, coarse_to_fine
from varcon.evaluations.metrics import mean_average_precision

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pixels(digits):
    return raw_pixels(digits, CPU)


def oracle(C):
    return LogisticRegression(C=C, solver="newton-cg", tol=1e-8, max_iter=1000)


@pytest.mark.parametrize("C", [1e-3, 1.0, 10.0])
def test_probabilities_equal_scikit_learn(digits, pixels, C):
    """Far from the origin, too, where intercept and weights pull on each other."""
    train, test = pixels.features(digits.train) + 5, pixels.features(digits.test) + 5
    train, labels = train[:700], digits.train.labels[:700]
    model = LogisticProblem(train, labels, 10).solve(1 / C)
    expected = oracle(C).fit(train.double().numpy(), labels.numpy())
    probabilities = model.scores(test).softmax(1).numpy()
    assert abs(probabilities - expected.predict_proba(test.double().numpy())).max() < 1e-3


def test_two_classes_have_two_rows_of_weights(digits, pixels):
    """scikit-learn has one, their difference, whose square is twice the sum of theirs."""
    train, labels = pixels.features(digits.train)[:400], digits.train.labels[:400] % 2
    model = LogisticProblem(train, labels, 2).solve(0.5)
    expected = oracle(2 / 0.5).fit(train.double().numpy(), labels.numpy())
    assert abs((model.weight[1] - model.weight[0]).numpy() - expected.coef_[0]).max() < 1e-4


def test_fewer_images_than_features(digits, pixels):
    train, labels = pixels.features(digits.train)[:60], digits.train.labels[:60]
    model = LogisticProblem(train, labels, 10).solve(0.5)
    expected = oracle(2.0).fit(train.double().numpy(), labels.numpy())
    assert abs(model.weight.numpy() - expected.coef_).max() < 1e-4
    test = pixels.features(digits.test)
    difference = model.scores(test).softmax(1).numpy() - expected.predict_proba(test.double().numpy())
    assert abs(difference).max() < 1e-3


def test_blocks_and_float32_change_nothing_to_speak_of(digits, pixels, monkeypatch):
    train, labels = pixels.features(digits.train), digits.train.labels
    whole = LogisticProblem(train, labels, 10).solve(1.0)
    monkeypatch.setattr(logistic, "ROWS_AT_ONCE", 100)
    parts = LogisticProblem(train, labels, 10).solve(1.0)
    single = LogisticProblem(train, labels, 10, torch.float32).solve(1.0, tolerance=1e-5)
    test = pixels.features(digits.test)
    for other, most in ((parts, 1e-3), (single, 5e-3)):
        difference = whole.scores(test).softmax(1) - other.scores(test).softmax(1)
        assert difference.abs().max() < most


def test_a_later_solution_does_not_depend_on_the_one_before(digits, pixels):
    test = pixels.features(digits.test)
    problem = LogisticProblem(pixels.features(digits.train), digits.train.labels, 10)
    at_once = problem.solve(1.0).scores(test).softmax(1)
    problem.solve(1000.0)
    assert (problem.solve(1.0).scores(test).softmax(1) - at_once).abs().max() < 1e-3


@pytest.fixture(scope="module")
def several():
    """Images that show none, one or several of four classes."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(300, 12, generator=generator)
    axes = torch.randn(12, 4, generator=generator)
    noise = torch.randn(300, 4, generator=generator)
    return features, ((features @ axes + 2 * noise) > 1.5).long()


def test_one_vs_rest_equals_scikit_learn(several):
    features, targets = several
    model = LogisticProblem(features[:200], targets[:200], 4).solve(0.5)
    expected = OneVsRestClassifier(oracle(2.0)).fit(features[:200].double().numpy(), targets[:200].numpy())
    probabilities = model.scores(features[200:]).sigmoid().numpy()
    assert abs(probabilities - expected.predict_proba(features[200:].double().numpy())).max() < 1e-3


def test_what_does_not_count_is_not_learnt(several):
    features, targets = several
    known = targets.clone()
    known[::3, 2] = -1
    model = LogisticProblem(features, known, 4).solve(0.5)
    clear = np.arange(len(features)) % 3 != 0
    expected = oracle(2.0).fit(features[clear].double().numpy(), targets[clear, 2].numpy())
    difference = (
        model.scores(features).sigmoid()[:, 2].numpy() - expected.predict_proba(features.double())[:, 1]
    )
    assert abs(difference).max() < 1e-3


def test_one_vs_rest_chooses_by_average_precision(several):
    features, targets = several
    chosen = LogisticProbe().fit(features[:200], targets[:200], 4, mean_average_precision)
    assert chosen.tried[chosen.penalty] == max(chosen.tried.values())
    assert (
        mean_average_precision(chosen.model.scores(features[200:]), targets[200:]) > 60
    )  # a third are positive


def test_the_sweep_finds_what_a_full_search_finds(digits, pixels):
    """Held-out accuracies of a fine grid's best and of the coarse to fine search, and the test accuracy."""
    steps = []
    encoder = raw_pixels(digits, CPU)
    encoder.progress = lambda done, total, what: steps.append((done, total, what))
    findings = LogisticProbe()(encoder, digits)
    penalties, accuracy = findings.arrays["penalties"], findings.arrays["held_out_accuracy"]
    assert len(penalties) == len(set(penalties)) == 16
    assert accuracy[penalties == findings.scores["penalty"]] == accuracy.max()
    choosing = [step for step in steps if "penalty" in step[2]]
    assert [done for done, _, _ in choosing] == list(range(16))
    assert {total for _, total, _ in choosing} == {16}
    train, labels = pixels.features(digits.train).double(), digits.train.labels
    scale = (train - train.mean(0)).square().sum(1).mean()
    model = oracle(1 / float(findings.scores["penalty"] * scale)).fit(train.numpy(), labels.numpy())
    predictions = model.predict(pixels.features(digits.test).double().numpy())
    assert (findings.arrays["predictions"] == predictions).mean() > 0.997
    assert findings.scores["top1"] == pytest.approx(
        100 * (predictions == digits.test.labels.numpy()).mean(), abs=0.5
    )
    assert findings.scores["top1"] > 96.5


def test_features_of_any_scale_give_the_same(digits, pixels):
    train, test = pixels.features(digits.train), pixels.features(digits.test)
    probe = LogisticProbe(steps=3, least=1e-3, greatest=10)
    one = probe.fit(train, digits.train.labels, 10)
    other = probe.fit(1000 * train, digits.train.labels, 10)
    assert one.penalty == other.penalty
    difference = one.model.scores(test).softmax(1) - other.model.scores(1000 * test).softmax(1)
    assert difference.abs().max() < 1e-3


@pytest.mark.parametrize("count", [1, 2, 7, 8, 16, 17, 40, 45, 100])
def test_search_ends_on_the_peak_of_a_hill(count):
    values = [float(value) for value in range(count)]
    for peak in values:
        judged = coarse_to_fine(values, lambda value, done, total, peak=peak: (-abs(value - peak), 0.0))
        assert max(judged, key=lambda value: judged[value]) == peak
        assert len(judged) <= 16 + 2 * 6


def test_one_image_a_class_leaves_nothing_to_choose_by(digits, pixels):
    few = torch.tensor([int((digits.train.labels == c).nonzero()[0]) for c in range(10)])
    chosen = LogisticProbe().fit(pixels.features(digits.train)[few], digits.train.labels[few], 10)
    assert chosen.tried == {}
    assert chosen.penalty == logistic.NOTHING_HELD_OUT
    hits = chosen.model.scores(pixels.features(digits.test)).argmax(1) == digits.test.labels
    assert hits.double().mean() > 0.4
    assert LogisticProbe(least=0.7, steps=1).fit(torch.eye(4), torch.arange(4), 4).penalty == 0.7


def data_of(labels, classes=2):
    split = Split(torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8), torch.tensor(labels))
    return Data(split, split, [str(c) for c in range(classes)], (0.5, 0.5, 0.5), (1.0, 1.0, 1.0))


def test_collapsed_features_give_chance():
    data = data_of([0, 1, 1, 1] * 5)
    assert LogisticProbe()(raw_pixels(data, CPU), data).scores["top1"] == 75


def test_what_cannot_be():
    with pytest.raises(InputError, match="there is only one"):
        data = data_of([0] * 8, classes=1)
        LogisticProbe()(raw_pixels(data, CPU), data)
    with pytest.raises(InputError, match="NaN or infinity"):
        LogisticProblem(torch.full((4, 2), float("nan")), torch.tensor([0, 1, 0, 1]), 2)
    for settings in ({"least": 0.0}, {"greatest": 1e-7}, {"steps": 0}, {"held_out": 1.0}, {"seed": -1}):
        with pytest.raises(InputError, match=rf"logistic\.{next(iter(settings))} "):
            LogisticProbe(**settings)


@pytest.mark.gpu
def test_the_gpu_finds_the_same(digits):
    cpu, cuda = (LogisticProbe()(raw_pixels(digits, torch.device(d)), digits) for d in ("cpu", "cuda"))
    assert cuda.scores["top1"] == pytest.approx(cpu.scores["top1"], abs=0.5)
