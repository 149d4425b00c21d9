"""Growth of the losses' time and memory with samples and classes: `python benchmarks/memory.py`.

VarCon compares samples with classes, pairwise SupCon samples with samples. One step is the loss of a fresh
forward pass and its gradient by float32 embeddings of 128 dimensions, as in loss.py; on a GPU it is timed as
a CUDA graph, since called one by one from Python the launches decide up to 65,536 samples. A batch holds no
more classes than samples; so that the growth with classes is seen, "all classes" compares with all of them,
present or not, by references that it keeps (`references="ema", classes="all"`). Extra memory is the most
that torch's allocator has lent out during a step beyond what it had before: on a GPU the caching allocator's
own count, on a CPU the sum of the allocations and releases that torch's profiler records. Both are exact and
repeat to the byte, where the process's resident size also holds what the C library keeps for later; neither
sees the scratch space inside a matrix product.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from loss import Loss, step
from timing import captured, surroundings, time_in_turn, time_on_gpu, write_table

from varcon import VarConLoss
from varcon.criterion import EPSILON
from varcon.data.assemble import available_memory
from varcon.reproduce.memory import MATRICES, TEMPERATURE, held_on_cpu, held_on_gpu, pairwise_supcon

SAMPLES = {"cpu": [2**power for power in range(10, 17)], "cuda": [2**power for power in range(10, 21)]}
CLASSES = {"cpu": [10, 100, 1000, 10_000], "cuda": [10, 100, 1000, 10_000, 100_000, 1_000_000]}
FITTED = {"samples": 4, "classes": 2}  # of the largest sizes: at small ones fixed costs hide the growth
LOSSES: dict[str, Callable[[int], Loss]] = {
    "VarCon": lambda classes: VarConLoss(classes, TEMPERATURE, EPSILON),
    "VarCon, all classes": lambda classes: VarConLoss(
        classes, TEMPERATURE, EPSILON, references="ema", classes="all"
    ),
    "SupCon, pairwise": lambda classes: pairwise_supcon,
}
LOOKS = {
    "VarCon": {"linestyle": "-", "marker": "o", "markerfacecolor": "black"},
    "VarCon, all classes": {"linestyle": ":", "marker": "^", "markerfacecolor": "black"},
    "SupCon, pairwise": {"linestyle": "--", "marker": "s", "markerfacecolor": "white"},
}


class Result(NamedTuple):
    seconds: float
    memory: int  # bytes


class Refused(Exception):
    """Why a size has no result."""


class Sweep(NamedTuple):
    along: str  # "samples" or "classes"
    fixed: str  # what the other is
    results: dict[str, dict[int, Result | str]]  # loss -> size -> result, or why there is none

    def measured(self, loss: str) -> dict[int, Result]:
        return {size: found for size, found in self.results[loss].items() if isinstance(found, Result)}

    def slope(self, loss: str, cost: str) -> float | None:
        """The power of the size with which the cost grows, by least squares over the largest sizes."""
        points = list(self.measured(loss).items())[-FITTED[self.along] :]
        if len(points) < 2:
            return None
        sizes, costs = zip(*((size, getattr(found, cost)) for size, found in points), strict=True)
        return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dimensions", type=int, default=128, help="of an embedding")
    parser.add_argument("--classes", type=int, default=1000, help="while the samples grow")
    parser.add_argument("--samples", type=int, default=4096, help="while the classes grow")
    parser.add_argument("--repeats", type=int, default=10, help="timed steps of each, at most")
    parser.add_argument(
        "--longest", type=float, default=20, help="seconds for a step; no size beyond is tried"
    )
    parser.add_argument(
        "--out", type=Path, help="a Markdown file to write the table to, and its plot as .svg"
    )
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    measure = partial(
        measured,
        dimensions=arguments.dimensions,
        repeats=arguments.repeats,
        longest=arguments.longest,
        device=device,
    )
    sweeps = [
        sweep(
            "samples",
            f"{arguments.classes:,} classes",
            [(n, n, arguments.classes) for n in SAMPLES[device]],
            measure,
        ),
        sweep(
            "classes",
            f"{arguments.samples:,} samples",
            [(c, arguments.samples, c) for c in CLASSES[device]],
            measure,
        ),
    ]
    count = "CUDA's caching allocator" if device == "cuda" else "torch's profiler"
    head = (
        f"The loss and its gradient, {arguments.dimensions} dimensions, float32; {surroundings(device)}; "
        f"median of up to {arguments.repeats} steps. "
        f"Extra MiB is the most that a step holds beyond its input, by {count}."
    )
    lines = ["| growing | fixed | size | loss | ms | extra MiB |", "|---|---|---:|---|---:|---:|"]
    lines += [row for each in sweeps for row in rows(each)]
    lines += ["", *(slopes(each) for each in sweeps)]
    if arguments.out:
        picture = arguments.out.with_suffix(".svg")
        lines += ["", f"![Time and memory against samples and classes]({picture.name})"]
        picture.parent.mkdir(parents=True, exist_ok=True)
        plot(sweeps, picture)
    write_table("Growth of the loss's time and memory", head, lines, arguments.out)
    return 0


def sweep(
    along: str, fixed: str, sizes: list[tuple[int, int, int]], measure: Callable[[str, int, int], Result]
) -> Sweep:
    """`sizes` are of what grows, of samples and of classes."""
    results: dict[str, dict[int, Result | str]] = {name: {} for name in LOSSES}
    for name, found in results.items():
        for size, samples, classes in sizes:
            try:
                found[size] = measure(name, samples, classes)
            except Refused as reason:
                found[size] = str(reason)
                break  # and no larger one
    return Sweep(along, fixed, results)


def measured(
    name: str, samples: int, classes: int, dimensions: int, repeats: int, longest: float, device: str
) -> Result:
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else available_memory() or math.inf
    needed = MATRICES * 4 * samples**2 if name.startswith("SupCon") else 0
    if needed > 0.8 * free:
        raise Refused(f"needs about {needed / 2**30:,.0f} GiB")
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(samples, dimensions, generator=generator).to(device).requires_grad_()
    labels = torch.randint(0, classes, (samples,), generator=generator).to(device)
    loss = LOSSES[name](classes)
    work = partial(step, loss.to(device) if isinstance(loss, VarConLoss) else loss, embeddings, labels)
    if device == "cuda":
        try:
            memory = held_on_gpu(work)
            replay = captured(work) if 2 * memory < free else None  # a graph has memory of its own
            return Result(time_on_gpu(replay or work, repeats), memory)
        except torch.cuda.OutOfMemoryError as error:
            raise Refused("runs out of memory") from error
        finally:
            torch.cuda.empty_cache()
    began = time.perf_counter()
    work()
    once = time.perf_counter() - began
    if once > longest:
        raise Refused(f"takes more than {longest:g} s")
    turns = max(1, min(repeats, int(longest / once)))
    return Result(time_in_turn({name: work}, turns, warm_up=0)[name], held_on_cpu(work))


def rows(each: Sweep) -> list[str]:
    found = []
    for name, results in each.results.items():
        for size, result in results.items():
            cells = f"{result} | "
            if isinstance(result, Result):
                cells = f"{result.seconds * 1000:,.2f} | {result.memory / 2**20:,.1f}"
            found.append(f"| {each.along} | {each.fixed} | {size:,} | {name} | {cells} |")
    return found


def slopes(each: Sweep) -> str:
    """In a sentence: 1 is growth in proportion to the samples, 2 to their square."""
    parts = []
    for name in each.results:
        seconds, memory = each.slope(name, "seconds"), each.slope(name, "memory")
        if seconds is not None and memory is not None:
            parts.append(f"{name}: time {seconds:z.2f}, memory {memory:z.2f}")
    return (
        f"Powers of the number of {each.along} with which each grows, fitted over the {FITTED[each.along]} "
        f"largest sizes measured: {'; '.join(parts)}."
    )


def plot(sweeps: list[Sweep], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained", facecolor="white")
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    for column, each in enumerate(sweeps):
        for row, (cost, label, unit) in enumerate(
            (("seconds", "milliseconds a step", 1e-3), ("memory", "extra MiB", 2**20))
        ):
            axes = panels[row, column]
            for name in each.results:
                found = each.measured(name)
                if not found:
                    continue
                slope = each.slope(name, cost)
                legend = name if slope is None else f"{name}: slope {slope:z.2f}"
                costs = [getattr(result, cost) / unit for result in found.values()]
                axes.plot(list(found), costs, color="black", label=legend, **LOOKS[name])
            axes.set_xscale("log")
            axes.set_yscale("log")
            sizes = max(each.results.values(), key=len)
            axes.set_xticks(list(sizes), [short(size) for size in sizes])
            axes.minorticks_off()
            axes.grid(True, color="0.85", linewidth=0.6)
            # Above the panel, where no curve runs under it.
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", frameon=False)
            if column == 0:
                axes.set_ylabel(label)
            if row == 1:
                axes.set_xlabel(f"{each.along} ({each.fixed})")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "varcon"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def short(size: int) -> str:
    """Powers of two count in 1024s, the others in thousands."""
    thousand = 1000 if size % 1024 else 1024
    for letter, unit in (("M", thousand**2), ("k", thousand)):
        if size >= unit:
            return f"{size // unit}{letter}"
    return str(size)


if __name__ == "__main__":
    sys.exit(main())
