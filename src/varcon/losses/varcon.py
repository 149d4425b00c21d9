"""The VarCon loss: KL(q || p) - log p_r, in closed form and with its gradient by hand.

With p the softmax of an embedding z against the class references w and r its class:

    l = log p_r,  P = p_r,  tau2 = (tau1 - eps) + 2 eps P,  a = 1 / tau2
    q_r = Q = e^a / D,  q_k = u = 1 / D  for the C - 1 other classes,  D = C - 1 + e^a
    KL = Q a - log D - Q l - u T,   T = sum of log p_k over the other classes

The references are constants, so one attention pass (softmax mean and log-sum-exp over the other
classes) holds all that value and gradient need; nothing of size [samples x classes] is kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.kernels.class_attention import attend_other_classes
from varcon.losses.derivatives import first_only


class Terms(NamedTuple):
    """What the loss is made of, sample by sample; no gradient flows through these."""

    kl: Tensor  # KL(q || p)
    nll: Tensor  # -log p_r
    confidence: Tensor  # p_r
    tau2: Tensor  # confidence-adaptive temperature, Eq. 13
    target: Tensor  # q_r


def class_sums(embeddings: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The sum of the embeddings of each class [C, d] and how many there are [C]."""
    sums = embeddings.new_zeros(num_classes, embeddings.shape[1])
    counts = embeddings.new_zeros(num_classes)
    sums.index_add_(0, labels, embeddings)
    counts.index_add_(0, labels, embeddings.new_ones(len(embeddings)))
    return sums, counts


def number_the_present(labels: Tensor, num_classes: int) -> Tensor:
    """Counts off the classes that are in the batch, in order, without asking the device how many they are.

    The numbers [N] lie below the number of samples; a label outside [0, num_classes) gets -1.
    """
    inside = labels.clamp(0, num_classes - 1)
    seen = torch.zeros(num_classes, dtype=torch.int32, device=labels.device).index_fill_(0, inside, 1)
    return (seen.cumsum(0, dtype=torch.int32)[inside] - 1).masked_fill(inside != labels, -1)


def leave_one_out(
    embeddings: Tensor, labels: Tensor, sums: Tensor, counts: Tensor, references: Tensor
) -> Tensor:
    """Each sample's class reference without the sample itself; a class of one keeps its reference."""
    without = F.normalize(sums.index_select(0, labels) - embeddings, dim=1)
    alone = counts.index_select(0, labels) < 2
    return torch.where(alone[:, None], references.index_select(0, labels), without)


def varcon_loss(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor,
    present: Tensor,
    epsilon: Tensor,
    temperature: float | Tensor,
    own: Tensor | None = None,
) -> tuple[Tensor, Terms]:
    """The loss of each sample [N] and its terms.

    `embeddings` [N, d] are unit vectors, `references` [C, d] the class references, of which those
    in the mask `present` [C] count. `own` [N, d] replaces each sample's reference of its own class.
    The gradient reaches `embeddings` and `epsilon`.
    """
    constants = references.detach(), present, None if own is None else own.detach()
    loss, *terms = _VarConLoss.apply(embeddings, epsilon, labels, *constants, temperature)
    return loss, Terms(*terms)


def varcon_loss_by_scores(
    scores: Tensor, labels: Tensor, present: Tensor, epsilon: Tensor, temperature: float | Tensor
) -> tuple[Tensor, Terms]:
    """The same from scores [N, C], the products of embeddings and references over the temperature.

    The gradient reaches `epsilon` and whatever made the scores, references too, at the price of matrices of
    their size.
    """
    log_p_of_all = scores.masked_fill(~present, -torch.inf).log_softmax(1).masked_fill(~present, 0)
    log_p = log_p_of_all.gather(1, labels[:, None])[:, 0]
    p = log_p.exp()
    tau2 = (temperature - epsilon) + 2 * epsilon * p
    a = 1 / tau2
    others = present.sum().to(scores.dtype) - 1  # C - 1
    # Q is near 1: by what it lacks to 1, here `rest`, the gradient of epsilon keeps its digits too.
    ahead = a - others.log()
    log_q, q, rest = F.logsigmoid(ahead), ahead.sigmoid(), (-ahead).sigmoid()
    kl = log_q - rest * a - q * log_p - (log_q - a).exp() * (log_p_of_all.sum(1) - log_p)
    return kl - log_p, Terms(*(term.detach() for term in (kl, -log_p, p, tau2, q)))


class _VarConLoss(torch.autograd.Function):
    """Forward computes the gradient too: it costs O(N d) once the attention pass is done."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        epsilon: Tensor,
        labels: Tensor,
        references: Tensor,
        present: Tensor,
        own: Tensor | None,
        temperature: float | Tensor,
    ) -> tuple[Tensor, ...]:
        others_mean, others_sum = attend_other_classes(z, references, present, labels, temperature)
        masked = references * present[:, None]
        in_the_total = masked.index_select(0, labels)  # [N, d]; four times as fast as masked[labels] on a CPU
        others_total = masked.sum(0) - in_the_total
        own = in_the_total if own is None else own  # whose class is present
        others = present.sum().to(z.dtype) - 1  # C - 1

        own_score = (z * own).sum(1) / temperature
        gap = others_sum - own_score
        log_p = -torch.logaddexp(torch.zeros_like(gap), gap)  # log p_r, exact also when p_r is near 1
        p = log_p.exp()
        others_log_p = (z * others_total).sum(1) / temperature - others * (own_score - log_p)  # T

        tau2 = (temperature - epsilon) + 2 * epsilon * p
        a = 1 / tau2
        log_d = torch.logaddexp(others.log(), a)  # e^a alone overflows half precision
        q = (a - log_d).exp()
        u = (-log_d).exp()
        kl = q * a - log_d - q * log_p - u * others_log_p
        loss = kl - log_p

        # 1 - Q is others * u: exact where Q rounds to 1.
        by_a = q * u * (others * (a - log_p) + others_log_p)
        by_log_p = -q - 1 - 2 * epsilon * p * a.square() * by_a
        # w_r - m = s (w_r - m'), with m = sum_k p_k w_k, m' the mean of the others and s = 1 - p_r, so that
        # by_log_p (w_r - m) - u (others_total - others m) takes three passes.
        from_others, far = own - others_mean, gap.sigmoid()
        by_z = from_others.mul_((far * (by_log_p - u * others))[:, None])
        by_z.addcmul_(own, (u * others)[:, None]).addcmul_(others_total, u[:, None], value=-1)
        by_epsilon = -a.square() * (2 * p - 1) * by_a
        ctx.save_for_backward(by_z.div_(temperature), by_epsilon, z)

        terms = (kl, -log_p, p, tau2, q)
        ctx.mark_non_differentiable(*terms)
        return (loss, *terms)

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        by_z, by_epsilon, z = ctx.saved_tensors
        gradients = by_loss[:, None] * by_z, (by_loss * by_epsilon).sum()
        return *first_only(gradients, z), None, None, None, None, None
