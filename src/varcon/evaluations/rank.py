"""How many dimensions an embedding really uses: an encoder that has collapsed uses few."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings
from varcon.evaluations.frozen import FrozenEncoder


@dataclass(frozen=True)
class Rank:
    """The effective rank (Roy and Vetterli, 2007) and the spread of the test features.

    Features that have shrunk to one direction keep the rank of their noise, and features on a line keep
    their spread; a collapse of either kind shows in one of the two.
    """

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        features = encoder.features(data.test)
        scores = {"effective_rank": effective_rank(features), "spread": spread(features)}
        return Findings({**scores, "dimensions": float(features.shape[1])})


def effective_rank(features: Tensor) -> float:
    """e to the entropy of the singular values' shares, about the mean: d where d dimensions vary alike."""
    values = torch.linalg.svdvals((features - features.mean(dim=0)).double())
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(shares).sum().exp())


def spread(features: Tensor) -> float:
    """The variance of the features' directions: 0 if all point one way, near 1 if they point all ways."""
    directions = F.normalize(features.double(), dim=1)
    directions = directions[directions.any(dim=1)]  # zero points nowhere
    return float(1 - directions.mean(dim=0).square().sum()) if len(directions) else 0.0
