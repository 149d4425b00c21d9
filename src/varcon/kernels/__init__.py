"""The heavy inner passes: plain-torch twins that define the results, and GPU kernels that return the same."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

FUSED_DEVICES = {"cuda"}  # the tests add the CPU, where Triton interprets its kernels
FUSED_TYPES = {torch.float32, torch.bfloat16, torch.float16}
FUSED_DIMENSIONS = 512  # of wider embeddings a block no longer fits into a processor's registers


def fused_serves(embeddings: Tensor) -> bool:
    """Whether varcon.kernels.fused takes these embeddings; if not, the plain-torch twins do."""
    return (
        embeddings.device.type in FUSED_DEVICES
        and embeddings.dtype in FUSED_TYPES
        and embeddings.shape[1] <= FUSED_DIMENSIONS
        and triton_imports()
    )


@torch.compiler.assume_constant_result  # a compiler has nothing to look for in here
def triton_imports() -> bool:
    """Triton comes with torch for CUDA and not with torch for the CPU."""
    return _import_fused()


@cache  # importing takes a quarter of a second, and failing to import takes its time at every call
def _import_fused() -> bool:
    try:
        import varcon.kernels.fused  # noqa: F401
    except ImportError:
        return False
    return True
