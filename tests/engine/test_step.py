"""A step captured as a CUDA graph does what the same step does kernel by kernel."""

import copy
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from references.kernels import run_with_compiler

from varcon.core import Progress
from varcon.data import load
from varcon.engine.journal import Averages
from varcon.engine.optimizers import build_optimizer, learning_rate, set_learning_rate
from varcon.engine.samples import SampleRecord
from varcon.engine.staging import Resident
from varcon.engine.step import GraphedStep, Step, why_no_graph
from varcon.methods import METHODS
from varcon.recipe import Recipe, TrainSettings, load_recipe
from varcon.run import build_method

RECIPES = Path(__file__).parents[2] / "recipes/digits"


@pytest.mark.parametrize(
    ("settings", "device", "processes", "words"),
    [
        (TrainSettings(), "cuda", 1, ""),
        (TrainSettings(), "cpu", 1, "the device is no GPU"),
        (TrainSettings(cuda_graph=False), "cuda", 1, "train.cuda_graph is off"),
        (TrainSettings(), "cuda", 2, "several processes"),
        (TrainSettings(precision="fp16"), "cuda", 1, "fp16"),
    ],
)
def test_why_there_is_no_graph(settings, device, processes, words):
    why = why_no_graph(Recipe(train=settings), torch.device(device), processes)
    assert (words in why) if words else why == ""


def build_step(recipe, data, device):
    method = build_method(recipe, data).to(device)
    generator = torch.Generator(device).manual_seed(1)
    optimizer, scaler = build_optimizer(method, recipe.train), torch.amp.GradScaler("cpu", enabled=False)
    source, record = Resident(data.train, device), SampleRecord(len(data.train), device)
    return Step(
        method=method,
        model=method,
        data=data,
        source=source,
        recipe=recipe,
        optimizer=optimizer,
        scaler=scaler,
        generator=generator,
        averages=Averages(),
        record=record,
    )


