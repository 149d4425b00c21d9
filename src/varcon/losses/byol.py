"""BYOL's regression of one view's target from the other's prediction."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def regression(predictions: Tensor, targets: Tensor) -> Tensor:
    """2 - 2 cosine of each sample [N], both [N, d] of any length (BYOL, Grill et al. 2020).

    The gradient reaches `predictions` only.
    """
    wide = torch.promote_types(predictions.dtype, torch.float32)
    with torch.autocast(predictions.device.type, enabled=False):
        # The squared distance of unit vectors is the same number, without cancellation near 0.
        apart = F.normalize(predictions.to(wide), dim=1) - F.normalize(targets.detach().to(wide), dim=1)
        return apart.square().sum(1)
