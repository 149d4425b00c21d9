"""What the benchmarks share: timing on either device, and a line that says what was measured where."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

Work = Callable[[], object]


def time_in_turn(contenders: dict[str, Work], repeats: int, warm_up: int = 3) -> dict[str, float]:
    """The median seconds of each on the processor, one after another within one loop, so that a busy
    moment of the machine falls on all."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + repeats):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def time_on_gpu(work: Work, repeats: int, warm_up: int = 5) -> float:
    """The median seconds between CUDA events around one call; waiting for the host counts."""
    for _ in range(warm_up):
        work()
    torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1000


def captured(work: Work, generator: torch.Generator | None = None) -> Work | None:
    """The same work as one CUDA graph: what remains is the device's own time. None if it asks the device
    for a value, which a graph cannot."""
    torch.cuda.set_sync_debug_mode("error")  # found out here, because a capture that fails leaves its marks
    try:
        work()
    except RuntimeError:
        return None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return as_graph(work, generator)


def as_graph(work: Work, generator: torch.Generator | None = None) -> Work:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def surroundings(device: str, *packages: str) -> str:
    """Date, hardware and versions, for the head of a table."""
    hardware = f"{processor()}, {torch.get_num_threads()} threads"
    if device == "cuda":
        hardware = torch.cuda.get_device_name()
    versions = [f"{name} {installed(name) or 'absent'}" for name in ("torch", *packages)]
    return ", ".join([str(date.today()), hardware, *versions])


def write_table(title: str, head: str, lines: list[str], out: Path | None) -> None:
    """Prints a Markdown table under a line that says what was measured where; `out` keeps it too."""
    table = "\n".join([head, "", *lines])
    print(f"{table}\n")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f"# {title}\n\n{table}\n", encoding="utf-8")


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
