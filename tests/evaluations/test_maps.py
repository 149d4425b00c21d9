import sys
import types

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

import varcon
from varcon import InputError, Recipe
from varcon.core import Data, Split
from varcon.data import DataSettings
from varcon.evaluations import FurtherSettings
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels
from varcon.evaluations.map2d import Map2D, Projector
from varcon.evaluations.maps import Maps, SnapshotMaps, neighbours_accuracy, turned_onto
from varcon.recipe import TrainSettings

CPU = torch.device("cpu")


class Noisy(nn.Module):
    """Pixels with some share of noise: an encoder that has not learnt them well yet."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def forward(self, images):
        pixels = images.flatten(1)
        return pixels + self.noise * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(3))


def drawn(data, settings, noises=(3.0, 0.5)):
    earlier = {
        number: lambda noise=noise: FrozenEncoder(Noisy(noise), data, CPU)
        for number, noise in enumerate(noises)
    }
    return SnapshotMaps(settings, earlier, epochs=9)(raw_pixels(data, CPU), data)


def spread_within_classes(points, labels):
    """The mean distance to the own class's centre, over that to the centre of all."""
    centres = np.stack([points[labels == label].mean(axis=0) for label in range(10)])[labels]
    return np.linalg.norm(points - centres, axis=1).mean() / np.linalg.norm(points, axis=1).mean()


def test_maps_show_the_same_images_and_follow_each_other(digits):
    findings = drawn(digits, Maps(points=200))
    points, labels = findings.arrays["points"], findings.arrays["labels"]
    assert points.shape == (3, 200, 2)
    assert points.dtype == np.float32
    assert findings.arrays["epochs"].tolist() == [0, 1, 9]
    chosen = findings.arrays["chosen"]
    assert (digits.test.labels.numpy()[chosen] == labels).all()
    assert list(findings.scores) == ["knn_top1@epoch0", "knn_top1@epoch1", "knn_top1@epoch9"]
    assert findings.scores["knn_top1@epoch0"] < 60 < 90 < findings.scores["knn_top1@epoch9"]
    assert np.abs(points.mean(axis=1)).max() < 1e-4
    assert spread_within_classes(points[0], labels) > 0.7 > 0.5 > spread_within_classes(points[2], labels)
    # A point stays about where it was; maps that each begin anew are less alike, even when turned.
    anew = [
        Projector("tsne", 50.0, 0)(FrozenEncoder(Noisy(noise), digits, CPU).features(mapped))
        for mapped in [Split(digits.test.images[chosen], digits.test.labels[chosen])]
        for noise in (0.5, 0.0)
    ]
    alike = np.corrcoef(points[1].ravel(), points[2].ravel())[0, 1]
    assert alike > 0.9
    assert alike > np.corrcoef(anew[0].ravel(), turned_onto(anew[0], anew[1]).ravel())[0, 1]


def test_the_same_seed_draws_the_same_maps(digits):
    first, same, other = (
        drawn(digits, Maps(points=30, perplexity=5, seed=seed), noises=[0.5]).arrays for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first["points"], same["points"])
    assert (first["chosen"] != other["chosen"]).any()


