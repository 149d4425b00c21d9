"""Whether the features tell images of the data from images that are of something else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError
from varcon.criterion import TEMPERATURE
from varcon.data import DATASETS, DataSettings, load
from varcon.data.subset import choose
from varcon.evaluations.centroid import complete_centroids
from varcon.evaluations.frozen import (
    IMAGES_AT_ONCE,
    FrozenEncoder,
    checked_features,
    row_blocks,
)
from varcon.limits import above_zero, at_least, declared, seed, share

STAND_INS = ("noise", "patches", "constant")


@dataclass(frozen=True)
class Outliers:
    """The data's test images against those of another data set, or against stand-ins that need no download:
    uniform noise, the test images with their patches shuffled, and images of one colour.

    Each score says how well an image fits the training images:
    likelihood: log p(z) of equally frequent classes, each a von Mises-Fisher distribution around its
        centroid of concentration 1 / temperature, but for a constant;
    softmax: the highest class posterior that follows from these;
    neighbour: the cosine to the k-th nearest training feature;
    mahalanobis: minus the squared Mahalanobis distance to the nearest class mean, with one covariance.
    """

    name: str = ""  # another data set, named as in data.name; empty: the stand-ins
    path: str = ""  # where it lies, as in data.path
    images: int = 10_000  # of it, or of each stand-in, at most
    temperature: float = TEMPERATURE  # tau1 of the method
    k: int = 1  # which nearest training feature the score neighbour goes by
    shrinkage: float = 1e-3  # of the covariance toward a sphere; features outnumber images, or do not vary
    patches: int = 4  # along each side of an image
    seed: int = 0  # of the images that are drawn and of the stand-ins

    def __post_init__(self) -> None:
        declared(self, of="outliers")
        if self.name and self.name not in DATASETS:
            raise InputError(
                f"outliers.name is {self.name!r}; choose one of {', '.join(DATASETS)}, or none for stand-ins"
            )
        if self.path and not self.name:
            raise InputError(
                f"outliers.path is {self.path} and outliers.name is empty; say what lies there: "
                f"{', '.join(name for name in DATASETS if name != 'digits')}"
            )
        if self.name not in ("", "digits") and not self.path:
            raise InputError(f"outliers.name is {self.name}; say where it lies with outliers.path")
        above_zero(self, "temperature", of="outliers")
        at_least(1, self, "images", "k", of="outliers")
        at_least(2, self, "patches", of="outliers")
        share(self, "shrinkage", of="outliers")
        seed(self, of="outliers")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        if self.k > len(data.train):
            raise InputError(
                f"outliers.k is {self.k} but there are only {len(data.train)} training images; lower it"
            )
        kinds = self.other_images(encoder, data) if self.name else self.stand_ins(data)
        typical = Typical(self, encoder, data)
        inside = typical.scores(checked_features(encoder, data.test)[0])
        arrays = {f"{score}@test": values for score, values in inside.items()}
        found: dict[str, list[float]] = {}
        scores: dict[str, float] = {}
        for kind, images in kinds.items():
            outside = typical.scores(encode(encoder, images, kind))
            for score, values in outside.items():
                arrays[f"{score}@{kind}"] = values
                for measure, value in separation(inside[score], values).items():
                    scores[f"{score}_{measure}@{kind}"] = value
                    found.setdefault(f"{score}_{measure}", []).append(value)
        means = {name: float(np.mean(values)) for name, values in found.items()}
        arrays = {name: values.astype(np.float32) for name, values in arrays.items()}
        return Findings({**means, **scores}, arrays)

    def other_images(self, encoder: FrozenEncoder, data: Data) -> dict[str, Images]:
        size = data.test.images.shape[-1]
        settings: dict[str, Any] = {"name": self.name, "path": self.path, "image_size": size}
        try:
            images = load(DataSettings(**settings), encoder.progress).test.images
        except InputError as error:
            raise InputError(f"outliers: {error}") from None
        chosen = choose(len(images), self.images, self.seed)
        return {self.name: Images(len(chosen), (images[part] for part in chosen.split(IMAGES_AT_ONCE)))}

    def stand_ins(self, data: Data) -> dict[str, Images]:
        images = data.test.images
        chosen = choose(len(images), self.images, self.seed)

        def make(kind: str) -> Iterator[Tensor]:
            generator = torch.Generator().manual_seed(self.seed)
            for part in chosen.split(IMAGES_AT_ONCE):
                yield stand_in(kind, images[part], self.patches, generator)

        return {kind: Images(len(chosen), make(kind)) for kind in STAND_INS}


class Images(NamedTuple):
    """Made as they are encoded and kept by nobody: they may be as many as the data themselves."""

    total: int
    blocks: Iterator[Tensor]  # each [n, 3, H, W] uint8


def encode(encoder: FrozenEncoder, images: Images, kind: str) -> Tensor:
    parts, done = [], 0
    for block in images.blocks:
        encoder.progress(done, images.total, f"encoding outliers ({kind})")
        parts.append(encoder.encode(block))
        done += len(block)
    encoder.progress(images.total, images.total, f"encoding outliers ({kind})")
    return torch.cat(parts)


class Typical:
    """What the training images' features are like."""

    def __init__(self, settings: Outliers, encoder: FrozenEncoder, data: Data) -> None:
        features, labels = checked_features(encoder, data.train)
        self.settings, self.progress = settings, encoder.progress
        self.centroids = complete_centroids(features, labels, data.classes).directions
        self.bank = F.normalize(features, dim=1)
        self.whiten, means = shared_covariance(features, labels, len(data.classes), settings.shrinkage)
        self.means = means @ self.whiten  # [C, F]

    @torch.no_grad()
    def scores(self, features: Tensor) -> dict[str, np.ndarray]:
        """How typical each feature is, [N] each; the higher the more so."""
        parts: dict[str, list[Tensor]] = {"likelihood": [], "softmax": [], "neighbour": [], "mahalanobis": []}
        for block in row_blocks(len(features), max(len(self.bank), len(self.centroids))):
            self.progress(block.start, len(features), "comparing with the training images")
            z = F.normalize(features[block], dim=1)
            scores = (z @ self.centroids.T).double() / self.settings.temperature  # [rows, C]
            total = scores.logsumexp(1)
            parts["likelihood"].append(total - math.log(len(self.centroids)))
            # By its odds, in whose order it is: the probability itself rounds to 1 at low temperature.
            best, place = scores.max(1, keepdim=True)
            rest = scores.scatter(1, place, -math.inf).logsumexp(1)
            parts["softmax"].append(best.squeeze(1) - rest)
            parts["neighbour"].append((z @ self.bank.T).topk(self.settings.k, dim=1).values[:, -1])
            distance = torch.cdist(features[block].double() @ self.whiten, self.means)
            parts["mahalanobis"].append(-distance.amin(1).square())
        self.progress(len(features), len(features), "comparing with the training images")
        return {name: torch.cat(values).cpu().double().numpy() for name, values in parts.items()}


