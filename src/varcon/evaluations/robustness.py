"""How a classifier made from clean images fares on corrupted ones: the protocol of ImageNet-C and CIFAR-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from varcon.core import Data, Findings, InputError
from varcon.data.corrupted_folder import CorruptedSplit, locate, open_corrupted
from varcon.data.corruptions import NAMES, SEVERITIES, CorruptionName, corrupt
from varcon.data.subset import choose
from varcon.evaluations.accuracy import top_accuracy
from varcon.evaluations.centroid import class_centroids
from varcon.evaluations.frozen import IMAGES_AT_ONCE, FrozenEncoder
from varcon.evaluations.linear import LinearProbe, TrainedLinear
from varcon.limits import above_zero, at_least, declared, seed

Classify = Callable[[Tensor], Tensor]  # features [N, F] to class scores [N, C]


@dataclass(frozen=True)
class BaselineErrors:
    """Top-1 errors in percent of the model that others are measured by, each the mean of five severities."""

    clean: float = 0.0
    gaussian_noise: float = 0.0
    shot_noise: float = 0.0
    impulse_noise: float = 0.0
    defocus_blur: float = 0.0
    glass_blur: float = 0.0
    motion_blur: float = 0.0
    zoom_blur: float = 0.0
    snow: float = 0.0
    frost: float = 0.0
    fog: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    elastic_transform: float = 0.0
    pixelate: float = 0.0
    jpeg_compression: float = 0.0


# AlexNet on ImageNet-C, as published with it (Hendrycks and Dietterich, 2019); clean: torchvision's AlexNet.
ALEXNET = BaselineErrors(
    clean=43.48,
    gaussian_noise=88.6428,
    shot_noise=89.4468,
    impulse_noise=92.2640,
    defocus_blur=81.9880,
    glass_blur=82.6268,
    motion_blur=78.5948,
    zoom_blur=79.8360,
    snow=86.6816,
    frost=82.6572,
    fog=81.9324,
    brightness=56.4592,
    contrast=85.3204,
    elastic_transform=64.6056,
    pixelate=71.7840,
    jpeg_compression=60.6500,
)


@dataclass(frozen=True)
class Robustness:
    """A classifier on the features of the clean training images, applied to corrupted test images."""

    corruptions: tuple[CorruptionName, ...] = NAMES  # to judge under
    severities: tuple[int, ...] = SEVERITIES  # of each corruption
    path: str = ""  # a folder of CIFAR-10-C, CIFAR-100-C or ImageNet-C; empty: corrupted on the fly
    images: int = 2000  # at most, drawn from the test images; each is seen under all of the above
    classifier: Literal["linear", "centroid"] = "linear"
    """what is made of the clean images: a linear classifier, or the class whose mean direction is nearest"""
    steps: int = 1000  # of SGD, for the linear classifier
    batch_size: int = LinearProbe.batch_size  # images per step of the linear classifier
    learning_rate: float = LinearProbe.learning_rate  # of the linear classifier at the start
    baseline: Literal["none", "alexnet", "given"] = "none"  # alexnet is of ImageNet-C
    given: BaselineErrors = field(default_factory=BaselineErrors)  # the errors behind baseline = given
    seed: int = 0  # of the images that are drawn, their corruptions and the linear classifier

    def __post_init__(self) -> None:
        declared(self, of="robustness")
        for name, chosen, allowed in (
            ("corruptions", self.corruptions, NAMES),
            ("severities", self.severities, SEVERITIES),
        ):
            if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
                raise InputError(
                    f"robustness.{name} is {chosen}; choose one or more, none twice, of "
                    f"{', '.join(map(str, allowed))}"
                )
        at_least(1, self, "images", "steps", "batch_size", of="robustness")
        above_zero(self, "learning_rate", of="robustness")
        seed(self, of="robustness")
        if self.baseline != "none":
            self._check_baseline()

    def _check_baseline(self) -> None:
        if set(self.severities) != set(SEVERITIES):
            raise InputError(
                f"robustness.severities is {self.severities} and a baseline's errors are means of the five: "
                "measure all of them, or set robustness.baseline to none"
            )
        errors = self.baseline_errors
        for name in self.corruptions:
            if not 0 <= errors.clean < getattr(errors, name) <= 100:
                raise InputError(
                    f"robustness.given has the error {getattr(errors, name)} for {name} and {errors.clean} "
                    "for clean images; give percentages, the first above the second"
                )

    @property
    def baseline_errors(self) -> BaselineErrors:
        return ALEXNET if self.baseline == "alexnet" else self.given

    def __call__(self, encoder: FrozenEncoder, data: Data) -> Findings:
        if len(data.classes) < 2:
            raise InputError("robustness compares classes and the data have only one; give at least two")
        cells = [(name, severity) for name in self.corruptions for severity in self.severities]
        if self.path:
            for name, severity in cells:  # what is missing shows before the work begins
                locate(self.path, name, severity)
        classify = self._fit(encoder, data)
        chosen = choose(len(data.test), self.images, self.seed)
        clean, _ = top_accuracy(
            classify(encoder.features(data.test)[chosen.to(encoder.device)]),
            data.test.labels[chosen].to(encoder.device),
        )
        accuracy = np.empty((len(self.corruptions), len(self.severities)))
        for cell, (name, severity) in enumerate(cells):
            split = self._open(name, severity, data, encoder.device)
            accuracy.flat[cell] = self._accuracy(encoder, classify, split, cell, len(cells))
        seen = len(cells) * len(chosen)
        encoder.progress(seen, seen, "encoding corrupted images")
        scores = {"clean": clean, "mean": float(accuracy.mean()), "images": float(len(chosen))}
        scores |= {f"severity{s}": float(accuracy[:, i].mean()) for i, s in enumerate(self.severities)}
        scores |= {name: float(accuracy[i].mean()) for i, name in enumerate(self.corruptions)}
        scores |= self._corruption_errors(100 - accuracy.mean(axis=1), 100 - clean)
        return Findings(
            scores,
            {
                "accuracy": accuracy,  # [corruptions, severities]
                "corruptions": np.array(self.corruptions),
                "severities": np.array(self.severities),
            },
        )

    def _open(self, name: str, severity: int, data: Data, device: torch.device) -> CorruptedSplit:
        if self.path:
            return open_corrupted(self.path, name, severity, data)

        def read(positions: Tensor) -> Tensor:
            return corrupt(data.test.images[positions].to(device), positions, name, severity, self.seed)

        return CorruptedSplit(data.test.labels, read)

    def _accuracy(
        self, encoder: FrozenEncoder, classify: Classify, split: CorruptedSplit, cell: int, cells: int
    ) -> float:
        chosen = choose(len(split.labels), self.images, self.seed)
        right = 0
        for start in range(0, len(chosen), IMAGES_AT_ONCE):
            encoder.progress(cell * len(chosen) + start, cells * len(chosen), "encoding corrupted images")
            positions = chosen[start : start + IMAGES_AT_ONCE]
            # Not encoder.features, which keeps what it has encoded: 75 times the test images.
            features = encoder.encode(split.read(positions))
            labels = split.labels[positions].to(encoder.device)
            right += int((classify(features).argmax(dim=1) == labels).sum())
        return 100 * right / len(chosen)

    def _corruption_errors(self, errors: np.ndarray, clean_error: float) -> dict[str, float]:
        """Mean corruption errors; a relative one counts what the corruption adds to the clean error."""
        scores = {"mce": float(errors.mean()), "relative_mce": float((errors - clean_error).mean())}
        if self.baseline != "none":
            baseline = self.baseline_errors
            theirs = np.array([getattr(baseline, name) for name in self.corruptions])
            relative = (errors - clean_error) / (theirs - baseline.clean)
            scores["mce_over_baseline"] = float(100 * (errors / theirs).mean())
            scores["relative_mce_over_baseline"] = float(100 * relative.mean())
        return scores

    def _fit(self, encoder: FrozenEncoder, data: Data) -> Classify:
        features, labels = encoder.features(data.train), data.train.labels.to(encoder.device)
        if self.classifier == "centroid":
            centroids = class_centroids(features, labels, len(data.classes))
            return lambda queries: F.normalize(queries, dim=1) @ centroids.T
        return self._fit_linear(features, labels, len(data.classes), encoder)

    def _fit_linear(self, features: Tensor, labels: Tensor, classes: int, encoder: FrozenEncoder) -> Classify:
        """By the linear probe's rule, for a number of steps instead of epochs."""
        generator = torch.Generator().manual_seed(self.seed)
        classifier = TrainedLinear(features, classes, self.learning_rate, self.steps, 1, generator)

        def batches() -> Iterator[Tensor]:
            left: list[Tensor] = []
            for step in range(self.steps):
                encoder.progress(step, self.steps, "training the classifier")
                if not left:
                    order = torch.randperm(len(labels), generator=generator)
                    left = list(order.to(features.device).split(self.batch_size))
                yield left.pop()

        classifier.train(batches(), features.__getitem__, labels)
        encoder.progress(self.steps, self.steps, "training the classifier")
        return classifier
