"""Attention of samples over class references, without a [samples x classes] matrix in memory."""

from __future__ import annotations

import torch
from torch import Tensor

SCORES_IN_FLIGHT = 2**20  # 4 MiB in float32: small enough for a cache, large enough for a fast matmul
CLASSES_IN_FLIGHT = 4096


def attend_other_classes(
    queries: Tensor, references: Tensor, present: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The softmax mean [N, d] and the log-sum-exp [N] over the present classes other than a sample's own.

    Leaving the own class out lets the caller join whatever own reference it likes without cancellation.
    A sample with no other class gets the mean 0 and the log-sum-exp -inf.
    """
    classes = len(references)
    rows = max(1, SCORES_IN_FLIGHT // min(classes, CLASSES_IN_FLIGHT))
    means, sums = [], []
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        mean, log_sum = _attend_block(queries[block] / temperature, references, present, labels[block])
        means.append(mean)
        sums.append(log_sum)
    return torch.cat(means), torch.cat(sums)


def _attend_block(
    scaled: Tensor, references: Tensor, present: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Online softmax: class blocks are joined as they come, each weighted by its share of the total."""
    mean = torch.zeros_like(scaled)
    log_sum = scaled.new_full((len(scaled),), -torch.inf)
    numbers = torch.arange(len(references), device=scaled.device)
    for start in range(0, len(references), CLASSES_IN_FLIGHT):
        block = slice(start, start + CLASSES_IN_FLIGHT)
        scores = scaled @ references[block].T
        left_out = ~present[block] | (numbers[block] == labels[:, None])
        scores = scores.masked_fill_(left_out, -torch.inf)
        block_sum = scores.logsumexp(dim=1)
        total = torch.logaddexp(log_sum, block_sum)
        # Where nothing has been seen yet both sums are -inf, and their difference would be NaN.
        finite = total.clamp_min(torch.finfo(total.dtype).min)
        weights = scores.sub_(finite[:, None]).exp_()
        mean = torch.addmm(mean * (log_sum - finite).exp()[:, None], weights, references[block])
        log_sum = total
    return mean, log_sum
