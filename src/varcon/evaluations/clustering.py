"""Does the embedding show its classes unasked? Clusters found without labels, held against the labels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError, OnProgress
from varcon.data.subset import choose
from varcon.evaluations.frozen import FrozenEncoder

IMAGES_AT_ONCE = 4096  # whose features are held in float64
CELLS_AT_ONCE = 2**21  # distances held at a time, 16 MB of them
FEWEST_SEARCHED = 32  # clusters whose neighbours a round of merges looks for, at least
JITTER = 1e-12  # of the points' size: more than rounding, less than float32 features can tell
CLASSES_TO_UNFOLD = 300  # above, turning a tree's branches for the best order takes longer than the rest


@dataclass(frozen=True)
class Clustering:
    """Ward's hierarchical clustering of test features, cut at the number of classes."""

    images: int = 10_000  # at most, drawn at random from the test images: time grows with the square
    clusters: int = 0  # to cut the tree at; 0: as many as there are classes among the images
    dimensions: int = 0  # that the features are reduced to by PCA; 0: all that they have
    normalize: bool = True  # features to unit length
    seed: int = 0  # of the images that are drawn

    def __post_init__(self) -> None:
        if self.images < 2:
            raise InputError(f"clustering.images is {self.images}; it must be at least 2")
        for name in ("clusters", "dimensions"):
            if getattr(self, name) < 0:
                raise InputError(f"clustering.{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"clustering.seed is {self.seed}; it must be within 0..2**63-1")

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
        centroids, classes = class_centroids(features, labels, self.normalize)
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
    if not features.isfinite().all():
        raise InputError("the encoder's features hold NaN or infinity; train it anew at a lower rate")
    return F.normalize(features, dim=1) if normalize else features, data.test.labels.cpu()


def class_centroids(features: Tensor, labels: Tensor, normalize: bool = True) -> tuple[Tensor, np.ndarray]:
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
    """Ward's tree of points [N, D] as scipy's linkage matrix [N-1, 4], without a matrix of their distances.

    Two clusters that are each other's nearest will be merged whatever happens elsewhere: to a third they
    come no nearer by merging. So a round merges all such pairs at once. Afterwards only they and those
    whose nearest was among them have to look for a new neighbour, which is a matrix product; those that
    stood nearest to theirs look first, and in a round no more than its merges make worth while.
    """
    count = len(points)
    means, sizes, ids, merges = without_twins(points.double())
    means = means - means.mean(dim=0)
    # Where many distances are equal, each cluster would have its own idea of which one is the least.
    noise = torch.randn(means.shape, generator=torch.Generator().manual_seed(0), dtype=means.dtype)
    means += JITTER * means.square().mean().sqrt() * noise.to(means.device)
    nearest = torch.full_like(ids, -1, dtype=torch.int64)  # position of the nearest cluster; -1: not known
    distance = torch.zeros_like(sizes)  # to it; where it is not known, to none less than this
    made = count
    while len(means) > 1:
        progress(count - len(means), count, "clustering")
        unknown = (nearest < 0).nonzero()[:, 0]
        fewest = max(FEWEST_SEARCHED, 4 * made)
        searched = unknown
        if len(unknown) > fewest:
            searched = unknown[distance[unknown].topk(fewest, largest=False).indices]
        distance[searched], nearest[searched] = search(searched, means, sizes)

        here = torch.arange(len(means), device=means.device)
        first = ((nearest > here) & (nearest[nearest] == here)).nonzero()[:, 0]
        if len(first) == 0 and len(searched) == len(unknown):
            first = distance.argmin()[None]  # rounding hides that these two are mutual
        second, made = nearest[first], len(first)
        total = sizes[first] + sizes[second]
        between = (means[first] - means[second]).square().sum(dim=1) * sizes[first] * sizes[second] / total
        merges.append(torch.stack([ids[first], ids[second], (2 * between).sqrt(), total], dim=1))
        step = (sizes[second] / total)[:, None] * (means[second] - means[first])
        means[first] += step
        sizes[first] = total
        ids[first] = 2 * count - len(means) + torch.arange(made, device=ids.device, dtype=ids.dtype)

        changed = torch.zeros(len(means), dtype=torch.bool, device=means.device)
        changed[first] = changed[second] = True
        kept = torch.ones_like(changed)
        kept[second] = False
        nearest[changed | changed[nearest]] = -1
        nearest = torch.where(nearest < 0, -1, (kept.cumsum(0) - 1)[nearest])[kept]
        means, sizes, ids, distance = means[kept], sizes[kept], ids[kept], distance[kept]
    return ordered(torch.cat(merges).cpu().numpy(), count)


def without_twins(points: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Distinct points, how many there are of each, their ids, and the merges of equal ones at height 0.

    An encoder that has collapsed gives thousands of equal features, among which nearest means nothing.
    """
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    sizes: list[int] = []
    ids: list[int] = []
    merges: list[tuple[int, int, float, int]] = []
    for i, row in enumerate((points + 0.0).contiguous().cpu().numpy()):  # + 0.0: -0 is 0
        place = seen.setdefault(hashlib.blake2b(row, digest_size=16).digest(), len(seen))
        if place == len(firsts):
            firsts.append(i)
            sizes.append(1)
            ids.append(i)
        else:
            sizes[place] += 1
            merges.append((ids[place], i, 0.0, sizes[place]))
            ids[place] = len(points) + len(merges) - 1

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=points.device)

    done = torch.tensor(merges, dtype=torch.float64, device=points.device).view(-1, 4)
    chosen = points[torch.tensor(firsts, device=points.device)]
    return chosen, tensor(sizes), tensor(ids), [done]


def search(rows: Tensor, means: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Of some clusters the nearest other: by how much merging would add to the squares, and its position."""
    distances, places = [], []
    squares, inverse = means.square().sum(dim=1), 1 / sizes
    for part in rows.split(max(1, CELLS_AT_ONCE // len(means))):
        added = torch.addmm(squares, means[part], means.T, alpha=-2)  # [part, clusters]
        added += squares[part, None]
        added /= inverse[part, None] + inverse
        added.scatter_(1, part[:, None], torch.inf)
        least = added.min(dim=1)
        distances.append(least.values)
        places.append(least.indices)
    return torch.cat(distances), torch.cat(places)


def ordered(merges: np.ndarray, count: int) -> np.ndarray:
    """Merges from low to high, numbered anew, as scipy has them."""
    heights = np.concatenate([np.zeros(count), merges[:, 2]])
    parts = merges[:, :2].astype(int)
    for place, (left, right) in enumerate(parts, start=count):  # rounding may put a merge below its parts
        heights[place] = max(heights[place], heights[left], heights[right])
    order = np.argsort(heights[count:], kind="stable")
    number = np.concatenate([np.arange(count), count + np.argsort(order)])
    return np.column_stack([np.sort(number[parts], axis=1), heights[count:], merges[:, 3]])[order]
