"""SwAV: samples shared out evenly among prototypes, and each view predicting the other's share.

`scores` [N, K] are the products of unit embeddings with unit prototypes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from varcon.losses.precision import full_precision


def _alone(tensor: Tensor) -> Tensor:
    return tensor


@torch.no_grad()
@full_precision
def sinkhorn(
    scores: Tensor, sharpness: float, iterations: int, total: Callable[[Tensor], Tensor] = _alone
) -> Tensor:
    """Assignments [N, K], a constant: each row sums to 1, each column nears N / K (SwAV, Caron et al. 2020).

    `sharpness` is the paper's epsilon; smaller is sharper. `total` sums a tensor over the processes,
    each of which holds at least one row, so that the assignments are those of all rows together.
    """
    logs = scores / sharpness
    for _ in range(iterations):
        mass = _log_total(logs.logsumexp(0), total)  # [K]
        logs = (logs - mass).log_softmax(1)
    return logs.exp()


def _log_total(logs: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """The log of the sum of e^logs over the processes.

    The processes share no maximum, since they can only add, but they do share the mean. Double precision
    lets them lie e^700 from it; one process alone is its own mean and never overflows.
    """
    exact = logs.double()
    sums, processes = total(torch.stack([exact, torch.ones_like(exact)]))
    mean = sums / processes
    return (mean + total((exact - mean).exp()).log()).to(logs.dtype)


@full_precision
def swapped(scores: Tensor, assignments: Tensor, temperature: float) -> Tensor:
    """The cross-entropy of each sample [N] with the `assignments` [N, K] of its other view.

    The gradient reaches `scores` only.
    """
    log_p = (scores / temperature).log_softmax(1)
    return -(assignments.detach() * log_p).sum(1)
