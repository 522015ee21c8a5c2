"""What a condition or a target is made of, as the annotations of its class say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from agentgraph.errors import ConfigurationError
from agentgraph.routing.protocols import TransitionCondition, TransitionTarget, has_name
from agentgraph.routing.values import cause, short

Holds: TypeAlias = Literal["value", "condition", "conditions", "target", "targets"]
"""What an argument holds; told by its annotation, because a value may look like a condition."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A field of a condition or a target."""

    name: str
    holds: Holds
    hint: Any


@cache
def arguments_of(kind: Any) -> tuple[Argument, ...]:
    """Return the arguments of a class of conditions or targets; of one without fields, none."""
    if not is_dataclass(kind):
        return ()
    try:
        hints = get_type_hints(kind)
    except Exception as error:  # names that are imported for type checkers only, for instance
        told = f"the annotations of {short(kind)} cannot be read: {cause(error)}"
        raise ConfigurationError(told) from error
    wanted = [one.name for one in fields(kind) if one.init]
    return tuple(Argument(name, _held(hints[name]), hints[name]) for name in wanted)


def parts_of(part: Any) -> Iterator[Any]:
    """Yield a condition or a target, and all that it is made of; what is shared, once."""
    waiting, seen = [part], {}
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:  # one's own may hold itself
            seen[id(part)] = part
            yield part
            waiting += reversed(inner_of(part))


def inner_of(part: object) -> list[Any]:
    """Return the conditions and the targets that one holds itself."""
    kind: Any = type(part)
    found: list[Any] = []
    for name in _holders(kind):
        held = getattr(part, name)
        found += held if isinstance(held, list | tuple) else [held]
    return [one for one in found if has_name(one)] if found else found


@cache
def _holders(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in arguments_of(kind) if one.holds != "value")


_MANY = (tuple, list, Sequence, Collection, Iterable)


def _held(hint: Any) -> Holds:
    many = any(get_origin(part) in _MANY for part in (hint, *get_args(hint)))
    for part in _leaves(hint):
        if part is TransitionCondition or _is_kind(part, "evaluate"):
            return "conditions" if many else "condition"
        if part is TransitionTarget or _is_kind(part, "resolve"):
            return "targets" if many else "target"
    return "value"


def _is_kind(kind: Any, method: str) -> bool:
    return isinstance(getattr(kind, "name", None), str) and callable(getattr(kind, method, None))


def _leaves(hint: Any) -> Iterator[Any]:
    inner = get_args(hint)
    if not inner:
        yield hint
    for part in inner:
        yield from _leaves(part)
