"""JSON values: which ones a graph may hold, when two are equal, and how they are displayed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from agentgraph.errors import ConfigurationError
from agentgraph.routing.frozen_json import freeze

T = TypeVar("T")

_MAX_DEPTH = 128
_MAX_BITS = 14_284
"""Python refuses to convert integers of more than 4,300 digits to text."""
_MAX_VALUES = 1_000_000
_SCALARS = (str, bool, int, float, type(None))


def as_json(value: object, label: str) -> Any:
    """Return a value as JSON returns it, with lists for tuples.

    Raises `ConfigurationError`, whose text begins with `label`, if the value is not JSON.
    """
    _check_json(value, label)
    return _copy(value)


def as_frozen_json(value: object, label: str) -> Any:
    """Return a value as `as_json` does, but frozen: nobody who is handed it can change it."""
    _check_json(value, label)
    return freeze(value)


def _check_json(value: object, label: str) -> None:
    fault = _fault(value, 0, [_MAX_VALUES])
    if fault is not None:
        raise ConfigurationError(f"{label} {fault}", code="value")


def json_equal(first: object, second: object) -> bool:
    """Compare as JSON values: `True` is not 1, 1 equals 1.0, and NaN equals nothing."""
    if isinstance(first, str) and isinstance(second, str):
        return first == second
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first == second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(json_equal(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(json_equal, first, second))
    return first is None and second is None


def as_tuple(label: str, value: Iterable[T]) -> tuple[T, ...]:
    """Return a collection as a tuple; the order of a set is the same in every process.

    Raises `ConfigurationError` for a string, a mapping, or a value that is no collection.
    """
    if isinstance(value, tuple):
        return value
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{label}={short(value)}: give a list")
    return tuple(sorted(value, key=repr)) if isinstance(value, set | frozenset) else tuple(value)


def plain(name: str) -> str:
    """Return a string as a plain `str`, also if it is a member of an enumeration."""
    return str(name.value) if isinstance(name, Enum) else str(name)


def is_whole(value: object) -> bool:
    """Tell whether a value is an integer of at most 64 bits, which any JSON reader can hold."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and -(2**63) <= int(value) < 2**63  # type: ignore[call-overload]


def check_text(label: str, value: object) -> None:
    """Raise `ConfigurationError` if a value is no string."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{label}={short(value)}: give a string")


def short(value: object) -> str:
    """Return a value's `repr` for a message, shortened to 60 characters; never raises."""
    try:
        text = repr(value)
    except Exception as error:  # a huge number, or an object whose `repr` fails
        return f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}…"


def cause(error: Exception) -> str:
    """Return an error's type and text for a message, even if its `str` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _fault(value: object, depth: int, budget: list[int]) -> str | None:
    """Return why a value is not JSON, None if it is.

    `budget` is a list of one number, from which all levels subtract.
    """
    if depth > _MAX_DEPTH:
        return f"is nested deeper than {_MAX_DEPTH}, or holds itself"
    if isinstance(value, float) and not math.isfinite(value):
        return f"holds {value!r}, which JSON does not have"
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "holds a number of more than 4,300 digits"
    if isinstance(value, _SCALARS):
        return None
    if isinstance(value, list | tuple):
        return _first_fault(value, depth, budget)
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            return f"has the key {short(strange[0])}: keys are strings"
        return _first_fault(value.values(), depth, budget)
    return f"holds a {type(value).__name__}, which JSON does not have"


def _first_fault(values: Any, depth: int, budget: list[int]) -> str | None:
    # A shared object is written once per reference: a small object can make a huge document.
    budget[0] -= len(values)
    if budget[0] < 0:
        return f"holds more than {_MAX_VALUES:,} values"
    for value in values:
        if (fault := _fault(value, depth + 1, budget)) is not None:
            return fault
    return None


def _copy(value: Any) -> Any:
    """Copy a value, with lists for tuples."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value]
