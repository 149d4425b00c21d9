import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, is_valid_linkage, leaves_list, linkage
from sklearn.cluster import AgglomerativeClustering
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from torch import nn

from varcon.core import Data, InputError, Split
from varcon.evaluations import clustering
from varcon.evaluations.clustering import Clustering, agreement, cut, present_class_means, ward
from varcon.evaluations.frozen import FrozenEncoder, raw_pixels

CPU = torch.device("cpu")


def unit_pixels(data):
    pixels = raw_pixels(data, CPU).features(data.test)
    return torch.nn.functional.normalize(pixels, dim=1).double()


@pytest.mark.parametrize(
    "shape, noise", [((1500, 40), 0.5), ((800, 3), 5.0), ((300, 400), 1.0), ((200, 1), 9)]
)
def test_tree_equals_scipys(generator, monkeypatch, shape, noise):
    """Of the points themselves, where the distances are scipy's too."""
    monkeypatch.setattr(clustering, "CELLS_AT_ONCE", 170 * shape[0])  # several parts, the last one smaller
    means = torch.randn(12, shape[1], generator=generator)
    points = means[torch.randint(0, 12, shape[:1], generator=generator)]
    points = (points + noise * torch.randn(shape, generator=generator)).double()
    expected = linkage(points.numpy(), "ward")
    tree = ward(points)
    np.testing.assert_array_equal(tree[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    np.testing.assert_allclose(tree[:, 2], expected[:, 2], rtol=1e-9, atol=1e-10)
    for clusters in (1, 2, 12, 100):
        assert same_partition(cut(tree, clusters), fcluster(expected, clusters, "maxclust"))


def test_cut_of_digits_equals_scikit_learns(digits):
    findings = Clustering()(raw_pixels(digits, CPU), digits)
    expected = AgglomerativeClustering(10, linkage="ward").fit_predict(unit_pixels(digits).numpy())
    assert same_partition(findings.arrays["clusters"], expected)
    assert (findings.arrays["labels"] == digits.test.labels.numpy()).all()
    assert findings.scores["ari"] == pytest.approx(adjusted_rand_score(digits.test.labels, expected))
    assert findings.scores["clusters"] == 10
    assert findings.scores["ari"] > 0.5  # pixels of digits fall into their classes rather well


@pytest.mark.parametrize(
    "points",
    [
        np.ones((3000, 8)),  # a collapsed encoder
        np.eye(200)[np.arange(4000) % 200],  # each image one of 200 points, all equally far from each other
        np.eye(250),
        np.indices((5, 5, 5, 5)).reshape(4, -1).T.astype(float),  # a grid
        np.float32(1 + 1e-7 * (np.arange(2000 * 8) * 7919 % 61).reshape(2000, 8)),  # all but collapsed
        2.0 ** np.arange(200)[:, None],  # every point nearest to the one before it
        -np.zeros((1, 3)),
        np.array([[0.0, 1.0], [-0.0, 1.0]]),
    ],
)
def test_many_equal_distances_cost_neither_time_nor_sense(points):
    tree = ward(torch.from_numpy(points))
    assert len(points) == 1 or is_valid_linkage(tree)
    distinct = len(np.unique(points, axis=0))
    assert (tree[: len(points) - distinct, 2] == 0).all()
    if distinct < len(points):  # a cut at the distinct points finds them
        assert same_partition(cut(tree, distinct), np.unique(points, axis=0, return_inverse=True)[1])
    assert len(np.unique(cut(tree, min(7, len(points))))) == min(7, len(points))


def test_two_clouds_come_apart(generator):
    points = torch.randn(40, 5, generator=generator) + 20 * (torch.arange(40) % 2)[:, None]
    assert same_partition(cut(ward(points), 2), np.arange(40) % 2)


def test_scores_equal_their_definitions():
    """Pairs counted one by one, entropies summed cell by cell."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 4, 60)
    clusters = np.where(draw.random(60) < 0.6, labels, draw.integers(0, 5, 60))
    pairs = list(combinations(range(60), 2))
    in_class = sum(labels[i] == labels[j] for i, j in pairs)
    in_cluster = sum(clusters[i] == clusters[j] for i, j in pairs)
    in_both = sum(labels[i] == labels[j] and clusters[i] == clusters[j] for i, j in pairs)
    chance = in_class * in_cluster / len(pairs)
    purity = sum(max(sum(labels[clusters == k] == c) for c in range(4)) for k in range(5)) / 60

    def entropy(values):
        return -sum(p * math.log(p) for v in set(values) for p in [sum(w == v for w in values) / 60])

    both = entropy(list(zip(labels.tolist(), clusters.tolist(), strict=True)))
    of_class, of_cluster = entropy(labels.tolist()), entropy(clusters.tolist())
    mutual = of_class + of_cluster - both
    expected = {
        "ari": (in_both - chance) / ((in_class + in_cluster) / 2 - chance),
        "nmi": mutual / ((of_class + of_cluster) / 2),
        "homogeneity": mutual / of_class,
        "completeness": mutual / of_cluster,
        "v_measure": 2 * mutual / (of_class + of_cluster),
        "purity": purity,
    }
    assert agreement(labels, clusters) == pytest.approx(expected)
    assert set(agreement(labels, (labels + 1) % 4).values()) == {1.0}


def test_a_seeded_part_and_fewer_dimensions(digits):
    pixels = raw_pixels(digits, CPU)
    first, again, other = (Clustering(images=200, dimensions=5, seed=s)(pixels, digits) for s in (0, 0, 1))
    assert first.scores == again.scores
    assert (first.arrays["chosen"] != other.arrays["chosen"]).any()
    chosen = first.arrays["chosen"]
    assert len(np.unique(chosen)) == 200 == first.scores["images"]
    assert (digits.test.labels.numpy()[chosen] == first.arrays["labels"]).all()
    reduced = PCA(5, svd_solver="full").fit_transform(unit_pixels(digits).numpy()[chosen])
    expected = fcluster(linkage(reduced, "ward"), 10, "maxclust")
    assert same_partition(first.arrays["clusters"], expected)
    lengths_matter = Clustering(images=200, normalize=False)(pixels, digits).arrays["clusters"]
    assert not same_partition(lengths_matter, Clustering(images=200)(pixels, digits).arrays["clusters"])
    assert len(np.unique(Clustering(clusters=3)(pixels, digits).arrays["clusters"])) == 3


def test_the_tree_of_classes_equals_scipys_on_centroids(digits):
    arrays = Clustering(images=50)(raw_pixels(digits, CPU), digits).arrays
    pixels, labels = unit_pixels(digits).numpy(), digits.test.labels.numpy()
    centroids = np.stack([pixels[labels == digit].mean(axis=0) for digit in range(10)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    expected = linkage(centroids, "ward", optimal_ordering=True)
    np.testing.assert_allclose(arrays["class_linkage"], expected, rtol=1e-6)
    assert (arrays["class_order"] == leaves_list(expected)).all()
    assert (arrays["classes"] == np.arange(10)).all()


def test_classes_without_images_have_no_centroid():
    features = torch.tensor([[2.0, 0], [0, 2], [0, 4]])
    centroids, classes = present_class_means(features, torch.tensor([3, 1, 1]), normalize=False)
    assert classes.tolist() == [1, 3]
    assert centroids.tolist() == [[0, 3], [2, 0]]


def test_progress_is_told(digits, monkeypatch):
    monkeypatch.setattr(clustering, "CELLS_AT_ONCE", 500 * 150)
    told = []
    frozen = raw_pixels(digits, CPU)
    frozen.progress = lambda done, total, what: told.append((done, total, what))
    Clustering()(frozen, digits)
    steps = [done for done, total, what in told if what == "clustering" and total == 500]
    assert steps == [0, 150, 300, 450]
    assert told[-2:] == [(0, 1, "building the tree of clusters"), (1, 1, "building the tree of clusters")]


def test_what_cannot_be(digits):
    for settings in ({"images": 1}, {"clusters": -1}, {"dimensions": -2}, {"seed": -1}):
        with pytest.raises(InputError, match=rf"clustering\.{next(iter(settings))} is -?\d"):
            Clustering(**settings)
    with pytest.raises(InputError, match=r"clustering\.clusters is 501 but there are only 500 images"):
        Clustering(clusters=501)(raw_pixels(digits, CPU), digits)
    alike = Split(digits.test.images[:5], torch.zeros(5, dtype=torch.int64))
    one_class = Data(alike, alike, ["a"], digits.mean, digits.std)
    with pytest.raises(InputError, match="the 5 test images are of one class"):
        Clustering()(raw_pixels(one_class, CPU), one_class)

    class Broken(nn.Module):
        def forward(self, images):
            return images.flatten(1) * torch.nan

    with pytest.raises(InputError, match="NaN or infinity"):
        Clustering()(FrozenEncoder(Broken(), digits, CPU), digits)


@pytest.mark.gpu
def test_tree_is_the_same_on_the_gpu(generator):
    points = torch.randn(700, 30, generator=generator)
    np.testing.assert_allclose(ward(points.cuda()), ward(points), rtol=1e-9)


def same_partition(left, right):
    return adjusted_rand_score(left, right) == 1
