"""The scikit-learn estimators: what scikit-learn asks of every estimator, and what ours promise beside it."""

import copy
import pickle
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from varcon import VarConClassifier, VarConEmbedding
from varcon.augment import AugmentSettings
from varcon.core import InputError

# It asks for the array API of other libraries, which no torch module reads, and skips itself where scipy's
# is switched off.
NOT_FOR_US = "check_array_api_input"


def every_check():
    for estimator in (VarConClassifier(epochs=15), VarConEmbedding(epochs=2)):
        for ready, check in estimator_checks_generator(estimator):
            if check.func.__name__ != NOT_FOR_US:
                yield pytest.param(ready, check, id=f"{type(ready).__name__}-{check.func.__name__}")


@pytest.mark.parametrize(("estimator", "check"), list(every_check()))
def test_scikit_learns_own_checks(estimator, check):
    try:
        check(estimator)
    except SkipTest as reason:  # the arrays have been checked by then; its tables need pandas
        assert "pandas is not installed" in str(reason)


@pytest.fixture(scope="module")
def digits():
    """uint8 images [N, 8, 8]: 600 to learn from, 200 to judge by."""
    found = load_digits()
    images = np.rint(found.images * 255 / 16).astype(np.uint8)
    return train_test_split(
        images, found.target, train_size=600, test_size=200, random_state=0, stratify=found.target
    )


@pytest.fixture(scope="module")
def on_images(digits):
    train, _, labels, _ = digits
    return VarConClassifier(epochs=12, random_state=0).fit(train, labels)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return train_test_split(X, y, test_size=60, random_state=0, stratify=y)


@pytest.fixture(scope="module")
def on_wine(wine):
    return VarConClassifier(epochs=60, random_state=0).fit(wine[0], wine[2])


def test_images_are_learned(on_images, digits):
    _, test, _, labels = digits
    assert on_images.score(test, labels) >= 0.95
    assert on_images.transform(test).shape == (200, 64)
    assert on_images.transform(test).dtype == np.float32


def test_layouts_of_images_are_the_same_images(on_images, digits):
    grey = digits[1][:20]
    colour = np.repeat(grey[..., None], 3, axis=3)
    expected = on_images.predict_proba(grey)
    for layout in (grey[..., None], colour, colour.transpose(0, 3, 1, 2)):
        assert np.array_equal(on_images.predict_proba(layout), expected)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((3, 8, 8)), "float64 and must be uint8"),
        (np.zeros((3, 8, 8, 4), np.uint8), r"have the shape \[3, 8, 8, 4\]"),
        (np.zeros((0, 8, 8), np.uint8), "none of them 0"),
        (np.zeros((3, 9, 8), np.uint8), "learned from images of 8 x 8 pixels and X holds images of 9 x 8"),
        (np.zeros((3, 64)), "float64 and must be uint8"),
    ],
)
def test_images_it_cannot_take(on_images, images, words):
    with pytest.raises(InputError, match=words):
        on_images.predict(images)


def test_images_after_a_table_leave_nothing_of_it(wine, digits):
    """As if it had learned from nothing before."""
    again = VarConEmbedding(epochs=1, random_state=0).fit(wine[0], wine[2])
    again.feature_names_in_ = np.array([f"column {place}" for place in range(13)], object)
    train, test, labels, _ = digits
    again.fit(train, labels)
    fresh = VarConEmbedding(epochs=1, random_state=0).fit(train, labels)
    assert vars(again).keys() == vars(fresh).keys()
    assert np.array_equal(again.transform(test), fresh.transform(test))


def test_oblong_images():
    generator = np.random.default_rng(0)
    labels = np.arange(24) % 2
    images = (generator.integers(0, 100, (24, 6, 10)) + 150 * labels[:, None, None]).astype(np.uint8)
    model = VarConClassifier(epochs=8, batch_size=12, random_state=0).fit(images, labels)
    assert model.score(images, labels) == 1


@pytest.mark.parametrize(("load", "least"), [(load_wine, 0.95), (load_iris, 0.93)])
def test_tables_are_learned_about_as_well_as_by_logistic_regression(load, least):
    X, y = load(return_X_y=True)
    ours = cross_val_score(VarConClassifier(epochs=80, random_state=0), X, y, cv=3).mean()
    theirs = cross_val_score(make_pipeline(StandardScaler(), LogisticRegression()), X, y, cv=3).mean()
    assert ours >= max(least, theirs - 0.03)


def test_what_a_linear_model_cannot_tell():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 4))
    y = X[:, 0] * X[:, 1] > 0
    model = VarConClassifier(random_state=0).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) >= 0.9


