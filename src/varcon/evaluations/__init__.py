"""What judges a frozen encoder. Each evaluation is a settings dataclass that is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from varcon.core import InputError
from varcon.evaluations.calibration import Calibration
from varcon.evaluations.centroid import NearestCentroid
from varcon.evaluations.clustering import Clustering
from varcon.evaluations.discriminant import LinearDiscriminant
from varcon.evaluations.fewshot import FewShot
from varcon.evaluations.finetune import FineTune
from varcon.evaluations.knn import KNN
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.logistic import LogisticProbe
from varcon.evaluations.map2d import Map2D
from varcon.evaluations.maps import Maps
from varcon.evaluations.outliers import Outliers
from varcon.evaluations.real import ReaL
from varcon.evaluations.robustness import Robustness
from varcon.evaluations.similarity import ClassSimilarity
from varcon.evaluations.temperature import AdaptiveTemperature
from varcon.evaluations.transfer import Target, Transfer
from varcon.limits import did_you_mean


@dataclass(frozen=True)
class EvaluateSettings:
    """Of the evaluations that every run gets, and that a recipe may set."""

    knn: KNN = field(default_factory=KNN)
    linear: LinearProbe = field(default_factory=LinearProbe)
    map2d: Map2D = field(default_factory=Map2D)


@dataclass(frozen=True)
class FurtherSettings:
    """Of those that are asked for by name."""

    discriminant: LinearDiscriminant = field(default_factory=LinearDiscriminant)
    centroid: NearestCentroid = field(default_factory=NearestCentroid)
    logistic: LogisticProbe = field(default_factory=LogisticProbe)
    fewshot: FewShot = field(default_factory=FewShot)
    clustering: Clustering = field(default_factory=Clustering)
    similarity: ClassSimilarity = field(default_factory=ClassSimilarity)
    temperature: AdaptiveTemperature = field(default_factory=AdaptiveTemperature)
    calibration: Calibration = field(default_factory=Calibration)
    outliers: Outliers = field(default_factory=Outliers)
    robustness: Robustness = field(default_factory=Robustness)
    real: ReaL = field(default_factory=ReaL)
    transfer: Transfer = field(default_factory=Transfer)
    finetune: FineTune = field(default_factory=FineTune)
    maps: Maps = field(default_factory=Maps)

    def to_targets(self, targets: tuple[Target, ...]) -> FurtherSettings:
        """That transfer to these, and fine-tune on them."""
        return replace(self, transfer=replace(self.transfer, targets=targets)) if targets else self

    def fine_tunings(self) -> dict[str, FineTune]:
        """By the names of their findings: one on each target of the transfer, where none is set for it."""
        targets = self.transfer.targets if self.finetune.target is None else ()
        several = [replace(self.finetune, target=target) for target in targets] or [self.finetune]
        return {one.name: one for one in several}

    def at_temperature(self, method: Any, learned_epsilon: float | None = None) -> FurtherSettings:
        """With a method's own temperatures, where it has any, in place of the defaults. Its settings say
        where epsilon begins, `learned_epsilon` where training has taken it."""
        tau1 = getattr(method, "varcon_temperature", getattr(method, "temperature", None))
        if tau1 is None:
            return self
        first = getattr(method, "epsilon", self.temperature.epsilon)
        epsilon = first if learned_epsilon is None else learned_epsilon
        return replace(
            self,
            temperature=replace(self.temperature, temperature=tau1, epsilon=min(epsilon, 0.99 * tau1)),
            calibration=replace(self.calibration, temperature=tau1),
            outliers=replace(self.outliers, temperature=tau1),
        )


STANDARD = ("pixels", "knn", "linear", "discriminant", "rank", "classifier", "map2d")
FURTHER = tuple(FurtherSettings.__dataclass_fields__)
FOR_IMAGES = ("outliers", "robustness", "transfer", "finetune")  # those that vectors cannot have
NEEDING_MORE = ("real", "transfer", "finetune", "maps")  # labels, other data, hours, snapshots


def chosen_evaluations(only: str | Sequence[str], of_vectors: bool = False) -> tuple[str, ...]:
    """Names, of which one text may hold several with commas; "standard" and "all" stand for several, nothing
    for the standard."""
    absent = {*NEEDING_MORE, *(FOR_IMAGES if of_vectors else ())}
    names: list[str] = []
    for name in (part.strip() for part in ",".join([only] if isinstance(only, str) else only).split(",")):
        if name in ("", "standard"):
            names += STANDARD
        elif name == "all":
            names += [*STANDARD, *(one for one in FURTHER if one not in absent)]
        elif name in (*STANDARD, *FURTHER):
            names.append(name)
        else:
            known = dict.fromkeys((*STANDARD, *FURTHER, "standard", "all"))
            hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
            raise InputError(f"there is no evaluation {name!r}{hint}")
    return tuple(dict.fromkeys(names))
