"""Every example, for fewer epochs: it runs offline, says what it says, and has learned something."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
UNTRAINED = (
    0.78  # how many digits the nearest class mean names on the features of an untrained encoder, at most
)
# Lightning 2.6 about a class of torch that it uses itself
LEAF = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")


def outcome(name, epochs):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](epochs=epochs)


@pytest.mark.parametrize(
    ("name", "epochs"),
    [("own_loop", 4), ("hugging_face", 5), pytest.param("lightning_module", 4, marks=LEAF)],
)
def test_digits_are_told_apart(name, epochs, capsys):
    first, last, accuracy = outcome(name, epochs)
    assert last < first / 3
    assert accuracy > UNTRAINED + 0.05
    lines = capsys.readouterr().out.splitlines()
    assert f"loss {first:.2f} in the first step, {last:.2f} in the last" in lines
    assert f"the nearest class mean names {accuracy:.1%} of the test digits" in lines


@pytest.mark.parametrize("name", ["from_supcontrast", "from_metric_learning"])
def test_moved_scripts_learn(name, capsys):
    first, last = outcome(name, epochs=4)
    assert last < first / 3
    assert capsys.readouterr().out == f"loss {first:.2f} in the first step, {last:.2f} in the last\n"


def test_sentences_of_a_topic_come_together(capsys):
    (same_before, other_before), (same, other) = outcome("sentence_transformers_loss", epochs=10)
    assert same - other > 2 * (same_before - other_before)
    assert same > same_before
    assert other < other_before
    assert f"two topics: {other_before:.2f} untrained, {other:.2f} trained" in capsys.readouterr().out


def test_the_readme_names_every_example():
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(examples/(\w+\.py)\)", readme)) == {path.name for path in EXAMPLES.glob("*.py")}