def test_rare_classes_keep_a_place_of_their_own():
    """References from the batch alone let all embeddings collapse here: balanced accuracy of a third."""
    X, y = make_classification(
        900, 15, n_informative=8, n_classes=3, weights=[0.75, 0.2, 0.05], class_sep=2, random_state=13
    )
    model = VarConClassifier(random_state=0).fit(X[:600], y[:600])
    assert balanced_accuracy_score(y[600:], model.predict(X[600:])) >= 0.7
    cosines = model.centroids_ @ model.centroids_.T
    assert cosines[np.triu_indices(3, 1)].max() < 0.9


def test_balanced_classes_count_alike():
    """Of 35 samples in 1,000, which otherwise are never named."""
    X, y = make_classification(
        3000, 20, n_informative=8, n_classes=3, weights=[0.85, 0.12, 0.03], flip_y=0.01, random_state=0
    )
    X, X_test, y, y_test = train_test_split(X, y, train_size=1000, stratify=y, random_state=0)
    recalls, named = {}, {}
    for balanced in (False, True):
        model = VarConClassifier(balanced=balanced, random_state=0).fit(X, y)
        predicted = model.predict(X_test)
        recalls[balanced] = balanced_accuracy_score(y_test, predicted)
        named[balanced] = np.mean(predicted == 2)
    assert recalls[True] > recalls[False] + 0.1
    assert named[True] > 0.02


def test_the_posterior_is_the_softmax_of_cosines_to_the_class_means(on_wine, wine):
    train, test, labels, _ = wine

    def projections(X):
        with torch.no_grad():
            features = torch.from_numpy(on_wine.transform(X)).double()
            return torch.nn.functional.normalize(on_wine.head_(features), dim=1).numpy()

    means = []
    for label in on_wine.classes_:
        own = [z for z, y in zip(projections(train), labels, strict=True) if y == label]
        means.append(sum(own) / np.linalg.norm(sum(own)))
    for z, chances in zip(projections(test), on_wine.predict_proba(test), strict=True):
        powers = [
            np.exp(z @ mean / on_wine.temperature_ + bias)
            for mean, bias in zip(means, on_wine.bias_, strict=True)
        ]
        np.testing.assert_allclose(chances, np.array(powers) / sum(powers), atol=1e-9)
    assert np.array_equal(on_wine.predict(test), on_wine.classes_[on_wine.predict_proba(test).argmax(axis=1)])


def test_chances_are_calibrated():
    """Among noisy labels: the mean confidence is near the accuracy, and better than always being sure."""
    X, y = make_classification(900, 20, n_informative=8, n_classes=3, flip_y=0.2, random_state=0)
    model = VarConClassifier(random_state=0).fit(X[:600], y[:600])
    chances = model.predict_proba(X[600:])
    assert abs(chances.max(axis=1).mean() - model.score(X[600:], y[600:])) < 0.12


def test_inside_a_pipeline_a_grid_and_clone(wine):
    train, test, labels, test_labels = wine
    pipeline = make_pipeline(VarConEmbedding(epochs=30, random_state=0), LogisticRegression(max_iter=1000))
    assert pipeline.fit(train, labels).score(test, test_labels) >= 0.93
    grid = {"temperature": [0.1, 0.2], "augment": [None, AugmentSettings(policy="vectors", swap=0.1)]}
    search = GridSearchCV(VarConClassifier(epochs=3, random_state=0), grid, cv=2).fit(train, labels)
    assert len(search.cv_results_["mean_test_score"]) == 4
    copy = clone(search.best_estimator_)
    assert copy.get_params() == search.best_estimator_.get_params()
    assert not hasattr(copy, "encoder_")


def test_names_of_the_features(on_wine, wine):
    names = on_wine.get_feature_names_out()
    assert names[:2].tolist() == ["varconclassifier0", "varconclassifier1"]
    assert len(names) == on_wine.transform(wine[1]).shape[1] == on_wine.encoder_.features


