"""Kernels that are compiled on all cores at once, not one by one as a first step comes upon them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.runtime import driver

LOCK = threading.Lock()  # Triton has one hook for all threads


@contextmanager
def compiled_together() -> Iterator[None]:
    """Kernels that are new are not launched in here: they are noted, and compiled at the end.

    So their results are left as memory was; this is for a pass that nobody reads the results of. What other
    threads launch is launched.
    """
    met: dict[str, Any] = {}
    this = threading.get_ident()

    def note(fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        if threading.get_ident() != this:
            return False
        met[compile["specialization_data"]] = fn.jit_function
        return True  # for Triton: somebody else sees to it

    with LOCK:
        knobs = triton.knobs.runtime
        before, knobs.jit_cache_hook = knobs.jit_cache_hook, note
        try:
            with torch.autograd.set_multithreading_enabled(False):  # a backward pass launches from here too
                yield
        finally:
            knobs.jit_cache_hook = before
        # A thread begins on the first GPU, whichever is this one's.
        gpu = driver.active.get_current_device()
        with ThreadPoolExecutor(
            cores(), initializer=driver.active.set_current_device, initargs=(gpu,)
        ) as pool:
            for _ in pool.map(make_ready, met.values(), met):
                pass


def cores() -> int:
    """Half of a compilation holds Python's lock, and more threads than cores would only fight for it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_ready(kernel: Any, specialization: str) -> None:
    compiled = kernel.preload(specialization)
    if compiled is not None:
        _ = compiled.run  # which builds what launches it, by a C compiler, and takes as long again
