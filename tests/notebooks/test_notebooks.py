"""Every notebook runs offline, in an empty folder, without a warning, and is committed with such outputs."""

import re
import runpy
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = ["01-first-encoder", "02-any-vectors", "03-inside-the-loss"]
KILOBYTES = 300  # of a file, at most
SIGNED_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def committed(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executed(name):
    """A cell that fails, also by one of the notebook's own assertions, fails here."""
    return runpy.run_path(str(NOTEBOOKS / "execute.py"))["execute"](NOTEBOOKS / f"{name}.ipynb")


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shape_of(output):
    """What stays the same on another machine: the kind, and the text but for numbers and spaces."""
    if output.output_type == "stream":
        return output.name, "".join(SIGNED_NUMBER.sub("#", output.text).split())
    return output.output_type, sorted(output.data)


def test_all_are_tested():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == NAMES


def test_it_runs_without_a_warning(executed):
    outputs = [output for cell in code(executed) for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2


def test_the_committed_outputs_are_those_of_the_committed_code(committed, executed):
    assert [cell.source for cell in committed.cells] == [cell.source for cell in executed.cells]
    for number, (ours, theirs) in enumerate(zip(code(committed), code(executed), strict=True), start=1):
        assert ours.execution_count == theirs.execution_count == number
        assert [shape_of(output) for output in ours.outputs] == [
            shape_of(output) for output in theirs.outputs
        ], f"run: python notebooks/execute.py (cell {number} has changed)"


def test_the_file_is_small_and_names_no_machine(name, committed):
    path = NOTEBOOKS / f"{name}.ipynb"
    assert path.stat().st_size < 1000 * KILOBYTES
    assert committed.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    text = nbformat.writes(committed)
    assert not re.search(r"(?<![\w.)])/(tmp|home|root|Users|work|opt)/", text)
    assert all(cell.metadata == {} for cell in committed.cells)
