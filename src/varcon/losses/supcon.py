"""The supervised contrastive loss (Khosla et al., 2020)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from varcon.core import InputError
from varcon.losses.precision import full_precision, products

Form = Literal["out", "in"]


@full_precision
def supcon(
    anchors: Tensor,
    labels: Tensor,
    contrast: Tensor,
    contrast_labels: Tensor,
    itself: Tensor,
    temperature: float,
    form: Form = "out",
) -> Tensor:
    """The loss of each anchor [N]: its own class among all of `contrast`.

    `anchors` [N, d] and `contrast` [M, d] are unit vectors. `itself` [N] is each anchor's position in
    `contrast`, left out of positives and denominator, or -1 if it is not there. Over the positives,
    "out" takes the mean of the logs and "in" the log of the mean. An anchor without positives costs 0,
    and still counts where the caller takes the mean. No factor tau / 0.07 scales the loss.
    """
    if form not in get_args(Form):
        raise InputError(f"form is {form!r}; choose one of {', '.join(get_args(Form))}")
    scores = products(anchors, contrast) / temperature  # [N, M]
    others = all_but(itself, len(contrast))
    positives = (labels[:, None] == contrast_labels) & others
    count = positives.sum(1)
    some = count.clamp_min(1)
    if form == "out":
        pull = scores.masked_fill(~positives, 0).sum(1) / some
    else:
        pull = masked_logsumexp(scores, positives) - some.to(scores.dtype).log()
    return torch.where(count > 0, masked_logsumexp(scores, others) - pull, 0)


def all_but(itself: Tensor, count: int) -> Tensor:
    """[N, count], true but at each row's own position."""
    return torch.arange(count, device=itself.device) != itself[:, None]


def masked_logsumexp(scores: Tensor, mask: Tensor) -> Tensor:
    """Over the masked-in scores of each row; of none, a finite floor without gradient."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).logsumexp(1)
