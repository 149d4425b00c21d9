import os

# Before torch is imported anywhere, so that worker processes started by tests inherit it too.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)

if not torch.cuda.is_available():
    # Before triton is imported anywhere: where no GPU runs its kernels, numpy interprets them.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config, items):
    """Tests of the GPU itself exist only where there is one."""
    if not torch.cuda.is_available():
        items[:] = [item for item in items if item.get_closest_marker("gpu") is None]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def fresh_compiler() -> None:
    """For tests that compile: torch counts the versions of a function over all of them, and gives up at 8."""
    torch.compiler.reset()
