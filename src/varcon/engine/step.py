"""One training step, kernel after kernel or, on a GPU, captured once as a CUDA graph and replayed.

Whatever changes from step to step lives on the device: which images, the learning rate, the generator's
state, a method's own numbers (`Method.before_step` writes them). So a captured step needs nothing from the
host but the word to start, and a host that is slow at launching kernels no longer holds up the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varcon.augment import draw_views
from varcon.core import Batch, Data, Method, Split, StepOutput
from varcon.engine.average import WeightAverage
from varcon.engine.journal import Averages
from varcon.engine.samples import SampleRecord
from varcon.recipe import Recipe

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WARM_UP = 3  # steps before capture: compilation, the optimizer's state and cuDNN's choices come first


@dataclass(kw_only=True)
class Step:
    """Draws the views of some images, learns from them and adds up the metrics; waits for nothing."""

    method: Method
    model: Callable[[Batch], StepOutput]  # the method, compiled or shared among processes
    data: Data
    images: Split  # the training images, on the device
    recipe: Recipe[Any]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    generator: torch.Generator
    averages: Averages
    record: SampleRecord
    average: WeightAverage | None = None

    def __call__(self, indices: Tensor) -> None:
        data, precision = self.data, self.recipe.train.precision
        dtype = DTYPES[precision]
        views = draw_views(
            self.images.images, self.recipe.augment, data.mean, data.std, self.generator, indices, dtype
        )
        with torch.autocast(indices.device.type, dtype, precision != "fp32"):
            output = self.model(Batch(views, self.images.labels[indices], indices))
        self.scaler.scale(output.loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.method.after_step()
        if self.average:
            self.average.follow(self.method)
        self.averages.add({"loss": output.loss, **output.metrics})
        self.record.note(indices, output.samples)


class GraphedStep:
    """The same step from a CUDA graph; the first few run as they are, as do those of a method's new phase."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.indices = torch.zeros(
            step.recipe.train.batch_size, dtype=torch.int64, device=step.generator.device
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.phase = step.method.phase
        self.warm = 0

    def __call__(self, indices: Tensor) -> None:
        self.indices.copy_(indices)
        if self.step.method.phase != self.phase:
            self.graph, self.phase, self.warm = None, self.step.method.phase, 0
        if self.graph is None and self.warm < WARM_UP:
            self._run_aside()
            self.warm += 1
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.step.generator)
            with torch.cuda.graph(self.graph):  # records and executes nothing
                self.step(self.indices)
        self.graph.replay()

    def _run_aside(self) -> None:
        """On a stream of its own, as capture asks of what comes before it."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.step(self.indices)
        torch.cuda.current_stream().wait_stream(aside)


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
