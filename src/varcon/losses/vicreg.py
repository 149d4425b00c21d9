"""VICReg: views that agree, dimensions that vary and do not covary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.losses.precision import full_precision, products


@full_precision
def vicreg(
    a: Tensor, b: Tensor, similarity: float, variance: float, covariance: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of two views [N, d], N at least 2, and its terms before weighting (Bardes et al. 2022).

    Normalised as in the paper's code: similarity is the squared error averaged over samples and
    dimensions (the paper's text sums over dimensions), variance the hinge averaged over dimensions and
    over the two views (the text adds the views), covariance the off-diagonal squares over d, added
    over the views. Variances and covariances divide by N - 1.
    """
    agreement = F.mse_loss(a, b)
    hinge = (_too_still(a) + _too_still(b)) / 2
    redundancy = _covariance(a) + _covariance(b)
    loss = similarity * agreement + variance * hinge + covariance * redundancy
    terms = {"similarity": agreement, "variance": hinge, "covariance": redundancy}
    return loss, {name: term.detach() for name, term in terms.items()}


def _too_still(z: Tensor) -> Tensor:
    """How far the deviations fall short of 1; the constant keeps the root's gradient finite at 0."""
    return F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()


def _covariance(z: Tensor) -> Tensor:
    samples, dimensions = z.shape
    centred = z - z.mean(0)
    matrix = products(centred.T, centred.T) / (samples - 1)  # [d, d]
    diagonal = torch.eye(dimensions, dtype=torch.bool, device=z.device)
    return matrix.masked_fill(diagonal, 0).square().sum() / dimensions
