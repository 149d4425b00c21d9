"""The C library's memory allocator, set for training on a CPU."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # mallopt's numbers for them


def keep_freed_memory() -> bool:
    """Lets the process keep what it frees; true where the allocator took the setting.

    By default glibc returns large blocks to the system as soon as they are freed, and every training step
    faults the pages of its activations in anew: about a tenth of a step on a CPU. It holds for the
    whole process, so only the command line, which owns its process, asks for it.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # a C library without it, such as musl
        return False
    settings = {MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 64 * 2**20}
    return all(mallopt(name, value) == 1 for name, value in settings.items())