@torch.no_grad()
def shared_covariance(
    features: Tensor, labels: Tensor, classes: int, shrinkage: float
) -> tuple[Tensor, Tensor]:
    """The matrix that makes the covariance within classes the identity [F, F], and the class means [C, F]."""
    width = features.shape[1]
    means = torch.zeros(classes, width, dtype=torch.float64, device=features.device)
    for block in row_blocks(len(features), width):
        means.index_add_(0, labels[block], features[block].double())
    counts = torch.bincount(labels, minlength=classes)
    if counts.max() < 2:
        raise InputError(
            "outliers are found by how the images of a class differ, and each class has one alone; leave "
            "this evaluation out, or give more training images"
        )
    means /= counts[:, None]
    covariance = means.new_zeros(width, width)
    for block in row_blocks(len(features), width):
        centred = features[block].double() - means[labels[block]]
        covariance.addmm_(centred.T, centred, alpha=1 / len(features))
    sphere = covariance.trace() / width
    covariance = (1 - shrinkage) * covariance + shrinkage * sphere * torch.eye(width).to(covariance)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        raise InputError(
            "the features of a class do not vary in every direction, so their covariance has no inverse; "
            "raise outliers.shrinkage, or look for a collapsed encoder"
        )
    identity = torch.eye(width).to(covariance)
    return torch.linalg.solve_triangular(factor, identity, upper=False).T, means


def stand_in(kind: str, images: Tensor, patches: int, generator: torch.Generator) -> Tensor:
    """As many images of one of the STAND_INS as there are `images` [N, 3, H, W], of their size."""
    if kind == "noise":
        return torch.randint(0, 256, images.shape, dtype=torch.uint8, generator=generator)
    if kind == "constant":
        colours = torch.randint(0, 256, (len(images), 3, 1, 1), dtype=torch.uint8, generator=generator)
        return colours.expand_as(images).contiguous()
    return shuffled_patches(images, patches, generator)


def shuffled_patches(images: Tensor, patches: int, generator: torch.Generator) -> Tensor:
    """Each image cut into patches x patches squares in a random order; a rest at the far edges stays."""
    count, channels, size, _ = images.shape
    grid = min(patches, size)
    side = size // grid
    inner = images[..., : grid * side, : grid * side]
    pieces = inner.reshape(count, channels, grid, side, grid, side).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = torch.rand(count, grid * grid, generator=generator).argsort(dim=1)
    pieces = pieces[torch.arange(count)[:, None], order].unflatten(1, (grid, grid))
    shuffled = images.clone()
    shuffled[..., : grid * side, : grid * side] = pieces.permute(0, 3, 1, 4, 2, 5).reshape(inner.shape)
    return shuffled


def separation(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """In percent, with the data's own images as the positives; fpr95 is the share of outliers that pass
    where 95 % of the data's own do."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    truth = np.repeat([1, 0], [len(inside), len(outside)])
    values = np.concatenate([inside, outside])
    passing_out, passing_in, _ = roc_curve(truth, values, drop_intermediate=False)
    return {
        "auroc": 100 * float(roc_auc_score(truth, values)),
        "aupr": 100 * float(average_precision_score(truth, values)),
        "fpr95": 100 * float(passing_out[np.argmax(passing_in >= 0.95)]),
    }
