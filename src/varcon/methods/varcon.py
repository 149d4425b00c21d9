"""VarCon: every view against the class references of its batch (Wang et al., NeurIPS 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varcon.core import Batch, Encoder, InputError, Method, Progress, StepOutput
from varcon.criterion import (
    EPSILON,
    EPSILON_RANGE,
    REFERENCE_MOMENTUM,
    TEMPERATURE,
    Classes,
    References,
    VarConLoss,
    check_together,
)
from varcon.layers import CosineClassifier, NormedHead, ProjectionHead
from varcon.limits import above_zero, at_least, below_one, declared, not_negative

Head = Literal["plain", "normed", "none"]


@dataclass(frozen=True)
class VarConSettings:
    temperature: float = TEMPERATURE  # tau1, of the class posterior p
    start_temperature: float | None = None
    """tau1 at the first step, from which it moves evenly to the temperature at the last; none: it stays"""
    epsilon: float = EPSILON  # half the range of the adaptive temperature tau2, Eq. 13
    learn_epsilon: bool = True  # otherwise it stays as it is
    epsilon_range: tuple[float, float] = EPSILON_RANGE  # in which a learned epsilon stays
    epsilon_rate: float = 1e-5  # share of the weights' learning rate that epsilon has
    references: References = "batch"  # what stands for a class
    reference_momentum: float = REFERENCE_MOMENTUM  # of references = "ema"
    classes: Classes = "present"  # which classes p and q run over
    dimensions: int = 128  # of the projection
    head: Head = "plain"
    """what is compared: a projection of the features, one with BatchNorm (normed), or the features (none)"""
    classifier_weight: float = 0.0
    """of the cross-entropy of a linear classifier that is trained along on the features; 0: none"""

    def __post_init__(self) -> None:
        declared(self, of="method")
        above_zero(self, "temperature")
        below_one(self, "reference_momentum")
        not_negative(self, "epsilon_rate", "classifier_weight")
        at_least(1, self, "dimensions")
        check_together(
            self.temperature, self.epsilon, self.epsilon_range, self.references, self.classes, of="method"
        )
        if self.start_temperature is not None and not self.epsilon < self.start_temperature < math.inf:
            raise InputError(
                f"method.start_temperature is {self.start_temperature}; it must be finite and above "
                f"method.epsilon {self.epsilon}, or tau2 reaches 0"
            )


class VarCon(Method):
    Settings = VarConSettings
    uses_labels = True
    settings: VarConSettings
    tau1: Tensor | None  # where it moves: on the device, as a CUDA graph repeats the reading

    def __init__(self, encoder: Encoder, settings: VarConSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        features = encoder.features
        dimensions = features if settings.head == "none" else settings.dimensions
        self.head: nn.Module = nn.Identity()
        if settings.head == "plain":
            self.head = ProjectionHead(features, dimensions)
        elif settings.head == "normed":
            self.head = NormedHead(features, (features,), dimensions)
        first, (low, high) = settings.start_temperature, settings.epsilon_range
        self.register_buffer("tau1", None if first is None else torch.tensor(first))
        if first is not None:  # a learned epsilon stays below tau1 wherever that is
            high = max(settings.epsilon, min(high, 0.99 * first))
        self.loss = VarConLoss(
            num_classes,
            settings.temperature,
            settings.epsilon,
            settings.learn_epsilon,
            (low, high),
            settings.references,
            settings.classes,
            reference_momentum=settings.reference_momentum,
            dimensions=dimensions,
        )
        if settings.classifier_weight:
            self.classifier = nn.Linear(features, num_classes)
        elif settings.head == "none" and settings.references == "learned":
            self.classifier = CosineClassifier(self.loss.learned, settings.temperature)

    def before_step(self, progress: Progress) -> None:
        first, last = self.settings.start_temperature, self.settings.temperature
        if self.tau1 is not None and first is not None:
            self.tau1.fill_(first + (last - first) * progress.step / max(1, progress.total_steps - 1))

    def forward(self, batch: Batch) -> StepOutput:
        features, labels = self.encoder(torch.cat(batch.views)), batch.labels.repeat(len(batch.views))
        loss, terms = self.loss.with_terms(self.head(features), labels, self.tau1)
        means = {"kl": terms.kl, "nll": terms.nll, "confidence": terms.confidence, "tau2": terms.tau2}
        metrics = {name: values.mean() for name, values in means.items()}
        metrics["epsilon"] = self.loss.epsilon.detach().clone()
        if self.tau1 is not None:
            metrics["tau1"] = self.tau1.clone()
        if self.classifier is not None and self.settings.classifier_weight:
            cross_entropy = F.cross_entropy(self.classifier(features).float(), labels)
            loss = loss + self.settings.classifier_weight * cross_entropy
            metrics["cross_entropy"] = cross_entropy.detach()
        of_each_image = terms.confidence.view(len(batch.views), -1).mean(0)
        return StepOutput(loss, metrics, {"confidence": of_each_image})

    def after_step(self) -> None:
        self.loss.clamp_epsilon()

    def learning_rate_scale(self, parameter_name: str) -> float:
        # The gradient of epsilon is a^2, about 100, times one of order 1: at the weights' rate it would
        # jump from end to end of its range of 0.08 at every step.
        return self.settings.epsilon_rate if parameter_name == "loss.epsilon" else 1.0
