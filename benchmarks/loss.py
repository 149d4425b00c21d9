"""Time the VarCon loss against its direct form and SupCon, gradient included: `python benchmarks/loss.py`.

One step is the loss of a fresh forward pass and its gradient by float32 embeddings of 128 dimensions. The
direct form is the definition with [samples x classes] matrices and automatic differentiation, over all
classes with the absent ones masked, or over those present, which the host must wait to be told; SupCon
compares all pairs of samples, in this project's plain form and in pytorch-metric-learning's. On a GPU the
steps are timed as Python calls them and, where they can be captured, as CUDA graphs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timing import (
    Work,
    captured,
    installed,
    surroundings,
    time_in_turn,
    time_on_gpu,
    write_table,
)
from torch import Tensor

from varcon import VarConLoss
from varcon.criterion import EPSILON
from varcon.engine.allocator import keep_freed_memory
from varcon.reproduce.memory import TEMPERATURE, held_on_gpu, pairwise_supcon

GPU_SIZES = [
    # samples, classes
    (1024, 10), (1024, 1000), (1024, 1_000_000), (8192, 10), (8192, 1000), (8192, 100_000),
    (8192, 1_000_000), (65_536, 10), (65_536, 1000), (65_536, 1_000_000),
]  # fmt: skip
CPU_SIZES = [(256, 10), (1024, 100), (2048, 1000)]
MATRICES = 8  # of samples x classes, or samples x samples, that a rival holds at its peak, about

Loss = Callable[[Tensor, Tensor], Tensor]


class Result(NamedTuple):
    called: float  # seconds
    as_graph: float | None
    memory: int | None  # bytes


class Refused(Exception):
    """Why a contender has no result."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dimensions", type=int, default=128, help="of an embedding")
    parser.add_argument("--repeats", type=int, default=30, help="timed steps of each")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    keep_freed_memory()  # as the command line does: else each pays for what the one before it has freed
    head = (
        f"The loss and its gradient, {arguments.dimensions} dimensions, float32; "
        f"{surroundings(device, 'triton', 'pytorch-metric-learning')}; median of {arguments.repeats}. "
        "Ratios are times that of the VarCon loss, as CUDA graphs where both can be one."
    )
    lines = [
        "| samples | classes | loss | ms | ms as a graph | extra MiB | times the time | times the memory |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for samples, classes in GPU_SIZES if device == "cuda" else CPU_SIZES:
        lines += rows(samples, classes, arguments.dimensions, arguments.repeats, device)
    write_table("Time and memory of the loss", head, lines, arguments.out)
    return 0


def rows(samples: int, classes: int, dimensions: int, repeats: int, device: str) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(samples, dimensions, generator=generator).to(device).requires_grad_()
    labels = torch.randint(0, classes, (samples,), generator=generator).to(device)
    results: dict[str, Result | str] = {}
    if device == "cuda":
        for name, (loss_fn, cells) in contenders(samples, classes, device).items():
            try:
                results[name] = measure_on_gpu(loss_fn, cells, embeddings, labels, repeats)
            except Refused as reason:
                results[name] = str(reason)
    else:
        steps: dict[str, Work] = {
            name: partial(step, loss_fn, embeddings, labels)
            for name, (loss_fn, _) in contenders(samples, classes, device).items()
        }
        for name, seconds in time_in_turn(steps, repeats).items():
            results[name] = Result(seconds, None, None)
    ours = results["VarCon"]
    assert isinstance(ours, Result)
    return [
        f"| {samples} | {classes} | {name} | {cells_of(result, ours)} |" for name, result in results.items()
    ]


def cells_of(result: Result | str, ours: Result) -> str:
    if isinstance(result, str):
        return f"{result} | | | |"
    graph = f"{result.as_graph * 1000:.3f}" if result.as_graph else "-"
    memory = f"{result.memory / 2**20:,.1f}" if result.memory is not None else "-"
    slower = (
        result.as_graph / ours.as_graph if result.as_graph and ours.as_graph else result.called / ours.called
    )
    larger = f"{result.memory / ours.memory:.1f}" if result.memory and ours.memory else "-"
    return f"{result.called * 1000:.3f} | {graph} | {memory} | {slower:.1f} | {larger}"


def measure_on_gpu(loss_fn: Loss, cells: int, embeddings: Tensor, labels: Tensor, repeats: int) -> Result:
    """`cells` is the size of the matrices that the contender makes; 0 if it makes none."""
    free = torch.cuda.mem_get_info()[0]
    if MATRICES * cells * 4 > free:
        raise Refused(f"needs about {MATRICES * cells * 4 / 2**30:,.0f} GiB")
    work = partial(step, loss_fn, embeddings, labels)
    try:
        called = time_on_gpu(work, repeats)
        memory = held_on_gpu(work)
    except torch.cuda.OutOfMemoryError as error:
        raise Refused("runs out of memory") from error
    finally:
        torch.cuda.empty_cache()
    as_graph = None
    if 2 * memory < free:  # a graph has memory of its own
        replay = captured(work)
        as_graph = time_on_gpu(replay, repeats) if replay else None
        del replay
        torch.cuda.empty_cache()
    return Result(called, as_graph, memory)


def step(loss_fn: Loss, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    loss = loss_fn(embeddings, labels)
    # Epsilon's gradient too, where the loss has one: it is a leaf of the same graph.
    loss.backward(inputs=[embeddings, *parameters(loss_fn)])
    gradient = embeddings.grad
    for leaf in (embeddings, *parameters(loss_fn)):
        leaf.grad = None
    assert gradient is not None
    return loss.detach(), gradient


def parameters(loss_fn: Loss) -> list[Tensor]:
    return [loss_fn.epsilon] if isinstance(loss_fn, VarConLoss | Direct) else []


def contenders(samples: int, classes: int, device: str) -> dict[str, tuple[Loss, int]]:
    """Each loss and the size of the matrices it makes."""
    found: dict[str, tuple[Loss, int]] = {
        "VarCon": (VarConLoss(classes, TEMPERATURE, EPSILON).to(device), 0),
        "VarCon, direct": (Direct(classes, device), samples * classes),
        "VarCon, direct, of those present": (
            DirectOfThosePresent(classes, device),
            samples * min(samples, classes),
        ),
        "SupCon, pairwise": (pairwise_supcon, samples * samples),
    }
    if installed("pytorch-metric-learning"):
        from pytorch_metric_learning.losses import SupConLoss

        found["SupCon, pytorch-metric-learning"] = SupConLoss(TEMPERATURE), samples * samples
    return found


class Direct:
    """KL(q || p) - log p_r by its definition, absent classes masked; the references are constants."""

    def __init__(self, classes: int, device: str) -> None:
        self.classes = classes
        self.epsilon = torch.tensor(EPSILON, device=device, requires_grad=True)

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        z = F.normalize(embeddings, dim=1)
        sums = z.new_zeros(self.classes, z.shape[1]).index_add_(0, labels, z.detach())
        present = z.new_zeros(self.classes).index_fill_(0, labels, 1) > 0
        absent = torch.where(present, 0.0, -torch.inf)
        log_p = (z @ F.normalize(sums, dim=1).T / TEMPERATURE + absent).log_softmax(1)  # [N, C]
        own = log_p.gather(1, labels[:, None])
        tau2 = (TEMPERATURE - self.epsilon) + 2 * self.epsilon * own.exp()
        log_q = (torch.zeros_like(log_p).scatter(1, labels[:, None], 1 / tau2) + absent).log_softmax(1)
        kl = (log_q.exp() * (log_q - log_p).masked_fill(~present, 0)).sum(1)
        return (kl - own[:, 0]).mean()


class DirectOfThosePresent(Direct):
    """The same with a column for each class of the batch alone."""

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        found, places = labels.unique(return_inverse=True)
        self.classes = len(found)
        return super().__call__(embeddings, places)


if __name__ == "__main__":
    sys.exit(main())
