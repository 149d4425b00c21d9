"""A picture of the embedding: the test images as points in the plane, by t-SNE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from varcon.core import Data, Findings, InputError
from varcon.evaluations.frozen import FrozenEncoder


@dataclass(frozen=True)
class Map2D:
    """t-SNE of the normalised features of a random part of the test images."""

    perplexity: float = 30.0
    points: int = 2000  # at most; a map of more takes minutes and shows no more
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.perplexity > 0 and self.points >= 4 and 0 <= self.seed < 2**32):
            raise InputError(
                f"map2d has perplexity {self.perplexity}, points {self.points} and seed {self.seed}; "
                "perplexity must be above 0, points at least 4 and seed within 0..2**32-1"
            )

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE

        if len(data.test) < 4:
            return Findings({})  # too few for a map
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(len(data.test), generator=generator)[: self.points].sort().values
        features = F.normalize(encoder.features(data.test), dim=1).cpu()[chosen].numpy()
        reduced = PCA(min(50, *features.shape), random_state=self.seed).fit_transform(features)
        points = TSNE(
            perplexity=min(self.perplexity, (len(chosen) - 1) / 3), init="pca", random_state=self.seed
        ).fit_transform(reduced)
        return Findings(
            {},
            {
                "points": points.astype(np.float32),
                "labels": data.test.labels[chosen].numpy(),
                "chosen": chosen.numpy(),
            },
        )
