"""The arguments of conditions and targets, and the conditions and targets inside them.

A class of conditions or targets is a dataclass; its fields are its arguments. The annotation of a
field tells its kind: a plain value, or one or several conditions or targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from agentgraph.errors import ConfigurationError
from agentgraph.routing.protocols import TransitionCondition, TransitionTarget, has_name
from agentgraph.routing.values import cause, short

ArgumentKind: TypeAlias = Literal["value", "condition", "conditions", "target", "targets"]
"""The kind of an argument, read from its annotation, because a value may look like a condition."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A field of a condition or a target."""

    name: str
    holds: ArgumentKind
    hint: Any


@cache
def arguments_of(kind: Any) -> tuple[Argument, ...]:
    """Return the arguments of a class of conditions or targets; an empty tuple without fields.

    Raises `ConfigurationError` if the annotations of the class cannot be read.
    """
    if not is_dataclass(kind):
        return ()
    try:
        hints = get_type_hints(kind)
    except Exception as error:  # annotations imported for type checkers only, for instance
        message = f"the annotations of {short(kind)} cannot be read: {cause(error)}"
        raise ConfigurationError(message) from error
    names = [field.name for field in fields(kind) if field.init]
    return tuple(Argument(name, _kind_of(hints[name]), hints[name]) for name in names)


def parts_of(part: Any) -> Iterator[Any]:
    """Yield a condition or a target and all its parts, each object once."""
    stack, seen_parts = [part], {}
    while stack:
        part = stack.pop()
        if id(part) not in seen_parts:  # an object of a registered class may contain itself
            seen_parts[id(part)] = part
            yield part
            stack += reversed(inner_of(part))


def inner_of(part: object) -> list[Any]:
    """Return the conditions and targets that are direct arguments of a part."""
    kind: Any = type(part)
    parts: list[Any] = []
    for name in _part_names(kind):
        value = getattr(part, name)
        parts += value if isinstance(value, list | tuple) else [value]
    return [part for part in parts if has_name(part)] if parts else parts


@cache
def _part_names(kind: Any) -> tuple[str, ...]:
    return tuple(arg.name for arg in arguments_of(kind) if arg.holds != "value")


_MANY = (tuple, list, Sequence, Collection, Iterable)


def _kind_of(hint: Any) -> ArgumentKind:
    """Return the kind of argument that an annotation describes.

    It may be a protocol, a class of conditions or targets, or a collection or union of these.
    """
    is_sequence = any(get_origin(part) in _MANY for part in (hint, *get_args(hint)))
    for part in _leaves(hint):
        if part is TransitionCondition or _is_kind(part, "evaluate"):
            return "conditions" if is_sequence else "condition"
        if part is TransitionTarget or _is_kind(part, "resolve"):
            return "targets" if is_sequence else "target"
    return "value"


def _is_kind(kind: Any, method: str) -> bool:
    return isinstance(getattr(kind, "name", None), str) and callable(getattr(kind, method, None))


def _leaves(hint: Any) -> Iterator[Any]:
    """Yield the types inside a generic type; for a plain type, the type itself."""
    inner = get_args(hint)
    if not inner:
        yield hint
    for part in inner:
        yield from _leaves(part)
