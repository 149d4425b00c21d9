"""Contrastive losses of two views: NT-Xent (SimCLR) and InfoNCE against a queue (MoCo v2).

Every embedding is a unit vector; a score is a dot product divided by the temperature.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.losses.precision import full_precision, products


@full_precision
def nt_xent(
    anchors: Tensor, contrast: Tensor, itself: Tensor, positive: Tensor, temperature: float
) -> Tensor:
    """The loss of each anchor [N]: its other view among all the rest (SimCLR, Chen et al. 2020).

    `anchors` [N, d] are some rows of `contrast` [M, d], which holds both views of the whole batch.
    `itself` [N] says where an anchor lies in `contrast` and `positive` [N] where its other view does.
    The gradient reaches both `anchors` and `contrast`.
    """
    scores = products(anchors, contrast) / temperature  # [N, M]
    others = scores.scatter(1, itself[:, None], -torch.inf)
    return F.cross_entropy(others, positive, reduction="none")


@full_precision
def info_nce(queries: Tensor, keys: Tensor, queue: Tensor, usable: Tensor, temperature: float) -> Tensor:
    """The loss of each query [N]: its key against the queue (MoCo v2, Chen et al. 2020).

    `queries` and `keys` are [N, d]. Of the `queue` [K, d] the entries in the mask `usable` [K] count;
    the others may hold anything. The gradient reaches `queries` only.
    """
    # Zeroed as well as left out: a weight of 0 does not silence a NaN on the way back.
    negatives = queue.detach().masked_fill(~usable[:, None], 0)
    against = products(queries, negatives).masked_fill(~usable, -torch.inf)  # [N, K]
    scores = torch.cat([(queries * keys.detach()).sum(1, keepdim=True), against], dim=1) / temperature
    return -scores.log_softmax(1)[:, 0]
