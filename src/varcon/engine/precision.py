"""The type that a step computes in, and weights cast to a short one together."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")  # of processors, as torch names them


def working_type(precision: str, device: torch.device) -> torch.dtype:
    """In which convolutions and products are computed."""
    if precision == "auto":
        return torch.bfloat16 if computes_in_bf16(device) else torch.float32
    return DTYPES[precision]


@cache
def computes_in_bf16(device: torch.device) -> bool:
    """By instructions of its own. Processors without them are several times slower in bf16 than in fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(name) for name in BF16_INSTRUCTIONS)


class CastTogether:
    """A module whose convolutions' weights are cast all at once, and so are their gradients.

    Autocast does the same one by one: in a ResNet-50 that is a hundred kernels a step, each of them shorter
    than the time it takes to begin. Only convolutions: other layers may want their weights in full, and a
    teacher's are autocast's.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module, self.dtype = module, dtype
        self.weights = {
            f"{name}.weight": layer.weight
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Conv2d) and layer.weight.requires_grad
        }

    def __call__(self, *inputs: Any) -> Any:
        short = _Cast.apply(self.dtype, *self.weights.values())
        named = dict(zip(self.weights, short, strict=True))
        # A layer that a method knows by two names is one layer, and changed once.
        return functional_call(self.module, named, inputs, tie_weights=False)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a layer that was not used learns nothing
        return tuple(cast(list(weights), dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        used = cast([gradient for gradient in gradients if gradient is not None], torch.float32)
        return None, *(None if gradient is None else used.pop(0) for gradient in gradients)


def cast(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    results = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if results:
        torch._foreach_copy_(results, tensors)
    return results
