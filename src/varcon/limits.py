"""What settings may be. Each check names the setting and the cure; NaN passes none of them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from varcon.core import InputError

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def above_zero(settings: Any, *names: str, of: str = "method") -> None:
    _require(settings, names, of, lambda value: 0 < value < math.inf, "must be above 0 and finite")


def not_negative(settings: Any, *names: str, of: str = "method") -> None:
    _require(settings, names, of, lambda value: 0 <= value < math.inf, "must be at least 0 and finite")


def at_least(least: int, settings: Any, *names: str, of: str = "method") -> None:
    _require(settings, names, of, lambda value: value >= least, f"must be at least {least}")


def share(settings: Any, *names: str, of: str = "method") -> None:
    _require(settings, names, of, lambda value: 0 <= value <= 1, "must lie in [0, 1]")


def below_one(settings: Any, *names: str, of: str = "method") -> None:
    _require(settings, names, of, lambda value: 0 <= value < 1, "must lie in [0, 1)")


def within_one(settings: Any, *names: str, of: str = "method") -> None:
    _require(settings, names, of, lambda value: 0 < value < 1, "must lie between 0 and 1")


def seed(settings: Any, name: str = "seed", *, of: str) -> None:
    """What numpy, scikit-learn and torch all take."""
    _require(settings, (name,), of, lambda value: 0 <= value < 2**32, "must lie within 0..2**32-1")


def _require(settings: Any, names: Sequence[str], of: str, allowed: Callable[[Any], bool], rule: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not allowed(value):
            raise InputError(f"{of}.{name} is {value!r}; it {rule}")


def declared(settings: Any, of: str) -> None:
    """Every field of a dataclass is of its declared type, as in a recipe file, when made in Python too.

    Numbers of numpy become Python's, and lists tuples: a recipe is compared with others and kept as JSON.
    """
    hints = _hints(settings.__class__)
    for field in dataclasses.fields(settings):
        value = checked(getattr(settings, field.name), hints[field.name], f"{of}.{field.name}")
        object.__setattr__(settings, field.name, value)  # which a frozen one does not do itself


_hints = functools.cache(get_type_hints)  # which compiles each annotation anew


def checked(value: Any, hint: Any, place: str) -> Any:
    """The value as the type the dataclass declares, or an error that says what is expected."""
    if type(value) is hint and not dataclasses.is_dataclass(hint):
        return value  # at once: augmentation makes settings anew in every step
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for option in inner:
            try:
                return checked(value, option, place)
            except InputError:
                continue
    elif origin is Literal:
        if value in inner:
            return value
        raise InputError(
            f"{place} is {value!r}{meant_or(str(value), inner)} choose one of {', '.join(map(str, inner))}"
        )
    elif origin is tuple and isinstance(value, list | tuple):
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        if len(kinds) == len(value):
            return tuple(checked(v, kind, place) for v, kind in zip(value, kinds, strict=True))
    elif hint in (int, float) and not isinstance(value, bool):
        if isinstance(value, Integral if hint is int else Real):
            return hint(value)
    elif isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        if dataclasses.is_dataclass(value):
            declared(value, place)
        return value
    raise InputError(f"{place} is {value!r}; it must be {in_words(hint)}")


def in_words(hint: Any) -> str:
    """A type as they know it who write recipes."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # That it may be left out is no value to write: TOML has no word for it.
        return " or ".join(in_words(option) for option in inner if option is not types.NoneType)
    if origin is tuple and inner[0] in PLURALS:
        return f"a list of {'' if inner[-1] is ... else f'{len(inner)} '}{PLURALS[inner[0]]}"
    return WORDS.get(hint, f"of type {getattr(hint, '__name__', hint)}")


def did_you_mean(name: str, choices: Iterable[Any]) -> str:
    near = difflib.get_close_matches(name, [str(choice) for choice in choices], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def meant_or(name: str, choices: Iterable[Any]) -> str:
    """Where a list of the choices follows."""
    return did_you_mean(name, choices) or ";"
