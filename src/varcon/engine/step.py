"""One training step, kernel after kernel or, on a GPU, captured once as a CUDA graph and replayed.

Whatever changes from step to step lives on the device: which images, the learning rate, the generator's
state, a method's own numbers (`Method.before_step` writes them). So a captured step needs nothing from the
host but the word to start, and a host that is slow at launching kernels no longer holds up the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from varcon import distributed
from varcon.augment import draw_views
from varcon.core import Batch, Data, Method, StepOutput
from varcon.engine.average import WeightAverage
from varcon.engine.journal import Averages
from varcon.engine.precision import CastTogether, working_type
from varcon.engine.samples import SampleRecord
from varcon.engine.staging import Resident, Staged
from varcon.kernels import HAS_TRITON
from varcon.recipe import Recipe, TrainSettings

WARM_UP = 3  # steps before capture: compilation, the optimizer's state and cuDNN's choices come first


@dataclass(kw_only=True)
class Step:
    """Draws the views of some images, learns from them and adds up the metrics; waits for nothing."""

    method: Method
    model: Callable[[Batch], StepOutput]  # the method, compiled or shared among processes
    data: Data
    source: Resident | Staged  # of its images
    recipe: Recipe[Any]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator
    averages: Averages
    record: SampleRecord
    average: WeightAverage | None = None

    def __call__(self, indices: Tensor) -> None:
        output = self.find_gradients(indices)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.method.after_step()
        if self.average:
            self.average.follow(self.method)
        self.averages.add({"loss": output.loss, **output.metrics})
        self.record.note(indices, output.samples)

    def find_gradients(self, indices: Tensor) -> StepOutput:
        """Changes nothing but the method, its gradients and the generator: `rehearse` counts on it."""
        data, dtype = self.data, working_type(self.recipe.train.precision, indices.device)
        views = draw_views(
            self.source.images,
            self.recipe.augment,
            data.mean,
            data.std,
            self.generator,
            self.source.places(indices),
            dtype,
        )
        with torch.autocast(indices.device.type, dtype, dtype != torch.float32):
            output = self.model(Batch(views, self.source.labels[indices], indices))
        self.scaler.scale(output.loss).backward()
        return output

    def rehearse(self, indices: Tensor) -> None:
        """Finds gradients by a copy of the method and of the random numbers, and leaves no trace."""
        method = copy.deepcopy(self.method)
        model = as_called(method, self.recipe.train, indices.device)
        devices = [indices.device] if indices.is_cuda else []
        with torch.random.fork_rng(devices):
            generator = self.generator.clone_state()
            replace(self, method=method, model=model, generator=generator).find_gradients(indices)


def as_called(method: Method, settings: TrainSettings, device: torch.device) -> Callable[[Batch], StepOutput]:
    """The method as a step calls it: shared among processes, compiled, or with its weights cast together."""
    model = distributed.synchronised(method, device)
    if settings.compile and device.type == "cuda":
        return torch.compile(model)
    dtype = working_type(settings.precision, device)
    if model is method and device.type == "cuda" and dtype != torch.float32:
        return CastTogether(method, dtype)
    return model


class GraphedStep:
    """The same step from a CUDA graph; the first few run as they are, as do those of a method's new phase."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.indices = torch.zeros(
            step.recipe.train.batch_size, dtype=torch.int64, device=step.generator.device
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        # One for warm-up and capture, of this device: torch's own for captures is that of the first one's.
        self.stream: torch.cuda.Stream | None = None
        self.phase = step.method.phase
        self.warm = 0

    def __call__(self, indices: Tensor) -> None:
        with torch.cuda.device(self.indices.device):  # which need not be the current one
            self._take(indices)

    def _take(self, indices: Tensor) -> None:
        self.indices.copy_(indices)
        self.stream = self.stream or torch.cuda.Stream()
        if self.step.method.phase != self.phase:
            self.graph, self.phase, self.warm = None, self.step.method.phase, 0
        if self.graph is None and self.warm < WARM_UP:
            with aside(self.stream):
                if self.warm == 0 and HAS_TRITON and not self.step.recipe.train.compile:
                    self._compile()
                self.step(self.indices)
            self.warm += 1
            return
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.step.generator)
            with torch.cuda.graph(graph, stream=self.stream):  # records and executes nothing
                self.step(self.indices)
            self.graph = graph
        self.graph.replay()

    def _compile(self) -> None:
        """The step's kernels, all at once. A step can do without: where the method has no copy, or the copy
        no room, they are compiled as they are met."""
        from varcon.kernels.ahead import compiled_together

        with suppress(RuntimeError, TypeError), compiled_together():  # what cannot be copied is a TypeError
            self.step.rehearse(self.indices)


@contextmanager
def aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """On another stream than the usual one, as capture asks of what comes before it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def measured_convolutions() -> Iterator[None]:
    """Lets cuDNN time its algorithms for each shape and keep the quickest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def why_no_graph(recipe: Recipe[Any], device: torch.device, processes: int) -> str:
    """What keeps steps from being one CUDA graph, or nothing."""
    if device.type != "cuda":
        return "the device is no GPU"
    if not recipe.train.cuda_graph:
        return "train.cuda_graph is off"
    if processes > 1:
        return "several processes exchange gradients"
    if recipe.train.precision == "fp16":
        return "the host looks at fp16's scale in every step; bf16 needs none"
    return ""
