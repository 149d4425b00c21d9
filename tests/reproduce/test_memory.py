import subprocess
import sys

import pytest
import torch

from varcon.reproduce.memory import held_on_cpu, measure


def test_the_most_that_is_held_at_once():
    def work():
        first = torch.zeros(1000)  # 4,000 bytes
        second = torch.zeros(2000)
        del first
        return torch.zeros(500) + second[0]

    # 12,000 together; then 8,000 and twice 2,000, of the zeros and of the sum.
    assert held_on_cpu(work) == pytest.approx(12_000, abs=200)


def test_pairs_grow_with_the_square_and_classes_do_not():
    costs = {name: [measure(name, n, 10, "cpu").memory for n in (256, 512)] for name in ("VarCon", "SupCon")}
    assert costs["SupCon"][1] / costs["SupCon"][0] == pytest.approx(4, rel=0.2)
    assert costs["VarCon"][1] / costs["VarCon"][0] == pytest.approx(2, rel=0.2)


def test_counting_is_silent():
    """Behind the command, in a process of its own: torch's profiler is told so before torch is imported."""
    code = (
        "import sys; sys.argv = ['varcon', '--version']\n"
        "from varcon.__main__ import main; main()\n"
        "from varcon.reproduce.memory import measure; measure('VarCon', 64, 10, 'cpu')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.startswith("varcon ")
    assert done.stdout.count("\n") == 1
