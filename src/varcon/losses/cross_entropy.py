"""Cross-entropy and its relatives that weigh each sample by how sure the classifier is of it.

With p the probability of a sample's own class, the focal family is w(p) * -log p:

    focal       w = (1 - p)^gamma
    dual focal  w = (1 - p + p_j)^gamma,  p_j the largest probability below p, 0 if there is none
    AdaFocal    w = (1 - p)^gamma where gamma >= 0, (1 + p)^|gamma| where it is negative

Gradients flow through w, too. `logits` are [N, C], `labels` [N], and a loss is [N].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.losses.precision import full_precision

SWITCH = 0.2  # AdaFocal's threshold: a weaker gamma changes sign


@full_precision
def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Against integer labels [N] or probabilities [N, C], of which `smoothing` is spread over all classes."""
    if targets.is_floating_point():
        targets = targets.to(logits.dtype)
    return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)


@full_precision
def focal(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Focal loss (Lin et al., 2017)."""
    log_own, log_rest = _own_and_rest(logits, labels)
    return -(gamma * log_rest).exp() * log_own


@full_precision
def dual_focal(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Dual focal loss (Tao et al., 2023)."""
    log_own, log_rest = _own_and_rest(logits, labels)
    below = logits < logits.gather(1, labels[:, None])
    runner_up = logits.masked_fill(~below, torch.finfo(logits.dtype).min).amax(1)
    log_gap = torch.logaddexp(log_rest, runner_up - logits.logsumexp(1))  # log(1 - p + p_j)
    return -(gamma * log_gap).exp() * log_own


@full_precision
def adafocal(logits: Tensor, labels: Tensor, gamma_of_sample: Tensor) -> Tensor:
    """AdaFocal (Ghosh et al., 2022), with the gamma [N] of the bin that each sample's p falls into."""
    log_own, log_rest = _own_and_rest(logits, labels)
    gamma = gamma_of_sample.to(logits.dtype)
    log_weight = torch.where(gamma >= 0, gamma * log_rest, -gamma * log_own.exp().log1p())
    return -log_weight.exp() * log_own


@torch.no_grad()
@full_precision
def update_gammas(
    gammas: Tensor,
    confidence: Tensor,
    correct: Tensor,
    edges: Tensor,
    rate: float,
    limits: tuple[float, float],
) -> Tensor:
    """AdaFocal's next gammas [B], from confidence [V] and correctness [V] on validation data.

    `edges` [B - 1] are the inner borders of the bins; a value on a border belongs to the bin above, so
    that `torch.bucketize(p, edges, right=True)` is the bin of p. Over-confidence raises gamma. One that
    falls below 0.2 in size changes sides, to 0.2 of the other sign. An empty bin keeps its own.
    """
    bins = torch.bucketize(confidence, edges, right=True)
    counts = torch.zeros_like(gammas).index_add_(0, bins, torch.ones_like(confidence, dtype=gammas.dtype))
    excess = confidence.to(gammas.dtype) - correct.to(gammas.dtype)
    error = torch.zeros_like(gammas).index_add_(0, bins, excess) / counts.clamp_min(1)
    focal_side = gammas > 0
    moved = gammas * (rate * torch.where(focal_side, error, -error)).exp()
    switch = torch.full_like(gammas, SWITCH)
    moved = torch.where(moved.abs() < SWITCH, torch.where(focal_side, -switch, switch), moved).clamp(*limits)
    return torch.where(counts > 0, moved, gammas)


def mix(images: Tensor, labels_onehot: Tensor, weights: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """mixup (Zhang et al., 2018): each float image and label [N, C], blended with that of `order` [N].

    `weights`, of one element or [N], is the share that stays.
    """
    weights = weights.reshape(-1, 1)
    share = weights.reshape(-1, *[1] * (images.ndim - 1))
    mixed = share * images + (1 - share) * images[order]
    return mixed.to(images.dtype), weights * labels_onehot + (1 - weights) * labels_onehot[order]


def _own_and_rest(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """log p and log(1 - p) of the own class, each exact also where p rounds to 0 or 1."""
    own = labels[:, None]
    floor = torch.finfo(logits.dtype).min  # finite: a single class gives neither NaN nor a gradient
    gap = logits.scatter(1, own, floor).logsumexp(1) - logits.gather(1, own).squeeze(1)
    return F.logsigmoid(-gap), F.logsigmoid(gap)