def take_steps(step, run, steps):
    rows = []
    for number in range(steps):
        progress = Progress(number, steps, steps // 3)
        set_learning_rate(step.optimizer, learning_rate(step.recipe.train, progress))
        step.method.before_step(progress)
        begin = 128 * number % 1024
        run(torch.arange(begin, begin + 128, device=step.generator.device))
        rows.append(step.averages.take(1))
    return rows


def test_a_step_learns_and_reports():
    recipe = load_recipe(RECIPES / "varcon.toml")
    step = build_step(recipe, load(recipe.data), torch.device("cpu"))
    before = copy.deepcopy(step.method.encoder.state_dict())
    rows = take_steps(step, step, 6)
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert {"kl", "nll", "tau2", "epsilon"} < rows[0].keys()
    assert all(p.grad is None for p in step.method.parameters())
    assert any((now != before[name]).any() for name, now in step.method.encoder.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
def test_a_rehearsal_leaves_no_trace(name):
    recipe = load_recipe(RECIPES / f"{name}.toml")
    if name == "ce":
        recipe = replace(recipe, method=replace(recipe.method, mixup=0.3))
    data, taken = load(recipe.data), []
    for rehearsed in (False, True):
        step = build_step(recipe, data, torch.device("cpu"))
        torch.manual_seed(0)
        if rehearsed:
            step.method.before_step(Progress(0, 3, 1))
            step.rehearse(torch.arange(128))
        assert all(p.grad is None for p in step.method.parameters())
        rows = take_steps(step, step, 3)
        taken.append(([row | {"images_per_second": 0} for row in rows], step.method.state_dict()))
    (rows, plain), (after, state) = taken
    assert rows == after
    assert all(torch.equal(value, state[key]) for key, value in plain.items())


def test_a_method_that_cannot_be_copied_is_not_rehearsed(monkeypatch):
    recipe = load_recipe(RECIPES / "varcon.toml")
    step = build_step(recipe, load(recipe.data), torch.device("cpu"))
    step.method.lock = threading.Lock()
    rehearsed = []
    monkeypatch.setattr(Step, "find_gradients", lambda one, indices: rehearsed.append(one))
    GraphedStep(step)._compile()
    assert rehearsed == []


def test_a_rehearsal_goes_all_the_way_by_a_copy(monkeypatch):
    recipe = load_recipe(RECIPES / "varcon.toml")
    step, seen = build_step(recipe, load(recipe.data), torch.device("cpu")), []
    find = Step.find_gradients
    monkeypatch.setattr(Step, "find_gradients", lambda one, indices: seen.append(one) or find(one, indices))
    step.rehearse(torch.arange(128))
    (copied,) = seen
    assert copied.method is not step.method
    assert all(p.grad is not None for p in copied.method.parameters() if p.requires_grad)


@pytest.fixture
def repeatable(monkeypatch):
    """Convolutions and sums in a fixed order, so that two runs can be compared to the bit."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_a_captured_step_is_the_same_step(name, repeatable):
    """Thirty steps with a moving learning rate and what each method changes on the way: a rising momentum,
    prototypes that thaw, a queue that comes into use, the share of mixup, a temperature that moves."""
    recipe = load_recipe(RECIPES / f"{name}.toml")
    if name == "swav":
        recipe = replace(recipe, method=replace(recipe.method, queue=256, queue_from=2))
    if name == "ce":
        recipe = replace(recipe, method=replace(recipe.method, mixup=0.3))
    if name == "varcon":
        recipe = replace(recipe, method=replace(recipe.method, start_temperature=0.3))
    data, device, steps = load(recipe.data), torch.device("cuda"), 30
    plain, other = build_step(recipe, data, device), build_step(recipe, data, device)
    graphed = GraphedStep(other)
    expected, got = take_steps(plain, plain, steps), take_steps(other, graphed, steps)
    assert graphed.graph is not None
    for one, two in zip(expected, got, strict=True):
        assert one | {"images_per_second": 0} == two | {"images_per_second": 0}
    assert torch.equal(plain.generator.get_state(), other.generator.get_state())
    state = other.method.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in plain.method.state_dict().items())


REHEARSED = """
from dataclasses import replace
import sys
import torch, triton
sys.path[:0] = [HERE, HERE + "/.."]
import test_step as t
from varcon.engine.step import as_called

recipe = t.load_recipe(t.RECIPES / "varcon.toml")
recipe = replace(recipe, encoder=replace(recipe.encoder, name="resnet50"))
recipe = replace(recipe, train=replace(recipe.train, precision="bf16"))
data, device = t.load(recipe.data), torch.device("cuda")
torch.use_deterministic_algorithms(True)
compiled = []
triton.knobs.runtime.jit_post_compile_hook = lambda fn, **_: compiled.append(fn.name)
rehearse, after = t.Step.rehearse, []

def noting(step, indices):
    rehearse(step, indices)
    assert not compiled  # that comes next, for all of them

t.Step.rehearse = noting
step, plain = t.build_step(recipe, data, device), t.build_step(recipe, data, device)
for one in (step, plain):
    one.model = as_called(one.method, recipe.train, device)
graphed = t.GraphedStep(step)
call = t.Step.__call__

def counting(step, indices):
    after.append(len(compiled))
    call(step, indices)

t.Step.__call__ = counting
got = t.take_steps(step, graphed, 6)
assert after[0] > 20 and len(compiled) == after[0], (after, len(compiled))
expected = t.take_steps(plain, plain, 6)
assert [row | {"images_per_second": 0} for row in got] == [row | {"images_per_second": 0} for row in expected]
state = step.method.state_dict()
assert all(torch.equal(value, state[key]) for key, value in plain.method.state_dict().items())
"""


@pytest.mark.gpu
def test_kernels_are_compiled_before_the_first_step_and_it_is_the_same_step(tmp_path):
    """In a process that has compiled nothing yet."""
    script = f"HERE = {str(Path(__file__).parent)!r}\n{REHEARSED}"
    run_with_compiler(script, tmp_path, CUBLAS_WORKSPACE_CONFIG=":4096:8")
