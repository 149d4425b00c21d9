"""Kernels compiled together for a GPU that is not there: Triton is given a driver that notes launches."""

import pytest
from references.kernels import DRIVER, run_with_compiler

GPU = f"""{DRIVER}
from varcon.kernels.ahead import compiled_together
from varcon.kernels.batch_norm import _moments_kernel, _parameter_gradients_kernel

compiled = []
triton.knobs.runtime.jit_post_compile_hook = lambda fn, **_: compiled.append(fn.name)
x, sums, totals = torch.zeros(64, 16), torch.zeros(8, 2, 16), torch.zeros(2, 16)

def moments(tile):
    _moments_kernel[(1,)](x, sums, 64, 16, 64, tile, 16, 1)

def gradients():
    _parameter_gradients_kernel[(1, 2)](sums, totals, 16, 8, 2, 8, 16)
"""

TOGETHER = """
here.device = 1  # not where a thread begins
moments(8)
assert launched == compiled == built == ["_moments_kernel"]
with compiled_together():
    for _ in range(3):
        moments(8)  # which is no longer new
        moments(16)
        gradients()
    assert compiled == ["_moments_kernel"]
assert launched == ["_moments_kernel"] * 4
new = ["_moments_kernel", "_parameter_gradients_kernel"]
assert sorted(compiled[1:]) == sorted(built[1:]) == new
moments(16)
gradients()
assert launched[4:] == new
assert len(compiled) == len(built) == 3
moments(32)  # compiled as it is met, as ever
assert len(compiled) == len(launched) - 3 == 4
assert loaded_on == [1] * 4
"""

ANOTHER_THREAD = """
with compiled_together():
    other = threading.Thread(target=moments, args=(8,))
    other.start()
    other.join()
    assert launched == compiled == ["_moments_kernel"]
    gradients()
assert launched == ["_moments_kernel"]
assert sorted(compiled) == ["_moments_kernel", "_parameter_gradients_kernel"]
"""

FAILING = """
def raises(*arguments, **options):
    raise RuntimeError("no memory")

_moments_kernel.compile = raises
import triton.compiler
triton.compiler.compile = raises
try:
    with compiled_together():
        moments(8)
except RuntimeError as error:
    print(error)
try:
    with compiled_together():
        raise KeyError("the pass itself")
except KeyError as error:
    print(error)
assert triton.knobs.runtime.jit_cache_hook is None
"""


@pytest.mark.parametrize(
    ("script", "said"), [(TOGETHER, ""), (ANOTHER_THREAD, ""), (FAILING, "no memory\n'the pass itself'\n")]
)
def test_compiled_together(script, said, tmp_path):
    assert run_with_compiler(GPU + script, tmp_path) == said
