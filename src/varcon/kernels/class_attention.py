"""Attention of samples over class references, without a [samples x classes] matrix in memory."""

from __future__ import annotations

import torch
from torch import Tensor

SCORES_IN_FLIGHT = 2**20  # 4 MiB in float32: small enough for a cache, large enough for a fast matmul
CLASSES_IN_FLIGHT = 4096


def attend_other_classes(
    queries: Tensor, references: Tensor, present: Tensor, labels: Tensor, temperature: float | Tensor
) -> tuple[Tensor, Tensor]:
    """The softmax mean [N, d] and the log-sum-exp [N] over the present classes other than a sample's own.

    Leaving the own class out lets the caller join whatever own reference it likes without cancellation.
    A sample with no other class gets the mean 0 and the log-sum-exp -inf.
    """
    if isinstance(temperature, Tensor):  # what `addmm` multiplies by is the host's
        queries, temperature = queries / temperature, 1.0
    classes = len(references)
    rows = max(1, SCORES_IN_FLIGHT // min(classes, CLASSES_IN_FLIGHT))
    means, sums = [], []
    for start in range(0, len(queries), rows):
        block = slice(start, start + rows)
        mean, log_sum = _attend_block(queries[block], references, present, labels[block], temperature)
        means.append(mean)
        sums.append(log_sum)
    return torch.cat(means), torch.cat(sums)


def _attend_block(
    queries: Tensor, references: Tensor, present: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Online softmax: class blocks are joined as they come, each weighted by its share of the total."""
    mean, total = torch.zeros_like(queries), queries.new_zeros(len(queries))
    # Finite: -inf less -inf would be NaN.
    peak = torch.full_like(total, torch.finfo(total.dtype).min)
    hidden = torch.zeros_like(present, dtype=queries.dtype).masked_fill_(~present, -torch.inf)
    for start in range(0, len(references), CLASSES_IN_FLIGHT):
        block = slice(start, start + CLASSES_IN_FLIGHT)
        scores = torch.addmm(hidden[block], queries, references[block].T, alpha=1 / temperature)
        hide_own(scores, labels - start)
        higher = torch.maximum(peak, scores.amax(1))
        shrunk = (peak - higher).exp_()
        weights = scores.sub_(higher[:, None]).exp_()
        mean = torch.addmm(mean.mul_(shrunk[:, None]), weights, references[block])
        total, peak = total * shrunk + weights.sum(1), higher
    # A total of 0 is of no class at all; others are 1 or more.
    return mean.div_(total.clamp_min(torch.finfo(total.dtype).tiny)[:, None]), peak + total.log()


def hide_own(scores: Tensor, places: Tensor) -> None:
    """-inf where a row has its own class, if that is among the columns."""
    inside = (places >= 0) & (places < scores.shape[1])
    columns = places.clamp(0, scores.shape[1] - 1)[:, None]
    kept = scores.gather(1, columns)
    scores.scatter_(1, columns, kept.masked_fill_(inside[:, None], -torch.inf))
