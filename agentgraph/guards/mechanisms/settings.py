"""Checks that guards make of their settings, so that a bad one is refused before anything runs.

A guard collects the faults of all its settings and raises one `ConfigurationError`. Each fault
names the guard, the setting and its value, and says what to give instead.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard, TypeVar

Number = TypeVar("Number", int, float)


def is_finite(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number: no bool, no NaN, no infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Not math.isfinite: it raises on an int that is too large for a float.
    return abs(value) <= sys.float_info.max


def is_positive(value: object) -> TypeGuard[float]:
    """Tell whether a value is a finite number above 0, as a duration in seconds has to be."""
    return is_finite(value) and value > 0


def is_whole(value: object, least: int = 0) -> TypeGuard[int]:
    """Tell whether a value is a whole number, `least` or more; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_share(value: object) -> TypeGuard[float]:
    """Tell whether a value is a number from 0 to 1."""
    return is_finite(value) and 0 <= value <= 1


def smaller(first: Number | None, second: Number | None) -> Number | None:
    """Return the smaller one of two limits; None is no limit."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def whole_number_faults(guard: object, minimums: Mapping[str, int]) -> Iterator[str]:
    """Yield which fields of a guard are no whole numbers, or below their minimum."""
    for name, least in minimums.items():
        if not is_whole(value := getattr(guard, name), least):
            yield f"{type(guard).__name__}({name}={value!r}): give {least} or more"


def seconds_faults(guard: object, names: Iterable[str]) -> Iterator[str]:
    """Yield which fields of a guard are no durations above 0."""
    for name in names:
        if not is_positive(value := getattr(guard, name)):
            yield f"{type(guard).__name__}({name}={value!r}): give seconds above 0"


def takes_one_argument(function: object) -> bool:
    """Tell whether a function can be called with one argument, as far as its signature says.

    A function without a signature, as some written in C are, is trusted.
    """
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True
