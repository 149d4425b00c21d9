"""The processor's cores: how many other programs leave free, and as many threads."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

STATISTICS = Path("/proc/stat")  # Linux's, since it was started: a row for each core
SHARE = Path("/sys/fs/cgroup/cpu.max")  # of a container, in microseconds of a period
IDLE = slice(3, 5)  # of a core's row: time with nothing to do, and waiting for a disk
SECONDS_TO_LOOK = 0.25  # the rows count hundredths
SPARE = 0.25  # of a core that counts as free all the same: there is always something going on


def use_free_cores(seconds: float = SECONDS_TO_LOOK) -> str:
    """Lowers torch's threads to the cores that are free and says so; says nothing where it leaves them.

    An operation waits for the last of its threads. Where one of them shares its core with another program,
    two threads take longer than one alone. It holds for the whole process, so only the command line, which
    owns its process, asks for it.
    """
    threads = torch.get_num_threads()
    if threads == 1 or "OMP_NUM_THREADS" in os.environ or torch.cuda.is_available():
        return ""
    free = free_cores(seconds)
    if free + SPARE < threads:
        free = max(free, free_cores(2 * seconds))  # it may have been for a moment only
    if free + SPARE >= threads:
        return ""
    fewer = max(1, int(free + SPARE))
    torch.set_num_threads(fewer)
    return (
        f"other programs leave about {free:.1f} cores free: computing with {counted(fewer)} instead of "
        f"{threads} (OMP_NUM_THREADS={threads} keeps them)"
    )


@contextmanager
def threads_as_begun(threads: int | None) -> Iterator[None]:
    """With as many as a run was begun with, where that is known: other numbers round differently."""
    now = torch.get_num_threads()
    if threads is None or "OMP_NUM_THREADS" in os.environ:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(now)


def free_cores(seconds: float) -> float:
    """Of the cores that this process may use, as long as it is idle itself; all where nobody can tell."""
    if not hasattr(os, "sched_getaffinity"):
        return math.inf
    try:
        before = times_of_cores()
        time.sleep(seconds)
        after = times_of_cores()
        ours = os.sched_getaffinity(0)
        return min(share_of_container(), sum(idle_share(before[core], after[core]) for core in ours))
    except (OSError, ValueError, KeyError):  # rows of another kind, or none of a core that is ours
        return math.inf


def times_of_cores() -> dict[int, list[int]]:
    rows = (line.split() for line in STATISTICS.read_text().splitlines())
    return {int(row[0][3:]): [*map(int, row[1:9])] for row in rows if row and row[0][3:].isdigit()}


def idle_share(before: list[int], after: list[int]) -> float:
    passed = [now - then for then, now in zip(before, after, strict=True)]
    return sum(passed[IDLE]) / sum(passed) if sum(passed) else 1.0


def share_of_container() -> float:
    """The cores' worth of time that a container may take, though it may see more cores."""
    if not SHARE.exists():
        return math.inf
    most, period = SHARE.read_text().split()
    return math.inf if most == "max" else int(most) / int(period)


def counted(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
