"""BYOL's regression of one view's target from the other's prediction."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from varcon.losses.precision import full_precision


@full_precision
def regression(predictions: Tensor, targets: Tensor) -> Tensor:
    """2 - 2 cosine of each sample [N], both [N, d] of any length (BYOL, Grill et al. 2020).

    The gradient reaches `predictions` only.
    """
    # The squared distance of unit vectors is the same number, without cancellation near 0.
    apart = F.normalize(predictions, dim=1) - F.normalize(targets.detach(), dim=1)
    return apart.square().sum(1)
