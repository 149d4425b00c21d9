"""What a step of a loss costs: its time, and the most memory that it holds beyond its input."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from varcon.core import OnProgress
from varcon.criterion import TEMPERATURE, VarConLoss
from varcon.data.assemble import available_memory
from varcon.losses.supcon import supcon
from varcon.reproduce.entries import Entry
from varcon.reproduce.setup import Setup

Work = Callable[[], object]
DIMENSIONS = 128
MATRICES = 5  # of samples x samples that SupCon over all pairs holds at its peak
FIXED_CLASSES = 1000
SIZES = {  # samples that grow at so many classes, classes that grow, and the samples at which they do
    "smoke": ((512, 1024, 2048, 4096), (10, 100, 1000, 10_000), 1024),
    "small": ((1024, 2048, 4096, 8192, 16_384), (10, 100, 1000, 10_000), 4096),
    "paper": ((1024, 2048, 4096, 8192, 16_384, 32_768), (10, 100, 1000, 10_000, 100_000), 8192),
}
REPEATS = 5


class Cost(NamedTuple):
    seconds: float
    memory: int  # bytes


def pairwise_supcon(embeddings: Tensor, labels: Tensor) -> Tensor:
    places = torch.arange(len(labels), device=labels.device)
    embeddings = torch.nn.functional.normalize(embeddings, dim=1)
    return supcon(embeddings, labels, embeddings, labels, places, TEMPERATURE).mean()


def growth(setup: Setup, device: str, progress: OnProgress) -> list[Entry]:
    """Entries by samples and by classes; a size whose matrices do not fit is left out."""
    by_samples, by_classes = sizes(setup.scale.name)
    every = dict.fromkeys([*by_samples, *by_classes])
    entries = []
    for number, (samples, classes) in enumerate(every):
        progress(number, len(every), "measuring the losses")
        for name in ("VarCon", "SupCon"):
            cost = measure(name, samples, classes, device)
            if cost is not None:
                row = row_of(samples, classes)
                entries.append(Entry(row, f"{name}, MiB", measured=cost.memory / 2**20, decimals=1))
                entries.append(Entry(row, f"{name}, ms", measured=cost.seconds * 1000))
    return sorted(entries, key=lambda entry: entry.column.endswith("ms"))


def sizes(scale: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Samples and classes, first where the samples grow, then where the classes do."""
    samples, classes, fixed = SIZES[scale]
    return [(count, FIXED_CLASSES) for count in samples], [(fixed, count) for count in classes]


def row_of(samples: int, classes: int) -> str:
    return f"{samples:,} samples, {classes:,} classes"


def measure(name: str, samples: int, classes: int, device: str) -> Cost | None:
    """Of the loss with its gradient, as the median of some steps."""
    on_gpu = torch.device(device).type == "cuda"
    free = torch.cuda.mem_get_info()[0] if on_gpu else available_memory() or math.inf
    if name == "SupCon" and MATRICES * 4 * samples**2 > 0.8 * free:
        return None
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(samples, DIMENSIONS, generator=generator).to(device).requires_grad_()
    labels = torch.randint(0, classes, (samples,), generator=generator).to(device)
    loss = VarConLoss(classes, TEMPERATURE).to(device) if name == "VarCon" else pairwise_supcon
    work = partial(step, loss, embeddings, labels)
    work()  # the first one warms up
    seconds = []
    for _ in range(REPEATS):
        synchronise(on_gpu)
        began = time.perf_counter()
        work()
        synchronise(on_gpu)
        seconds.append(time.perf_counter() - began)
    embeddings.grad = None  # not to be freed while memory is counted: the count would know nothing of it
    return Cost(statistics.median(seconds), (held_on_gpu if on_gpu else held_on_cpu)(work))


def step(loss: Callable[[Tensor, Tensor], Tensor], embeddings: Tensor, labels: Tensor) -> None:
    embeddings.grad = None
    loss(embeddings, labels).backward()


def synchronise(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def held_on_gpu(work: Work) -> int:
    """The most bytes that a call holds on the GPU beyond what was there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def held_on_cpu(work: Work) -> int:
    """The most bytes that torch holds on the CPU during a call beyond what it held before."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted(
        (event["ts"], event["args"]["Ev Idx"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0
    )
    return int(np.cumsum([change for *_, change in changes]).max(initial=0))
