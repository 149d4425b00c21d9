"""VarCon+GPaCo: both losses on the same projections, predicting by GPaCo's centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from varcon.core import Batch, Encoder, InputError, StepOutput
from varcon.criterion import EPSILON, EPSILON_RANGE, TEMPERATURE, VarConLoss
from varcon.limits import above_zero, not_negative
from varcon.methods.gpaco import GPaCo, GPaCoSettings
from varcon.methods.varcon import VarConSettings


@dataclass(frozen=True)
class VarConGPaCoSettings(GPaCoSettings):
    weight: float = 1.0  # of the VarCon loss, lambda
    varcon_temperature: float = TEMPERATURE  # tau1
    epsilon: float = EPSILON  # half the range of the adaptive temperature tau2, where it begins
    epsilon_rate: float = VarConSettings.epsilon_rate  # share of the weights' learning rate that epsilon has

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "varcon_temperature")
        not_negative(self, "weight", "epsilon", "epsilon_rate")
        if self.epsilon >= self.varcon_temperature:
            raise InputError(
                f"method.epsilon is {self.epsilon}; it must be below method.varcon_temperature, "
                f"{self.varcon_temperature}"
            )


class VarConGPaCo(GPaCo):
    Settings: ClassVar[type] = VarConGPaCoSettings
    settings: VarConGPaCoSettings

    def __init__(self, encoder: Encoder, settings: VarConGPaCoSettings, num_classes: int) -> None:
        super().__init__(encoder, settings, num_classes)
        self.loss = VarConLoss(
            num_classes,
            settings.varcon_temperature,
            settings.epsilon,
            epsilon_range=(0.0, max(EPSILON_RANGE[1], settings.epsilon)),
        )

    def forward(self, batch: Batch) -> StepOutput:
        centres, embeddings, labels = self.contrast(batch)
        loss, terms = self.loss.with_terms(embeddings, labels)
        metrics = {"kl": terms.kl.mean(), "nll": terms.nll.mean(), "tau2": terms.tau2.mean()}
        metrics |= {"epsilon": self.loss.epsilon.detach().clone(), "centres": centres.detach()}
        return StepOutput(centres + self.settings.weight * loss, metrics)

    def after_step(self) -> None:
        super().after_step()
        self.loss.clamp_epsilon()

    def learning_rate_scale(self, parameter_name: str) -> float:
        return self.settings.epsilon_rate if parameter_name == "loss.epsilon" else 1.0
