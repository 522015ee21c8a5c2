"""Encode conditions and targets as JSON, and decode them.

`{"name": "from_speaker", "args": {"agent_id": "writer"}}` is a condition; one inside `args` has the
same shape. The decoder collects all faults of a document, each with its path, and raises nothing
itself: the values in a document may be anything, and registered classes may do anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from types import MemberDescriptorType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from agentgraph.errors import ConfigurationError
from agentgraph.routing.arguments import Argument, arguments_of
from agentgraph.routing.document.registry import Registry
from agentgraph.routing.protocols import has_name
from agentgraph.routing.targets import AgentTarget, as_target
from agentgraph.routing.values import as_json, cause, short

VERSION = 1
MAX_DEPTH = 32
MAX_NODES = 10_000
MAX_TEXT = 4_000_000
MAX_FAULTS = 1_000

Place: TypeAlias = tuple[str | int, ...]
"""The path to a part of a document: keys and indices."""


@dataclass(frozen=True)
class Keys:
    """The keys that a JSON object must have, and may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def faults_of(self, data: Mapping[str, Any]) -> Iterator[str]:
        """Yield a fault for each missing key and for each unknown one."""
        for key in self.required:
            if key not in data:
                yield f"the key {key!r} is missing"
        for key in data:
            if key not in self.names:
                keys = ", ".join((*self.required, *self.optional)) or "none"
                yield f"there is no key {short(key)}: there are {keys}"

    @cached_property
    def names(self) -> frozenset[str]:
        """All keys, required and optional."""
        return frozenset((*self.required, *self.optional))


_PART = Keys(("name", "args"))


