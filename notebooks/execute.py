"""Runs the notebooks and writes them back with their outputs.

    python notebooks/execute.py                          # all of them
    python notebooks/execute.py notebooks/01*.ipynb      # this one

What depends on the machine or the moment is left out, so that a second run changes little.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from matplotlib import font_manager  # noqa: F401  # its first import may print that fonts are looked for
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
SECONDS_PER_CELL = 300
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path) -> NotebookNode:
    """The notebook as it is after running in an empty folder, in this interpreter and in one thread."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = NotebookNode(METADATA)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        manager = AsyncKernelManager(
            kernel_name="python3",
            # Without folders to look in, there is one kernel: this interpreter's.
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            connection_file=f"{own}/kernel",
            transport="ipc",  # files of this user, not ports that every user of the machine can reach
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=SECONDS_PER_CELL,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        # The user's own settings of IPython take no part, and other programs keep their cores.
        settings = {**os.environ, "IPYTHONDIR": own, "OMP_NUM_THREADS": "1"}
        client.execute(env=settings, cleanup_kc=True)  # or the kernel would live on
    notebook.metadata = NotebookNode(METADATA)  # to which the kernel has added its version
    return notebook


def main(paths: list[Path]) -> None:
    for path in paths:
        nbformat.write(execute(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")))
