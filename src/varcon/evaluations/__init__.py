"""What judges a frozen encoder. Each evaluation is a settings dataclass that is called."""

from __future__ import annotations

from dataclasses import dataclass, field

from varcon.evaluations.knn import KNN
from varcon.evaluations.linear import LinearProbe
from varcon.evaluations.map2d import Map2D


@dataclass(frozen=True)
class EvaluateSettings:
    knn: KNN = field(default_factory=KNN)
    linear: LinearProbe = field(default_factory=LinearProbe)
    map2d: Map2D = field(default_factory=Map2D)
