"""What tests of kernels share: pictures to change, and Triton's compiler in place of its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, height: int, width: int) -> torch.Tensor:
    """Smooth colours with some noise on them, on the GPU where there is one."""
    coarse = torch.rand(n, 3, 4, 4, generator=seeded(1))
    smooth = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
    noise = 0.1 * torch.randn(n, 3, height, width, generator=seeded(2))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (255 * (smooth + noise)).clamp(0, 255).byte().to(device)


DRIVER = """
import threading
import torch, triton
from triton.backends.compiler import GPUTarget

capability = 90
launched, built, loaded_on, shared = [], [], [], {}
here = threading.local()

class Launcher:
    def __init__(self, source, metadata):
        self.name = metadata.name
        built.append(self.name)
        shared[self.name] = metadata.shared

    def __call__(self, *arguments):
        launched.append(self.name)

class Utils:
    def load_binary(self, name, kernel, shared, device):
        loaded_on.append(device)
        return object(), 0, 0, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 1 << 18}

    def unload_module(self, module):
        pass

class Driver:
    utils, launcher_cls = Utils(), Launcher

    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return getattr(here, "device", 0)

    def set_current_device(self, device):
        here.device = device

    def get_current_stream(self, device):
        return 0

triton.runtime.driver.set_active(Driver())
"""  # of a GPU that is not there: it compiles what is launched, and notes it


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from varcon.augment import AugmentSettings
from varcon.augment.ops import Normalisation

TYPES = {"views": "*bf16", "images": "*u8", "indices": "*i64", "uniforms": "*fp32", "choices": "*fp32"}
LEVELS = Normalisation((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))

def compile(kernel, constants):
    types = TYPES | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature, constants)
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    print(sorted({"ptx", "cubin"} & found.asm.keys()))
"""


def run_with_compiler(script: str, cache: Path, **variables: str) -> str:
    """What a script prints whose kernels Triton compiles, with nothing compiled yet."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=surroundings | {"TRITON_CACHE_DIR": str(cache)} | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
