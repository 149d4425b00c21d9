"""Kernels that are compiled on all cores at once, not one by one as a first step comes upon them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton


@contextmanager
def compiled_together() -> Iterator[None]:
    """Kernels that are new are not launched in here: they are noted, and compiled at the end.

    So their results are left as memory was; this is for a pass that nobody reads the results of.
    """
    met: dict[str, Any] = {}

    def note(fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        met[compile["specialization_data"]] = fn.jit_function
        return True  # for Triton: somebody else sees to it

    knobs = triton.knobs.runtime
    before, knobs.jit_cache_hook = knobs.jit_cache_hook, note
    try:
        yield
    finally:
        knobs.jit_cache_hook = before
    # Half of a compilation is done without Python's lock; more threads than cores would only fight for it.
    with ThreadPoolExecutor(os.cpu_count()) as cores:
        for _ in cores.map(make_ready, met.values(), met):
            pass


def make_ready(kernel: Any, specialization: str) -> None:
    compiled = kernel.preload(specialization)
    if compiled is not None:
        _ = compiled.run  # which builds what launches it, by a C compiler, and takes as long again