def test_the_random_state_decides_all(wine):
    train, test, labels, _ = wine
    before = torch.random.get_rng_state()

    def chances(random_state):
        return VarConClassifier(epochs=3, random_state=random_state).fit(train, labels).predict_proba(test)

    assert np.array_equal(chances(0), chances(0))
    assert np.array_equal(chances(np.random.RandomState(5)), chances(np.random.RandomState(5)))
    assert not np.array_equal(chances(0), chances(1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_is_written_and_signals_stay_as_they_are(wine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    seen = []
    monkeypatch.setattr(
        "varcon.estimator.no_watcher", lambda *_: seen.append(signal.getsignal(signal.SIGINT))
    )
    VarConClassifier(epochs=2, random_state=0).fit(wine[0], wine[2])
    assert seen == [handler] * 2
    assert list(tmp_path.iterdir()) == []


def test_progress_is_shown_when_asked_for(wine, capsys):
    VarConEmbedding(epochs=3, random_state=0, verbose=1).fit(wine[0], wine[2])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "VarConEmbedding: 3 of 3" in shown.err
    VarConEmbedding(epochs=3, random_state=0).fit(wine[0], wine[2])
    assert capsys.readouterr().err == ""


def test_one_sample_of_each_class():
    X = np.eye(5)
    model = VarConClassifier(epochs=50, random_state=0).fit(X, list("abcde"))
    assert model.predict(X).tolist() == list("abcde")


def test_a_large_mean_costs_no_digits():
    generator = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = 1e9 + generator.normal(size=(60, 3)) + 6 * y[:, None]
    assert VarConClassifier(epochs=40, random_state=0).fit(X, y).score(X, y) == 1


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.ones((4, 2)), [1, 1, 1, 1], "y has one class; give it two or more"),
        (np.array([[1.0, np.nan], [0, 1]]), [0, 1], "contains NaN"),
        (scipy.sparse.csr_matrix(np.eye(4)), [0, 1, 0, 1], "[Ss]parse"),
        (np.eye(4), [0.1, 0.2, 0.3, 0.4], "continuous"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1, 0], "inconsistent numbers of samples"),
        (np.zeros((4, 8, 8)), [0, 1, 0, 1], "must be uint8"),
    ],
)
def test_what_cannot_be_learned(X, y, words):
    with pytest.raises((ValueError, TypeError), match=words):
        VarConClassifier(epochs=1).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder": "resnet"}, r"encoder\.name is 'resnet'; did you mean 'resnet50'"),
        ({"encoder": "small"}, "reads images and the data are vectors"),
        ({"augment": AugmentSettings()}, "augment.policy is 'sim' and the data are vectors"),
        ({"epochs": 0}, "train.epochs is 0"),
        ({"epochs": "x"}, "train.epochs is 'x'; it must be a whole number"),
        ({"batch_size": None}, "train.batch_size is None; it must be a whole number"),
        ({"batch_size": 0}, "train.batch_size is 0"),
        ({"temperature": 0}, "temperature is 0"),
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"learning_rate": -1.0}, r"train\.learning_rate is -1\.0; it must be above 0"),
        ({"augment": "sim"}, r"augment is 'sim'; give a varcon\.augment\.AugmentSettings"),
    ],
)
def test_settings_it_refuses(settings, words, wine):
    with pytest.raises(InputError, match=words) as caught:
        VarConClassifier(**settings).fit(wine[0], wine[2])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("batch_size", "rate"), [(64, 0.8), (128, 0.8), (4096, 0.8), (10**9, 0.8)])
def test_a_batch_that_is_not_full_learns_as_fast_as_a_usual_one(batch_size, rate):
    """And no faster, however large it could be: the rate is that of 256 samples."""
    estimator = VarConClassifier(batch_size=batch_size)
    estimator.sample_shape_ = (4,)
    few, many = estimator._recipe(100).train, estimator._recipe(100_000).train
    assert few.learning_rate * few.batch_size == pytest.approx(rate * min(batch_size, 128))
    assert many.learning_rate * many.batch_size == pytest.approx(rate * min(batch_size, 100_000))


LABELS = [
    np.array([0, 3, -2]),
    np.array([0, 3, 7], np.uint8),
    np.array([1.0, 2.0, 5.0]),
    np.array(["ash", "beech", "Öl"]),
    np.array(["ash", "beech", "oak"], dtype=object),
]


@pytest.mark.parametrize("names", LABELS, ids=lambda names: names.dtype.str)
@pytest.mark.parametrize("cls", [VarConClassifier, VarConEmbedding])
def test_save_and_load(cls, names, wine, tmp_path):
    train, test, labels, _ = wine
    model = cls(epochs=2, random_state=np.int64(4), temperature=np.float32(0.2)).fit(train, names[labels])
    path = tmp_path / "model.safetensors"
    model.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    again = cls.load(path, device="cpu")
    assert np.array_equal(again.transform(test), model.transform(test))
    assert again.classes_.dtype == model.classes_.dtype
    assert again.classes_.tolist() == sorted(names.tolist())
    assert {**again.get_params(), "device": "auto"} == pytest.approx(model.get_params())
    if cls is VarConClassifier:
        assert np.array_equal(again.predict_proba(test), model.predict_proba(test))
        assert np.array_equal(again.predict(test), model.predict(test))
    with pytest.raises(ValueError, match="13 features"):
        again.transform(test[:, :5])


