"""Time the vote of nearest neighbours against scikit-learn's and a plain search: `python benchmarks/knn.py`.

Queries of some classes vote with their nearest neighbours in a bank of features, float32, by cosine and
exp(similarity / 0.07). The plain search holds the similarities of all queries at once. Memory is what a
call takes at its peak beyond the features, which are there before; processor time tells a slow contender
from a machine that was busy with something else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from timing import surroundings, time_on_gpu, write_table
from torch import Tensor

from varcon.evaluations.knn import knn_votes
from varcon.reproduce.memory import held_on_gpu

TEMPERATURE = 0.07
CLASSES = 100
NOISE = 3.0  # of a feature, where its class has 1: neighbours are then of several classes

Vote = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # queries, bank, its labels, neighbours -> classes


class Result(NamedTuple):
    seconds: float
    processor: float | None  # seconds, of all threads together
    memory: int | None  # bytes
    predictions: Tensor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--bank", type=int, default=50_000, help="features to search")
    parser.add_argument("--dimensions", type=int, default=2048, help="of a feature")
    parser.add_argument("--neighbours", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3, help="timed calls of each")
    parser.add_argument("--out", type=Path, help="a Markdown file to write the table to")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head = (
        f"{arguments.queries:,} queries against {arguments.bank:,} features of {arguments.dimensions} "
        f"dimensions, {arguments.neighbours} neighbours, {CLASSES} classes; "
        f"{surroundings(device, 'scikit-learn')}; median of {arguments.repeats}."
    )
    lines = [
        "| device | search | s | processor s | extra MiB | times the time | same predictions |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(CLASSES, arguments.dimensions, generator=generator)
    bank, labels = draw(means, arguments.bank, generator)
    queries, _ = draw(means, arguments.queries, generator)
    for where in ("cpu", "cuda") if device == "cuda" else ("cpu",):
        results = {}
        for name, vote in contenders(where).items():
            work = partial(vote, queries.to(where), bank.to(where), labels.to(where), arguments.neighbours)
            measured = measure_on_gpu if where == "cuda" else measure
            results[name] = measured(work, arguments.repeats)
        lines += [f"| {where} | {name} | {cells_of(r, results['varcon'])} |" for name, r in results.items()]
    write_table("Time and memory of the search for neighbours", head, lines, arguments.out)
    return 0


def draw(means: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randint(0, len(means), (count,), generator=generator)
    noise = torch.randn(count, means.shape[1], generator=generator)
    return noise.mul_(NOISE).add_(means[labels]), labels


def contenders(device: str) -> dict[str, Vote]:
    found: dict[str, Vote] = {"varcon": by_varcon, "torch topk, all at once": at_once}
    if device == "cpu":
        found["scikit-learn, brute force"] = by_scikit_learn
    return found


def by_varcon(queries: Tensor, bank: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    return knn_votes(queries, bank, labels, CLASSES, [neighbours], TEMPERATURE)[neighbours].argmax(dim=1)


def at_once(queries: Tensor, bank: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    similarity = F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T  # [queries, bank]
    nearest = similarity.topk(neighbours, dim=1)
    weights = ((nearest.values - 1) / TEMPERATURE).exp()
    votes = weights.new_zeros(len(queries), CLASSES).scatter_add_(1, labels[nearest.indices], weights)
    return votes.argmax(dim=1)


def by_scikit_learn(queries: Tensor, bank: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    from sklearn.neighbors import KNeighborsClassifier

    def weights(distances: np.ndarray) -> np.ndarray:
        return np.exp(-distances / TEMPERATURE)

    model = KNeighborsClassifier(neighbours, weights=weights, algorithm="brute", metric="cosine")
    return torch.from_numpy(model.fit(bank.numpy(), labels.numpy()).predict(queries.numpy()))


def measure(work: Callable[[], Tensor], repeats: int) -> Result:
    """On the processor. Without a warm-up: a call takes long enough to hide what the first one costs."""
    seconds, processor = [], []
    before = reset_peak()
    for _ in range(repeats):
        start, busy = time.perf_counter(), time.process_time()
        predictions = work()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
    memory = None if before is None else peak() - before
    return Result(statistics.median(seconds), statistics.median(processor), memory, predictions)


def measure_on_gpu(work: Callable[[], Tensor], repeats: int) -> Result:
    return Result(time_on_gpu(work, repeats, warm_up=1), None, held_on_gpu(work), work())


def reset_peak() -> int | None:
    """Forgets the process's peak of memory and returns the bytes it holds; None where that cannot be."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return peak()


def peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def cells_of(result: Result, ours: Result) -> str:
    processor = f"{result.processor:.1f}" if result.processor is not None else "-"
    memory = f"{result.memory / 2**20:,.0f}" if result.memory is not None else "-"
    same = (result.predictions == ours.predictions).double().mean().item()
    slower = result.seconds / ours.seconds
    return f"{result.seconds:.3f} | {processor} | {memory} | {slower:.1f} | {100 * same:.2f} %"


if __name__ == "__main__":
    sys.exit(main())
