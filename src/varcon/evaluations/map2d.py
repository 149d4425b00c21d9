"""A picture of the embedding: the test images as points in the plane, by t-SNE or UMAP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError
from varcon.data.subset import choose
from varcon.evaluations.frozen import FrozenEncoder, check_finite
from varcon.limits import above_zero, at_least, declared, seed

Projection = Literal["tsne", "umap"]
LEAST_POINTS = 4  # fewer make no map
# Of directions: less is rounding, whose map shows nothing. Of no spread at all t-SNE makes NaN, and crashes.
LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Map2D:
    """The normalised features of a random part of the test images, brought into the plane."""

    method: Projection = "tsne"  # umap needs the extra varcon[umap]
    perplexity: float = 30.0  # about as many neighbours each point keeps; of UMAP, their number
    points: int = 2000  # at most; a map of more takes minutes and shows no more
    seed: int = 0  # of the images that are drawn and of the map

    def __post_init__(self) -> None:
        check_settings(self, of="map2d")

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        if len(data.test) < LEAST_POINTS:
            return Findings({})
        project = Projector(self.method, self.perplexity, self.seed)
        chosen = choose(len(data.test), self.points, self.seed)
        features = encoder.features(data.test)[chosen.to(encoder.device)]
        encoder.progress(0, 1, "drawing the map")
        points = project(features)
        encoder.progress(1, 1, "drawing the map")
        return Findings(
            {}, {"points": points, "labels": data.test.labels[chosen].numpy(), "chosen": chosen.numpy()}
        )


def check_settings(settings: Any, of: str) -> None:
    declared(settings, of)
    above_zero(settings, "perplexity", of=of)
    at_least(LEAST_POINTS, settings, "points", of=of)
    seed(settings, of=of)


class Projector:
    """Features [N, F] to points [N, 2], float32."""

    def __init__(self, method: Projection, perplexity: float, seed: int) -> None:
        self.perplexity, self.seed = perplexity, seed
        # Found here, before any image is encoded for what cannot be drawn.
        self.umap = import_umap() if method == "umap" else None

    def __call__(self, features: Tensor, start: np.ndarray | None = None) -> np.ndarray:
        """By cosine; `start` [N, 2] is where the points begin, otherwise at the features' main directions.

        Features of one direction, as a collapsed encoder has them, have no map: all points are 0.
        """
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE

        check_finite(features)
        # Of about size 1, by powers of two and so without rounding: no length overflows.
        _, exponent = torch.frexp(features.abs().amax(dim=1, keepdim=True))
        directions = F.normalize(torch.ldexp(features, -exponent), dim=1).cpu().numpy()
        if np.ptp(directions, axis=0).max() < LEAST_SPREAD:
            return np.zeros((len(directions), 2), dtype=np.float32)
        reduced = PCA(min(50, *directions.shape), random_state=self.seed).fit_transform(directions)
        if reduced.shape[1] == 1:  # of one-dimensional features; a plane has two
            reduced = np.pad(reduced, ((0, 0), (0, 1)))
        if start is not None and np.ptp(start, axis=0).max() == 0:  # a map of one direction leads nowhere
            start = None
        init: Any = "pca" if start is None else start
        if self.umap:
            neighbours = min(max(2, round(self.perplexity)), len(reduced) - 1)
            # With a seed UMAP works in one thread, and would warn of it if not told.
            maker = self.umap(n_neighbors=neighbours, init=init, random_state=self.seed, n_jobs=1)
        else:
            perplexity = min(self.perplexity, (len(reduced) - 1) / 3)
            # Exaggeration finds a layout where there is none; where there is one it would throw it over.
            exaggeration = 12.0 if start is None else 1.0
            maker = TSNE(
                perplexity=perplexity,
                early_exaggeration=exaggeration,
                init=init,
                random_state=self.seed,
            )
        return np.asarray(maker.fit_transform(reduced), dtype=np.float32)


def import_umap() -> Any:
    try:
        from umap import UMAP
    except ImportError:
        raise InputError("a map by umap needs umap-learn; install it: pip install 'varcon[umap]'") from None
    return UMAP
