import subprocess
import sys

from varcon.engine.allocator import keep_freed_memory

CODE = """
import resource, torch
from varcon.engine.allocator import keep_freed_memory
torch.set_num_threads(1)
keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(20):
        torch.ones(2_000_000).add(1)  # 8 MB, freed at once
work()
before = faults()
work()
print(faults() - before)
"""


def page_faults():
    return int(
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    )


def test_freed_memory_is_used_again_without_page_faults():
    """In processes of their own, as the setting holds for a whole process."""
    assert page_faults() < 100 or not keep_freed_memory()