@dataclass(slots=True)
class Decoder:
    """Reads the parts of a document, and records each fault with its path."""

    registry: Registry
    faults: list[str] = field(default_factory=list)
    count: int = 0
    _nodes: int = 0

    def fault(self, place: Place, message: str) -> None:
        """Record a fault; after MAX_FAULTS faults only count them."""
        self.count += 1
        if self.count > MAX_FAULTS:
            self.faults[MAX_FAULTS:] = [f"graph: {self.count - MAX_FAULTS:,} more faults"]
            return
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        self.faults.append(f"{path.removeprefix('.') or 'graph'}: {message}")

    def mapping(self, data: object, place: Place, keys: Keys) -> Mapping[str, Any] | None:
        """Return an object with exactly these keys, None if it has faults."""
        if isinstance(data, dict) and data.keys() == keys.names:  # the usual case, as a fast path
            return data
        if not isinstance(data, Mapping):
            self.fault(place, f"is {_repr(data)}: an object is wanted")
            return None
        for fault in keys.faults_of(data):
            self.fault(place, fault)
        return data

    def condition(self, data: object, place: Place, depth: int = 1) -> Any:
        """Read a condition."""
        return self._decode(data, place, depth, self.registry.conditions, "condition")

    def target(self, data: object, place: Place, depth: int = 1) -> Any:
        """Read a target; a string is an agent's name."""
        if isinstance(data, str):
            data = {"name": AgentTarget.name, "args": {"agent_id": data}}
        return self._decode(data, place, depth, self.registry.targets, "target")

    def _decode(
        self, data: object, place: Place, depth: int, classes: Mapping[str, Any], noun: str
    ) -> Any:
        """Read `{"name": …, "args": …}`; None if it has faults."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            return self._too_large(place, depth)
        entry = self.mapping(data, place, _PART)
        if entry is None or "name" not in entry:
            return None
        name = entry["name"]
        kind = classes.get(name) if isinstance(name, str) else None
        if kind is None:
            message = f"no {noun} is registered as {short(name)}: register it, or mend the name"
            self.fault(place, message)
        elif "args" in entry:
            return self._construct(kind, entry["args"], (*place, "args"), depth)
        return None

    def _construct(self, kind: Any, args: object, place: Place, depth: int) -> Any:
        """Build a part from its `args`; None if any argument has a fault.

        Reading goes on after a fault, so that one pass finds all of them.
        """
        before = self.count
        data = self.mapping(args, place, _keys_of(kind))
        if data is None:
            return None
        try:
            values = {}
            for argument in arguments_of(kind):
                name = argument.name
                if name in data:
                    values[name] = self._argument(argument, data[name], (*place, name), depth + 1)
            return kind(**values) if self.count == before else None
        except ConfigurationError as error:
            for fault in error.faults:
                self.fault(place, fault)
        except Exception as error:  # a registered class may raise anything
            self.fault(place, cause(error))
        return None

    def _argument(self, argument: Argument, value: object, place: Place, depth: int) -> Any:
        """Read an argument as its kind of annotation requires."""
        holds = argument.holds
        if holds == "value":
            return self._value(argument.hint, value, place)
        if value is None and type(None) in get_args(argument.hint):
            return None
        if holds == "condition":
            return self.condition(value, place, depth)
        if holds == "target":
            return self.target(value, place, depth)
        if not isinstance(value, list | tuple):
            self.fault(place, f"is {_repr(value)}: a list is wanted")
            return None
        reader = self.condition if holds == "conditions" else self.target
        return tuple([reader(part, (*place, n), depth) for n, part in enumerate(value)])

    def _value(self, hint: Any, value: object, place: Place) -> Any:
        """Read a plain value, checked by pydantic against the annotation."""
        if hint is Any or (hint is str and isinstance(value, str)):
            return value
        if hint == Sequence[str] and isinstance(value, list) and set(map(type, value)) <= {str}:
            return list(value)  # not by way of JSON: a name may hold a lone surrogate
        try:
            # By way of JSON: strict, but a list may be a tuple or a set, a string an enum.
            return _adapter(hint).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            errors = error.errors()
            if get_origin(hint) in (Union, UnionType):
                self.fault(place, ", or: ".join(fault["msg"] for fault in errors))
                return None
            for fault in errors:
                self.fault((*place, *fault["loc"]), fault["msg"])
        except (TypeError, ValueError, RecursionError) as error:
            self.fault(place, f"is no JSON: {error}")
        except PydanticUserError as error:
            self.fault(place, f"cannot be read as {short(hint)}: {error.code}")
        return None

    def _too_large(self, place: Place, depth: int) -> None:
        """Record that a limit is exceeded; for the number of parts only once."""
        if depth > MAX_DEPTH:
            self.fault(place, f"is nested deeper than {MAX_DEPTH}")
        if self._nodes == MAX_NODES + 1:
            self.fault(place, f"is one too many: a graph may have {MAX_NODES:,} parts")


def encode(part: object) -> dict[str, object]:
    """Return a condition or a target as JSON; raise `ConfigurationError` if that is impossible."""
    kind: Any = type(part)
    if not has_name(part):
        raise ConfigurationError(f"{short(part)} is no condition and no target")
    if not is_dataclass(kind) and _has_state(part):
        raise ConfigurationError(f"{kind.name} cannot be written: make its class a dataclass")
    args: dict[str, object] = {}
    for argument in arguments_of(kind):
        value = getattr(part, argument.name)
        if argument.holds == "value":
            args[argument.name] = _value_to_json(
                value, argument.hint, f"{argument.name!r} of {kind.name}"
            )
        elif value is None:
            args[argument.name] = None
        elif argument.holds in ("conditions", "targets"):
            args[argument.name] = [_part_to_json(inner) for inner in value]
        else:
            args[argument.name] = _part_to_json(value)
    return {"name": kind.name, "args": args}


def parse(text: str | bytes) -> object:
    """Parse JSON; raise `ConfigurationError` if the text is invalid or too long."""
    if not isinstance(text, str | bytes | bytearray):
        raise ConfigurationError(f"{short(text)} is no text: give JSON, or use from_dict")
    if len(text) > MAX_TEXT:
        raise ConfigurationError(f"the text has {len(text):,} characters: {MAX_TEXT:,} are allowed")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the text is no JSON: {error}") from error


def _part_to_json(part: object) -> dict[str, object]:
    return encode(as_target(part) if isinstance(part, str) else part)


def _has_state(part: object) -> bool:
    """Tell whether an object that is no dataclass has state, which could not be stored."""
    attributes = (value for base in type(part).__mro__ for value in vars(base).values())
    return (
        bool(getattr(part, "__dict__", None))
        or isinstance(part, str | int | float | tuple | list | Mapping)
        or any(isinstance(value, MemberDescriptorType) for value in attributes)
    )


def _value_to_json(value: object, hint: Any, label: str) -> object:
    """Return a plain argument as JSON; `ConfigurationError` if it would not come back equal."""
    if isinstance(value, str | bool | None):
        return value
    if hint in (Any, object):  # without an annotation the decoder cannot restore the type
        json_value = as_json(value, label)
        if json_value != value:
            message = f"{label} would come back as {short(json_value)}: annotate what it is"
            raise ConfigurationError(message)
        return json_value
    try:
        return as_json(to_jsonable_python(value), label)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{label} cannot be written as JSON: {cause(error)}") from error


@cache
def _keys_of(kind: Any) -> Keys:
    """Return the keys of `args` for a class of conditions or targets."""
    init_fields = [field for field in fields(kind) if field.init] if is_dataclass(kind) else []
    optional = {
        field.name
        for field in init_fields
        if field.default is not MISSING or field.default_factory is not MISSING
    }
    names = [field.name for field in init_fields]
    return Keys(
        tuple(name for name in names if name not in optional),
        tuple(name for name in names if name in optional),
    )


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _repr(value: object) -> str:
    return "null" if value is None else short(value)
