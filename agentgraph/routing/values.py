"""Values as JSON has them: what a graph's arguments may be, and when two are equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from agentgraph.errors import ConfigurationError

T = TypeVar("T")

_MAX_DEPTH = 64
_MAX_BITS = 14_284
"""Python writes no integer of more than 4,300 digits."""
_MAX_VALUES = 1_000_000
_SCALARS = (str, bool, int, float, type(None))


def as_json(value: object, what: str) -> Any:
    """Return a value as it comes back from JSON: lists for tuples, and nothing that JSON lacks."""
    fault = _fault(value, 0, [_MAX_VALUES])
    if fault is not None:
        raise ConfigurationError(f"{what} {fault}", code="value")
    return _copied(value)


def json_equal(one: object, other: object) -> bool:
    """Compare as JSON does: `True` is not 1, 1 is 1.0, and nothing equals NaN."""
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(json_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return one is None and other is None


def listed(what: str, given: Iterable[T]) -> tuple[T, ...]:
    """Return what is in a list; of a set, in an order that is the same in every process."""
    if isinstance(given, tuple):
        return given
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{what}={short(given)}: give a list")
    return tuple(sorted(given, key=repr)) if isinstance(given, set | frozenset) else tuple(given)


def plain(name: str) -> str:
    """Return a string as itself, also where it is a member of an enumeration."""
    return str(name.value) if isinstance(name, Enum) else str(name)


def is_whole(value: object) -> bool:
    """Tell whether something is a whole number that any reader of JSON can hold."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and -(2**63) <= int(value) < 2**63  # type: ignore[call-overload]


def check_text(what: str, value: object) -> None:
    """Refuse what is no string."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what}={short(value)}: give a string")


def short(value: object) -> str:
    """Write a value for a message, whatever it is and however long."""
    try:
        told = repr(value)
    except Exception as error:  # a huge number, or an object of somebody else's
        return f"<{type(value).__name__}: {type(error).__name__}>"
    return told if len(told) <= 60 else f"{told[:57]}…"


def cause(error: Exception) -> str:
    """Write an error for a message, also one that cannot say what it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _fault(value: object, depth: int, left: list[int]) -> str | None:
    if depth > _MAX_DEPTH:
        return f"is nested deeper than {_MAX_DEPTH}, or holds itself"
    if isinstance(value, float) and not math.isfinite(value):
        return f"holds {value!r}, which JSON does not have"
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "holds a number of more than 4,300 digits"
    if isinstance(value, _SCALARS):
        return None
    if isinstance(value, list | tuple):
        return _first_fault(value, depth, left)
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            return f"has the key {short(strange[0])}: keys are strings"
        return _first_fault(value.values(), depth, left)
    return f"holds a {type(value).__name__}, which JSON does not have"


def _first_fault(values: Any, depth: int, left: list[int]) -> str | None:
    left[0] -= len(values)  # what is shared is written as often as it is held
    if left[0] < 0:
        return f"holds more than {_MAX_VALUES:,} values"
    faults = (_fault(value, depth + 1, left) for value in values)
    return next((fault for fault in faults if fault is not None), None)


def _copied(value: Any) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value]
