"""The whole VarCon loss of a batch in three kernels, whose one gradient is ready when the loss is.

No step asks the device for a value, so all of it can be captured in a CUDA graph. Beyond its results it
takes memory for the class sums and, in 16 bits, the references: nothing of size [samples x classes].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from varcon.kernels import loss_kernels, on_device_of
from varcon.losses.derivatives import first_only

SUMMED_ROWS = 16  # samples a program adds to their classes
ROOMY = {(8, 0), (9, 0), (10, 0), (10, 3)}  # GPUs with 163 KiB of shared memory or more; others have 99

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Blocks(NamedTuple):
    """The shape of the attention pass: what a program holds in registers and shared memory at a time."""

    rows: int  # samples of a program; 64 are a row of Hopper's matrix unit
    classes: int
    warps: int


def blocks_for(width: int, split: bool, roomy: bool) -> Blocks:
    """The largest that leaves the inner loop free of spilled registers, read off the compiled kernels, and
    that fits into the shared memory."""
    if width <= 128:
        return Blocks(rows=64, classes=64, warps=4)
    if not roomy:
        return Blocks(rows=32, classes=16, warps=8 if split and width > 256 else 4)
    if width <= 256:
        return Blocks(rows=64, classes=32, warps=8)
    return Blocks(rows=32, classes=16, warps=8) if split else Blocks(rows=64, classes=32, warps=8)


@cache
def is_roomy(device: torch.device) -> bool:
    """Whether the largest blocks fit into its shared memory; where kernels are interpreted, all do."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in ROOMY


def padded_width(width: int) -> int:
    """A block's columns: a power of 2, and at least what the tensor cores take."""
    return max(16, 1 << (width - 1).bit_length())


