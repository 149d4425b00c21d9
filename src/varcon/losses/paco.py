"""Parametric contrastive learning: PaCo (Cui et al., ICCV 2021) and GPaCo (Cui et al., TPAMI 2023)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from varcon.losses.precision import full_precision, products
from varcon.losses.supcon import all_but, masked_logsumexp


@full_precision
def paco(
    centre_logits: Tensor,
    labels: Tensor,
    queries: Tensor,
    contrast: Tensor,
    contrast_labels: Tensor,
    usable: Tensor,
    itself: Tensor,
    temperature: float,
    alpha: float,
    beta: float,
    gamma: float,
) -> Tensor:
    """The loss of each query [N], where learned class centres join the contrast.

        L = -[beta log pi(c_y) + alpha sum_p log pi(p)] / (beta + alpha |P|)
        pi(c) = e^{s_c} / D,  pi(p) = e^{z.z_p / tau} / D,  D = sum_c e^{s_c} + gamma sum_a e^{z.z_a / tau}

    s are `centre_logits` [N, C] and z the unit vectors `queries` [N, d]. a runs over those of `contrast`
    [M, d] that `usable` [M] allows, without the query's own position `itself` [N] (-1: not there), and p
    over those of its class among them. Without such, the centre's term alone remains. PaCo's queries are
    one view, GPaCo's both.
    """
    scores = products(queries, contrast) / temperature  # [N, M]
    others = all_but(itself, len(contrast)) & usable
    positives = (labels[:, None] == contrast_labels) & others
    count = positives.sum(1)

    log_gamma = math.log(gamma) if gamma > 0 else -math.inf
    log_d = torch.logaddexp(centre_logits.logsumexp(1), masked_logsumexp(scores, others) + log_gamma)
    centre = centre_logits.gather(1, labels[:, None]).squeeze(1) - log_d
    samples = scores.masked_fill(~positives, 0).sum(1) - count * log_d
    weight = beta + alpha * count.to(scores.dtype)
    # A weight of 0 (beta is 0 and there are no positives) divides a sum of 0.
    return -(beta * centre + alpha * samples) / weight.masked_fill(weight == 0, 1)
