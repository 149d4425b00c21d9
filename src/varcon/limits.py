"""What a method's settings may be. Each check names the setting and the cure; NaN passes none of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from varcon.core import InputError


def above_zero(settings: Any, *names: str) -> None:
    _require(settings, names, lambda value: 0 < value < math.inf, "must be above 0 and finite")


def not_negative(settings: Any, *names: str) -> None:
    _require(settings, names, lambda value: 0 <= value < math.inf, "must be at least 0 and finite")


def at_least(least: int, settings: Any, *names: str) -> None:
    _require(settings, names, lambda value: value >= least, f"must be at least {least}")


def share(settings: Any, *names: str) -> None:
    _require(settings, names, lambda value: 0 <= value <= 1, "must lie in [0, 1]")


def one_of(choices: Sequence[str], settings: Any, *names: str) -> None:
    """Recipes and flags are held to a Literal type as they are read; this is for Python."""
    _require(settings, names, lambda value: value in choices, f"must be one of {', '.join(choices)}")


def _require(settings: Any, names: Sequence[str], allowed: Callable[[Any], bool], rule: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not allowed(value):
            raise InputError(f"method.{name} is {value!r}; it {rule}")
