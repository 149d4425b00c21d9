"""The types that every room of the house shares."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from torch import Tensor, nn

if TYPE_CHECKING:
    from varcon.data.stored import StoredImages
    from varcon.evaluations.frozen import FrozenEncoder


OnProgress = Callable[[int, int, str], None]  # how many are done, how many there are, what is being done


class InputError(ValueError):
    """The user's input cannot be used; the message names the cause and the cure."""


class RunError(RuntimeError):
    """A run that began well has failed; the message names the cause and the cure."""


@dataclass
class Split:
    """Labelled images, or vectors in their place: held whole in memory, or images in a file."""

    images: Tensor | StoredImages  # [N, 3, H, W] uint8, or vectors [N, d] float32
    labels: Tensor  # [N] int64
    files: list[str] | None = None  # [N] where each lies in a folder of images; None: they are no files

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, places: Tensor) -> Split:
        images = self.images
        some = images[places.to(images.device)] if isinstance(images, Tensor) else images.only(places)
        return Split(some, self.labels[places], self.files_at(places))

    def files_at(self, places: Tensor) -> list[str] | None:
        return None if self.files is None else [self.files[place] for place in places.tolist()]


@dataclass
class Data:
    train: Split
    test: Split
    classes: list[str]
    mean: tuple[float, ...]  # per channel, of images scaled to [0, 1]; of vectors per feature
    std: tuple[float, ...]


@dataclass
class Batch:
    views: list[Tensor]  # each [N, 3, H, W], small crops last; of vectors [N, d]
    labels: Tensor  # [N]
    indices: Tensor  # [N] position in the data set, for per-sample statistics


@dataclass
class StepOutput:
    loss: Tensor
    metrics: dict[str, Tensor]  # scalars, detached
    samples: dict[str, Tensor] = field(default_factory=dict)  # of each image [N], within [0, 1]


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `step` optimiser steps are done out of `total_steps`."""

    step: int
    total_steps: int
    steps_per_epoch: int

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch


class Encoder(nn.Module):
    """Images [N, 3, H, W], or vectors [N, d], to features [N, features]."""

    features: int


class Method(nn.Module):
    """A way to train an encoder: wiring between an encoder, heads and a loss."""

    Settings: ClassVar[type]
    uses_labels: ClassVar[bool]
    least_views: ClassVar[int] = 1  # of an image, those of augment.views
    most_views: ClassVar[int | None] = None  # None: as many as there are
    takes_small_views: ClassVar[bool] = False  # those of augment.small_views
    encoder: Encoder  # what survives training
    classifier: nn.Module | None  # on the encoder's features, of a method that trains one
    phase: Hashable = None  # before_step changes it where forward is to take another path from then on

    def __init__(self, encoder: Encoder, settings: Any, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.settings = settings
        self.classifier = None

    def forward(self, batch: Batch) -> StepOutput:
        raise TypeError(f"{type(self).__name__} does not define forward")

    def meet_classes(self, names: list[str]) -> None:
        """Called once before training, for a method to which the classes' names say something."""

    def before_step(self, progress: Progress) -> None:
        """Called before each step, for what changes as training goes on.

        It writes numbers to buffers, where `forward` and `after_step` read them: those two may have been
        captured as a CUDA graph, which repeats what they did on the device and nothing of their Python.
        """

    def after_step(self) -> None:
        """Called after each optimiser step, for example to move a teacher or clamp a parameter."""

    def learning_rate_scale(self, parameter_name: str) -> float:
        """A factor on the learning rate of one parameter."""
        return 1.0


@dataclass
class Findings:
    """What an evaluation found: numbers to quote and arrays to draw."""

    scores: dict[str, float]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


class Evaluation(Protocol):
    """A frozen settings dataclass with a call."""

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings: ...