def blocks_in(length: int, size: int) -> int:
    return -(-length // size)


def opaque(fake: Callable[Arguments, Result]) -> Callable[..., Callable[Arguments, Result]]:
    """A function that torch.compile calls without looking inside; `fake` tells it the shapes.

    Eager code calls the function itself: the way through torch's dispatcher takes longer than a launch.
    """

    def wrap(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        operator = torch.library.custom_op(f"varcon::{function.__name__}", function, mutates_args=())
        operator.register_fake(fake)

        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return (operator if torch.compiler.is_compiling() else function)(*args, **kwargs)

        return call

    return wrap


def split_sums(class_sums: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    """The sums [C, d] and the counts [C] out of what `sum_classes` returns."""
    classes = len(class_sums) // (dimensions + 1)
    return class_sums[: classes * dimensions].view(classes, dimensions), class_sums[classes * dimensions :]


@opaque(lambda embeddings, labels, num_classes, normalize: embeddings.new_empty(
    num_classes * (embeddings.shape[1] + 1), dtype=torch.float32
))  # fmt: skip
def sum_classes(embeddings: Tensor, labels: Tensor, num_classes: int, normalize: bool) -> Tensor:
    """Every class's sum of embeddings and then its count, in one vector: one exchange between processes.

    A label outside [0, num_classes) counts for the nearest class. The order of the additions is the
    same in every run only under torch.use_deterministic_algorithms, because a sort takes its time.
    """
    samples, width = embeddings.shape
    embeddings, labels = embeddings.contiguous(), labels.contiguous()
    constants = {"NORMALIZE": normalize, "ROWS": SUMMED_ROWS, "WIDTH": padded_width(width)}
    length = num_classes * (width + 1)
    if torch.are_deterministic_algorithms_enabled():
        class_sums = embeddings.new_empty(length, dtype=torch.float32)
        sorted_labels, order = labels.clamp(0, num_classes - 1).sort(stable=True)
        starts = torch.searchsorted(
            sorted_labels, torch.arange(num_classes + 1, dtype=sorted_labels.dtype, device=labels.device)
        )
        with on_device_of(embeddings):
            loss_kernels.sum_sorted_classes[(num_classes,)](
                embeddings, order, starts, class_sums, num_classes, width, **constants
            )
    else:
        class_sums = embeddings.new_zeros(length, dtype=torch.float32)
        with on_device_of(embeddings):
            loss_kernels.add_to_classes[(blocks_in(samples, SUMMED_ROWS),)](
                embeddings, labels, class_sums, samples, num_classes, width, **constants
            )
    return class_sums


def _results(embeddings: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for the loss, its derivative by epsilon, the terms, and its derivative by the embeddings."""
    samples = len(embeddings)
    shapes: tuple[tuple[int, ...], ...] = (), (), (5, samples), (samples, embeddings.shape[1])
    loss, by_epsilon, terms, by_embeddings = (
        embeddings.new_empty(shape, dtype=torch.float32) for shape in shapes
    )
    return loss, by_epsilon, terms, by_embeddings


@opaque(_results)
def loss_and_gradients(
    embeddings: Tensor,
    epsilon: Tensor,
    labels: Tensor,
    class_sums: Tensor,
    bank: Tensor | None,
    known: Tensor | None,
    temperature: float,
    temperature_now: Tensor | None,
    processes: int,
    leave_one_out: bool,
    all_classes: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, its derivative by epsilon, the terms [5, N], and its derivative by the embeddings [N, d]."""
    samples, width = embeddings.shape
    embeddings, labels = embeddings.contiguous(), labels.contiguous()
    classes = len(class_sums) // (width + 1)
    padded = padded_width(width)
    split = embeddings.dtype == torch.float32
    blocks = blocks_for(padded, split, is_roomy(embeddings.device))
    padded_classes = blocks_in(classes, blocks.classes) * blocks.classes
    programs = blocks_in(samples, blocks.rows)
    parts = min(64, 64 * 128 // padded)  # which every program of the second kernel adds up, in one load

    references = embeddings.new_empty((1 + split) * padded_classes * padded, dtype=torch.float16)
    scratch = class_sums.new_empty(padded_classes + parts * (padded + 2) + 1 + 2 * programs)
    loss, by_epsilon, terms, by_embeddings = _results(embeddings)
    with on_device_of(embeddings):
        loss_kernels.make_references[(min(parts, padded_classes // loss_kernels.REFERENCE_ROWS.value),)](
            class_sums, bank, known, references, scratch, classes, padded_classes, width,
            ALL_CLASSES=all_classes, SPLIT=split, WIDTH=padded, PARTS=parts,
        )  # fmt: skip
        loss_kernels.loss_and_gradient[(programs,)](
            embeddings, epsilon, labels, class_sums, bank, known, references, scratch,
            loss, by_epsilon, terms, by_embeddings,
            samples, classes, padded_classes, width, temperature, temperature_now, float(processes),
            NORMALIZE=normalize, LEAVE_ONE_OUT=leave_one_out, SPLIT=split,
            ROWS=blocks.rows, CLASSES=blocks.classes, WIDTH=padded, PARTS=parts,
            num_warps=blocks.warps, num_stages=2,
        )  # fmt: skip
    return loss, by_epsilon, terms, by_embeddings


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, epsilon: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        loss, by_epsilon, terms, by_embeddings = loss_and_gradients(embeddings, epsilon, *arguments)
        ctx.save_for_backward(by_embeddings, by_epsilon, embeddings)
        ctx.types = embeddings.dtype, epsilon.dtype
        ctx.mark_non_differentiable(terms)
        ctx.set_materialize_grads(False)  # or zeros are launched for the terms
        return loss, terms

    @staticmethod
    def backward(ctx: Any, by_loss: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad
        if by_loss is None:
            return (None,) * len(wanted)
        *derivatives, embeddings = ctx.saved_tensors
        with torch.no_grad():
            gradients = tuple(
                # Multiplied and converted in one launch; float16 could not hold the unscaled derivative.
                torch.mul(derivative, by_loss, out=torch.empty_like(derivative, dtype=kind)) if need else None
                for derivative, kind, need in zip(derivatives, ctx.types, wanted, strict=False)
            )
        return *first_only(gradients, embeddings), *[None] * (len(wanted) - 2)


def fused_varcon_loss(
    embeddings: Tensor,
    epsilon: Tensor,
    labels: Tensor,
    class_sums: Tensor,
    temperature: float,
    bank: Tensor | None = None,
    known: Tensor | None = None,
    *,
    temperature_now: Tensor | None = None,
    all_classes: bool = False,
    leave_one_out: bool = False,
    normalize: bool = True,
    processes: int = 1,
) -> tuple[Tensor, Tensor]:
    """The loss of this process's samples, as its share of the batch, and the terms of each [5, N].

    `class_sums` is `sum_classes` of the batch, summed over the processes. The references come from it or,
    for the `known` [C] classes, from `bank` [C, d]; `all_classes` contrasts those too that are known and
    not in the batch. `temperature_now`, a float32 number on the device, stands for the temperature. A bad
    label or a zero vector makes the loss NaN and has no gradient.
    """
    return _FusedLoss.apply(
        embeddings, epsilon, labels, class_sums, bank, known,
        temperature, temperature_now, processes, leave_one_out, all_classes, normalize,
    )  # fmt: skip
