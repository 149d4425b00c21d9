"""What holds for the package as a whole: importing it, and what the README shows."""

import re
import subprocess
import sys
from pathlib import Path

import torch

BLOCKED = """
import sys
for name in ("torchvision", "timm", "kornia", "lightly", "triton"):
    sys.modules[name] = None
import varcon, varcon.cli, varcon.run
from varcon import *
assert varcon.VarConLoss(3) is not None
"""

TIMED = """
import time, torch
began = time.perf_counter()
import varcon
varcon.VarConLoss
print(time.perf_counter() - began)
"""


def python(code):
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)


def test_imports_where_torchvision_is_missing():
    done = python(BLOCKED)
    assert done.returncode == 0, done.stderr


def test_imports_quickly():
    """At most 0.5 s beyond torch's own import; the best of three, as other work may share the machine."""
    seconds = []
    for _ in range(3):
        done = python(TIMED)
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    assert min(seconds) <= 0.5


def test_imports_no_compiler():
    """torch's takes longer than all the rest, and a decorator of torch.compiler's is enough to bring it."""
    done = python("import sys, varcon; varcon.VarConLoss; print('torch._dynamo' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_unknown_names_are_attribute_errors():
    done = python(
        "import varcon\ntry:\n    varcon.nothing\nexcept AttributeError as error:\n    print(error)"
    )
    assert done.stdout.strip() == "module 'varcon' has no attribute 'nothing'"
    assert "VarConLoss" in python("import varcon; print(dir(varcon))").stdout


def test_the_loop_in_the_readme_runs():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    model = torch.nn.Linear(8, 4)
    names = {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "view_1": torch.randn(6, 8, generator=torch.Generator().manual_seed(0)),
        "view_2": torch.randn(6, 8, generator=torch.Generator().manual_seed(1)),
        "labels": torch.arange(6) % 3,
    }
    exec(code, names)
    assert names["loss"].isfinite()
    assert model.weight.grad.abs().max() > 0
    assert names["terms"].tau2.shape == (12,)
