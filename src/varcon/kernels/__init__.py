"""The heavy inner passes: plain-torch twins that define the results, and GPU kernels that return the same."""

from __future__ import annotations

from importlib.util import find_spec

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


# Triton comes with torch for CUDA and not with torch for the CPU. None: installed, and not yet tried.
_fused_imports = None if find_spec("triton") else False


def triton_imports() -> bool:
    """Importing takes a quarter of a second, so it waits for the first embeddings that a kernel might take.

    The answer is kept in a plain variable: torch.compile looks through functools.cache, and warns.
    """
    global _fused_imports
    if _fused_imports is None:
        try:
            import varcon.kernels.fused  # noqa: F401

            _fused_imports = True
        except ImportError:
            _fused_imports = False
    return _fused_imports
