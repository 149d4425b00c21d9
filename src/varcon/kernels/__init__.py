"""The heavy inner passes: plain-torch twins that define the results, and GPU kernels that return the same."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

# Triton comes with torch for CUDA and not with torch for the CPU. Asked here and nowhere else: a file of
# kernels imports it outright, and is imported only where it serves, for that takes a quarter of a second.
HAS_TRITON = find_spec("triton") is not None

LOSS_DEVICES = {"cuda"}  # the tests add the CPU, where Triton interprets its kernels
LOSS_TYPES = {torch.float32, torch.bfloat16, torch.float16}
LOSS_DIMENSIONS = 512  # of wider embeddings a block no longer fits into a processor's registers
LOSS_GENERATION = 8  # Ampere; what came before has too little shared memory


def loss_kernel_serves(embeddings: Tensor) -> bool:
    """Whether varcon.kernels.fused_loss takes these embeddings; if not, the plain-torch twin does."""
    return (
        HAS_TRITON
        and embeddings.device.type in LOSS_DEVICES
        and embeddings.dtype in LOSS_TYPES
        and embeddings.shape[1] <= LOSS_DIMENSIONS
        and (not embeddings.is_cuda or has_shared_memory(embeddings.device))
    )


def has_shared_memory(device: torch.device) -> bool:
    """Whether the loss's blocks fit into it; torch.compile takes a device's properties for constants."""
    return torch.cuda.get_device_properties(device).major >= LOSS_GENERATION


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Within it kernels are launched where the tensor lies; else Triton takes the current device."""
    return torch.cuda.device_of(tensor) if tensor.is_cuda else nullcontext()
