"""X-CLR (Sobal et al., ICLR 2025): contrast graded by a given similarity of the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from varcon.losses.precision import full_precision, products
from varcon.losses.supcon import all_but


@full_precision
def xclr(
    anchors: Tensor,
    labels: Tensor,
    contrast: Tensor,
    contrast_labels: Tensor,
    itself: Tensor,
    similarity: Tensor,
    temperature: float,
    similarity_temperature: float,
) -> Tensor:
    """The loss of each anchor [N]: cross-entropy of the softmax of its scores against that of the classes'.

    `anchors` [N, d] and `contrast` [M, d] are unit vectors, `similarity` [C, C] is between classes.
    `itself` [N] is each anchor's position in `contrast`, left out of both, or -1 if it is not there.
    An anchor with nothing else to contrast costs 0.
    """
    scores = products(anchors, contrast) / temperature  # [N, M]
    wanted = similarity.to(scores.dtype)[labels][:, contrast_labels] / similarity_temperature
    own = ~all_but(itself, len(contrast))
    floor = torch.finfo(scores.dtype).min  # finite: a target of 0 times it is 0
    log_p = scores.masked_fill(own, floor).log_softmax(1)
    return -(wanted.masked_fill(own, floor).softmax(1) * log_p).sum(1)
