"""Barlow Twins: the cross-correlation of two views, drawn towards the identity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.losses.precision import full_precision, products


@full_precision
def barlow(a: Tensor, b: Tensor, redundancy: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of two views [N, d], N at least 2, and its terms before weighting (Zbontar et al. 2021).

    `redundancy` is the paper's lambda. Both terms are sums over dimensions. As in the paper's code the
    deviation is the biased one, with batch norm's 1e-5 under the root: a constant dimension is then
    uncorrelated with all others, not NaN.
    """
    standard_a, standard_b = (F.batch_norm(z, None, None, training=True) for z in (a, b))
    correlation = products(standard_a.T, standard_b.T) / len(a)  # [d, d]
    on_diagonal = (correlation.diagonal() - 1).square().sum()
    diagonal = torch.eye(len(correlation), dtype=torch.bool, device=a.device)
    off_diagonal = correlation.masked_fill(diagonal, 0).square().sum()
    loss = on_diagonal + redundancy * off_diagonal
    return loss, {"invariance": on_diagonal.detach(), "redundancy": off_diagonal.detach()}