def test_a_map_is_turned_by_the_best_of_all_turns(generator):
    fixed = torch.randn(40, 2, generator=generator, dtype=torch.float64).numpy()
    other = torch.randn(40, 2, generator=generator, dtype=torch.float64).numpy()
    for points in (other, 3 * fixed @ [[0.6, 0.8], [0.8, -0.6]]):  # any points; turned, mirrored and scaled
        turned = turned_onto(fixed, points)
        gram = points @ points.T
        np.testing.assert_allclose(turned @ turned.T, gram, atol=1e-9)  # no distance has changed
        best = min(
            np.linalg.norm(points * [1, sign] @ [[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] - fixed)
            for a in np.linspace(0, 2 * np.pi, 721)
            for sign in (1, -1)
        )
        assert np.linalg.norm(turned - fixed) <= best + 1e-12
    np.testing.assert_allclose(turned, 3 * fixed, atol=1e-9)


def test_neighbours_are_the_others_as_by_scikit_learn(digits):
    part = Split(digits.test.images[:80], digits.test.labels[:80])
    features = raw_pixels(digits, CPU).features(part)
    hits = 0
    for i in range(80):
        rest = np.delete(np.arange(80), i)
        model = KNeighborsClassifier(5, metric="cosine", weights=lambda d: np.exp(-d / 0.07))
        model.fit(features[rest].numpy(), part.labels[rest].numpy())
        hits += model.predict(features[i : i + 1].numpy())[0] == part.labels[i]
    assert neighbours_accuracy(features, part, 10) == pytest.approx(100 * hits / 80)


def test_of_more_equals_than_neighbours_none_counts_twice():
    labels = torch.arange(12) % 3
    split = Split(torch.zeros(12, 3, 2, 2, dtype=torch.uint8), labels)
    assert 0 <= neighbours_accuracy(torch.ones(12, 4), split, 3) <= 50
    two = Split(split.images[:2], labels[:2])
    assert neighbours_accuracy(torch.eye(2), two, 3) == 0  # the only other is of another class


class FakeUMAP:
    """Takes the arguments that ours are; its points are the features' first two numbers."""

    asked: list = []  # noqa: RUF012

    def __init__(self, n_neighbors, init, random_state, n_jobs):
        self.asked.append((n_neighbors, init, random_state, n_jobs))

    def fit_transform(self, features):
        return features[:, :2].astype(np.float64)


def test_umap_takes_the_place_of_tsne(digits, monkeypatch):
    monkeypatch.setattr(FakeUMAP, "asked", [])
    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=FakeUMAP))
    findings = drawn(digits, Maps("umap", points=100, seed=4))
    assert [asked[0] for asked in FakeUMAP.asked] == [50, 50, 50]
    assert all(asked[2:] == (4, 1) for asked in FakeUMAP.asked)
    first, *later = (asked[1] for asked in FakeUMAP.asked)
    assert first == "pca"
    for start, points in zip(later, findings.arrays["points"], strict=False):
        np.testing.assert_array_equal(start, points)
    assert Map2D("umap", points=20)(raw_pixels(digits, CPU), digits).arrays["points"].shape == (20, 2)
    assert FakeUMAP.asked[-1][0] == 19  # a point has no more neighbours than there are others


def test_without_umap_the_command_that_installs_it(digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    for evaluation in (Map2D("umap"), SnapshotMaps(Maps("umap"), {0: lambda: 1 / 0}, 1)):
        with pytest.raises(InputError, match=r"pip install 'varcon\[umap\]'$"):
            evaluation(raw_pixels(digits, CPU), digits)


def test_settings_and_data_that_cannot_be(digits):
    with pytest.raises(InputError, match=r"maps\.method is 'pca'; choose one of tsne, umap"):
        Maps("pca")
    with pytest.raises(InputError, match=r"maps\.perplexity is 0\.0; it must be above 0"):
        Maps(perplexity=0)
    with pytest.raises(InputError, match=r"map2d\.points is 3; it must be at least 4"):
        Map2D(points=3)
    with pytest.raises(InputError, match=r"kept no snapshots .* train\.snapshots, for example .* 0 4"):
        SnapshotMaps(Maps(), {}, epochs=9)(raw_pixels(digits, CPU), digits)
    few = Split(digits.test.images[:3], digits.test.labels[:3])
    data = Data(digits.train, few, digits.classes, digits.mean, digits.std)
    with pytest.raises(InputError, match="maps need at least 4 test images and there are 3"):
        drawn(data, Maps())


def test_a_runs_own_snapshots_reach_the_maps(tmp_path):
    """The last snapshot is the encoder itself; features of the others do not crowd out the encoder's."""
    train = TrainSettings(epochs=2, batch_size=64, device="cpu", snapshots=(1, 0, 2, 1))
    folder = varcon.train(Recipe(DataSettings(per_class=20), train=train), tmp_path / "run")
    further = FurtherSettings(maps=Maps(points=60, perplexity=10))
    found = varcon.evaluate(folder, device="cpu", only=("knn", "maps"), further=further)
    stored = np.load(folder / "findings/maps.npz")
    assert stored["epochs"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(stored["points"], found["maps"].arrays["points"])
    scores = found["maps"].scores
    assert scores["knn_top1@epoch0"] != scores["knn_top1@epoch2"]
    assert '"perplexity": 10' in (folder / "findings/maps.json").read_text()
    kept = sorted(path.name for path in (folder / "features").iterdir())
    assert len(kept) == 3  # of the training, the test and the mapped images
    assert len({name.split("-")[0] for name in kept}) == 1
    (folder / "encoder-epoch0001.safetensors").unlink()
    with pytest.raises(InputError, match=r"encoder-epoch0001\.safetensors cannot be read as weights"):
        varcon.evaluate(folder, device="cpu", only=("maps",))
