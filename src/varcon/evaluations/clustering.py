"""Does the embedding show its classes unasked? Clusters found without labels, held against the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError, OnProgress
from varcon.data.subset import choose
from varcon.evaluations.frozen import FrozenEncoder
from varcon.limits import at_least, declared, seed

IMAGES_AT_ONCE = 4096  # whose features are held in float64
CELLS_AT_ONCE = 2**21  # distances held at a time, 16 MB of them
ROUNDING = 1e-14  # of squared lengths: squared distances below it are those of equal points
CLASSES_TO_UNFOLD = 300  # above, turning a tree's branches for the best order takes longer than the rest


@dataclass(frozen=True)
class Clustering:
    """Ward's hierarchical clustering of test features, cut at the number of classes."""

    images: int = 10_000  # at most, drawn at random; time and memory grow with the square
    clusters: int = 0  # to cut the tree at; 0: as many as there are classes among the images
    dimensions: int = 0  # that the features are reduced to by PCA; 0: all that they have
    normalize: bool = True  # features to unit length
    seed: int = 0  # of the images that are drawn

    def __post_init__(self) -> None:
        declared(self, of="clustering")
        at_least(2, self, "images", of="clustering")
        at_least(0, self, "clusters", "dimensions", of="clustering")
        seed(self, of="clustering")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        features, labels = labelled_features(encoder, data, self.normalize)
        chosen = choose(len(labels), self.images, self.seed)
        truth = labels[chosen]
        clusters = self.clusters or len(truth.unique())
        if clusters > len(chosen):
            raise InputError(
                f"clustering.clusters is {clusters} but there are only {len(chosen)} images; lower it"
            )
        points = features[chosen.to(features.device)].double()
        if self.dimensions:
            points = principal_components(points, self.dimensions)
        found = cut(ward(points, encoder.progress), clusters)
        centroids, classes = present_class_means(features, labels, self.normalize)
        tree, order = class_tree(centroids)
        return Findings(
            {**agreement(truth.numpy(), found), "clusters": float(clusters), "images": float(len(chosen))},
            {
                "clusters": found,
                "labels": truth.numpy(),
                "chosen": chosen.numpy(),
                "classes": classes,  # those with test images: the leaves of the tree, in its numbering
                "class_linkage": tree,
                "class_order": classes[order],  # class indices from one end of the tree to the other
            },
        )


def labelled_features(encoder: FrozenEncoder, data: Data, normalize: bool) -> tuple[Tensor, Tensor]:
    """The test images' features [N, F] on the encoder's device and their labels on the CPU."""
    if len(data.test.labels.unique()) < 2:
        raise InputError(
            f"the {len(data.test)} test images are of one class; to cluster or compare classes takes two"
        )
    features = encoder.features(data.test)
    return F.normalize(features, dim=1) if normalize else features, data.test.labels.cpu()


def present_class_means(
    features: Tensor, labels: Tensor, normalize: bool = True
) -> tuple[Tensor, np.ndarray]:
    """The mean feature [C, F], in float64, of each class that has images, and which classes these are."""
    classes, place = labels.unique(return_inverse=True)
    place = place.to(features.device)
    sums = features.new_zeros(len(classes), features.shape[1], dtype=torch.float64)
    for part in torch.arange(len(place), device=place.device).split(IMAGES_AT_ONCE):
        sums.index_add_(0, place[part], features[part].double())
    means = sums / place.bincount(minlength=len(classes))[:, None]
    return F.normalize(means, dim=1) if normalize else means, classes.numpy()


def class_tree(centroids: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Ward's tree of class centroids as scipy's linkage matrix, and its leaves as a dendrogram draws them."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    unfold = len(centroids) <= CLASSES_TO_UNFOLD
    tree = linkage(centroids.cpu().numpy(), "ward", optimal_ordering=unfold)
    return tree, leaves_list(tree)


def principal_components(points: Tensor, dimensions: int) -> Tensor:
    centred = points - points.mean(dim=0)
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors  # from the least variance to the greatest
    return centred @ axes[:, -dimensions:]


def agreement(labels: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """How well clusters match classes: 1 at best; by chance 0 for the adjusted Rand index alone."""
    from sklearn import metrics
    from sklearn.metrics.cluster import contingency_matrix

    homogeneity, completeness, v_measure = metrics.homogeneity_completeness_v_measure(labels, clusters)
    return {
        "ari": float(metrics.adjusted_rand_score(labels, clusters)),
        "nmi": float(metrics.normalized_mutual_info_score(labels, clusters)),
        "homogeneity": float(homogeneity),
        "completeness": float(completeness),
        "v_measure": float(v_measure),
        "purity": float(contingency_matrix(labels, clusters).max(axis=0).sum() / len(labels)),
    }


def cut(tree: np.ndarray, clusters: int) -> np.ndarray:
    """The cluster of each of the tree's leaves once all but the last merges are made."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    leaves, made = len(tree) + 1, len(tree) + 1 - clusters
    merged = tree[:made, :2].astype(int).ravel()
    into = np.repeat(np.arange(leaves, leaves + made), 2)
    edges = coo_array((np.ones(len(into)), (merged, into)), shape=(leaves + made, leaves + made))
    return connected_components(edges, directed=False)[1][:leaves]


def ward(points: Tensor, progress: OnProgress = lambda done, total, what: None) -> np.ndarray:
    """Ward's tree of points [N, D] as scipy's linkage matrix [N-1, 4]."""
    from scipy.cluster.hierarchy import linkage

    if len(points) == 1:
        return np.empty((0, 4))
    apart = distances(points, progress)
    progress(0, 1, "building the tree of clusters")
    tree = linkage(apart, "ward")
    progress(1, 1, "building the tree of clusters")
    return tree


def distances(points: Tensor, progress: OnProgress) -> np.ndarray:
    """Of all pairs, row after row of the upper triangle as scipy takes them.

    Matrix products: in 2048 dimensions they take a tenth of the time of scipy's own, pair by pair.
    """
    count = len(points)
    points = points.double()
    points = points - points.mean(dim=0)  # distances stay, and less of them is lost in the sums below
    squares = points.square().sum(dim=1)
    found = np.empty(count * (count - 1) // 2)
    place = 0
    at_once = max(1, CELLS_AT_ONCE // count)
    for first in range(0, count, at_once):
        progress(first, count, "clustering")
        here = slice(first, first + at_once)
        sums = squares[here, None] + squares[first:]
        apart = torch.addmm(sums, points[here], points[first:].T, alpha=-2)
        apart = torch.where(apart > ROUNDING * sums, apart, 0).sqrt().cpu()
        for row, values in enumerate(apart.numpy(), start=1):
            found[place : place + len(values) - row] = values[row:]
            place += len(values) - row
    return found
