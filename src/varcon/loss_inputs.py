"""What VarConLoss can be given, and an error that names the cause where it cannot."""

from __future__ import annotations

import torch
from torch import Tensor

from varcon.core import InputError


def check_shapes(embeddings: Tensor, labels: Tensor) -> None:
    for name, value in (("embeddings", embeddings), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise InputError(
                f"{name} are of type {type(value).__name__}; give a tensor: torch.as_tensor({name})"
            )
    if embeddings.ndim == 3 and embeddings.is_floating_point():
        raise InputError(
            f"embeddings are of shape {list(embeddings.shape)} and the loss takes [N, d]; of several views "
            "of each sample, give embeddings.flatten(0, 1) and labels.repeat_interleave(views)"
        )
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"embeddings must be floats of shape [N, d], not {embeddings.dtype} "
            f"of shape {list(embeddings.shape)}"
        )
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(
            f"labels must be integers of shape [N], not {labels.dtype} of shape {list(labels.shape)}"
        )
    if len(embeddings) != len(labels):
        raise InputError(
            f"{len(embeddings)} embeddings came with {len(labels)} labels; "
            "with two views of a batch repeat the labels: labels.repeat(2)"
        )
    if len(labels) == 0:
        raise InputError("the batch is empty; the loss needs at least one sample")


def lengths(embeddings: Tensor) -> Tensor:
    """Of each embedding [N], in float32 or better."""
    kind = torch.promote_types(embeddings.dtype, torch.float32)
    return torch.linalg.vector_norm(embeddings.detach(), dim=1, dtype=kind)


def check_values(embeddings: Tensor, labels: Tensor, num_classes: int | None, shortest: float) -> None:
    if num_classes is None:
        if labels.min() < 0:
            raise InputError(f"label {int(labels.min())} is negative; labels count from 0")
    elif labels.min() < 0 or labels.max() >= num_classes:
        place = int(((labels < 0) | (labels >= num_classes)).nonzero()[0])
        raise InputError(
            f"label {int(labels[place])} of sample {place} is outside [0, {num_classes}); "
            "correct the label or raise num_classes"
        )
    norms = lengths(embeddings)
    if not norms.isfinite().all():
        place = int((~norms.isfinite()).nonzero()[0])
        if embeddings[place].isfinite().all():
            raise InputError(f"the embedding of sample {place} is too long for {norms.dtype}; scale it down")
        raise InputError(
            f"the embedding of sample {place} holds NaN or infinity; look for a diverging learning rate, "
            "half-precision overflow or NaN in the input"
        )
    if (norms <= shortest).any():
        place = int((norms <= shortest).nonzero()[0])
        if embeddings[place].any():
            raise InputError(f"the embedding of sample {place} is too short to be told from 0; scale it up")
        raise InputError(
            f"the embedding of sample {place} is zero and has no direction; look for a dead last layer "
            "or an input of zeros"
        )