def test_a_model_of_images_is_saved(on_images, digits, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    on_images.save("~/model")
    assert (tmp_path / "model").exists()
    again = VarConClassifier.load("~/model")
    assert np.array_equal(again.predict_proba(digits[1]), on_images.predict_proba(digits[1]))
    chosen = AugmentSettings(flip=0.25)
    model = clone(on_images).set_params(augment=chosen, epochs=1).fit(digits[0][:64], digits[2][:64])
    model.save(tmp_path / "other")
    assert VarConClassifier.load(tmp_path / "other").augment == chosen


def test_files_that_hold_no_estimator(on_wine, tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        VarConClassifier.load(tmp_path / "nothing")
    trap = tmp_path / "trap"
    trap.write_bytes(pickle.dumps(on_wine))
    with pytest.raises(InputError, match="is not a saved estimator"):
        VarConClassifier.load(trap)
    good = tmp_path / "good"
    on_wine.save(good)
    with pytest.raises(InputError, match="holds a VarConClassifier; load it with that class"):
        VarConEmbedding.load(good)
    for end in (4, 200, -4):
        (tmp_path / "cut").write_bytes(good.read_bytes()[:end])
        with pytest.raises(InputError, match="is not a saved estimator"):
            VarConClassifier.load(tmp_path / "cut")
    spoilt = good.read_bytes().replace(b'\\"shape\\": [13]', b'\\"shape\\": [12]')
    assert spoilt != good.read_bytes()
    (tmp_path / "spoilt").write_bytes(spoilt)
    with pytest.raises(InputError, match="does not hold a whole VarConClassifier"):
        VarConClassifier.load(tmp_path / "spoilt")
    with pytest.raises(InputError, match="cannot be written"):
        on_wine.save(tmp_path / "no folder" / "model")


def test_a_pickle_predicts_the_same(on_images, digits):
    again = pickle.loads(pickle.dumps(on_images))
    assert np.array_equal(again.predict_proba(digits[1]), on_images.predict_proba(digits[1]))


def test_the_script_in_the_readme_runs():
    """With a quarter of its epochs; in full it reaches the accuracy that the text names."""
    text = (Path(__file__).parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(from sklearn.*?)```", text, re.DOTALL)[1]
    assert len(code.strip().splitlines()) <= 10
    names = {}
    exec(
        code.replace("VarConClassifier(", "VarConClassifier(epochs=10, ").replace("print(", "found = ("),
        names,
    )
    assert names["found"] >= 0.96


@pytest.mark.parametrize("value", [3e38, 1e45, 1e300, -1e308])
def test_values_beyond_float32_are_refused_and_not_predicted_as_nan(value):
    X, y = load_iris(return_X_y=True)
    classifier = VarConClassifier(epochs=1, random_state=0).fit(X, y)
    assert np.isfinite(classifier.predict_proba(np.full((1, 4), 1e30))).all()
    for ask in (classifier.predict, classifier.predict_proba, classifier.transform):
        with pytest.raises(InputError, match="X holds values so far from those that VarConClassifier has"):
            ask(np.concatenate([X, np.full((1, 4), value)]))


@pytest.mark.parametrize("value", [1e200, 1e300, -1e308])
def test_values_whose_variance_is_infinite_are_refused(value):
    X, y = load_iris(return_X_y=True)
    X[3, 2] = value
    with pytest.raises(InputError, match="so large that their variance is infinite"):
        VarConClassifier(epochs=1).fit(X, y)


def test_a_device_that_is_not_here_is_not_blamed_on_the_values(on_wine, wine):
    elsewhere = copy.copy(on_wine).set_params(device="tpu")
    with pytest.raises(InputError, match="there is no device 'tpu'"):
        elsewhere.predict(wine[0])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_fit_that_fails_changes_nothing(error, wine, monkeypatch):
    X, _, y, _ = wine
    classifier = VarConClassifier(epochs=2, random_state=0)
    with monkeypatch.context() as patched:
        patched.setattr("varcon.estimator.fit", raises(error))
        with pytest.raises(error):
            classifier.fit(X, y)
    with pytest.raises(NotFittedError):
        classifier.predict(X)
    found = classifier.fit(X, y).predict_proba(X)
    monkeypatch.setattr("varcon.estimator.fit", raises(error))
    with pytest.raises(error):
        classifier.fit(100 * X[:, :5] + 1000, y[::-1])
    np.testing.assert_array_equal(classifier.predict_proba(X), found)


def raises(error):
    def fit(*given, **settings):
        raise error

    return fit


def test_fits_in_threads_are_those_of_their_random_state(wine):
    X, _, y, _ = wine
    before = torch.get_rng_state()

    def chance(_):
        return VarConClassifier(epochs=2, random_state=0).fit(X, y).predict_proba(X)[0, 0]

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(chance, range(8)))
    assert found == {chance(None)}
    assert torch.equal(torch.get_rng_state(), before)
