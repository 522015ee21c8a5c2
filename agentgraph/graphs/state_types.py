"""The types of a state's channels: what does not fit is refused when a node writes it.

LangGraph stores whatever a node writes, and a value that fits no channel is then found by whoever
reads it. What is refused here is written nowhere, neither as a pending write nor by `update_state`,
which runs the same writers. A value that fits is stored as it was given.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)

from langchain_core.runnables import RunnableConfig
from langgraph.channels import AnyValue, BinaryOperatorAggregate, EphemeralValue, LastValue
from langgraph.channels import UntrackedValue as Untracked
from langgraph.channels.base import BaseChannel
from langgraph.types import Overwrite
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError, to_json
from typing_extensions import TypedDict, is_typeddict

from agentgraph.errors import ConfigurationError
from agentgraph.graphs.private import (
    CONF,
    CONFIG_KEY_READ,
    ChannelWrite,
    ChannelWriteTupleEntry,
    RunnableCallable,
)

_ATTRIBUTE = "agentgraph_state_types"
"""The attribute of a builder with its types: all graphs that are compiled of it share them."""
_PLAIN = (AnyValue, EphemeralValue, LastValue, Untracked)
"""The channels that take a value as it is."""


def declare_types(builder: Any, private: Collection[str]) -> None:
    """Let the graphs compiled of a builder refuse misfits in all channels but the private ones."""
    schema = builder.state_schema
    keys = [key for key in schema.__annotations__ if key not in private and key in builder.channels]
    hints = get_type_hints(schema, include_extras=True) if keys else {}
    checks = {key: _check_of(hints[key], builder.channels[key]) for key in keys}
    known_checks = {key: check for key, check in checks.items() if check is not None}
    setattr(builder, _ATTRIBUTE, known_checks)


def check_writes(graph: Any) -> None:
    """Put the checks of a graph's builder before the writes of its nodes."""
    checks: Mapping[str, _Check] = getattr(graph.builder, _ATTRIBUTE, {})
    if not checks:
        return
    for name, node in graph.nodes.items():
        for number, writer in enumerate(node.writers):
            updates_of = _mapper_of(writer)
            if updates_of is not None:
                # A step of its own: LangGraph joins writers that follow each other.
                node.writers.insert(number, _refusal(name, updates_of, checks))
                break


def _mapper_of(writer: object) -> Callable[[Any], Any] | None:
    """Return the function by which a writer takes updates from a node's result, if it does."""
    writes: Any = writer.writes if isinstance(writer, ChannelWrite) else ()
    is_update = bool(writes) and isinstance(writes[0], ChannelWriteTupleEntry)
    return writes[0].mapper if is_update else None


def _refusal(name: str, updates_of: Callable[[Any], Any], checks: Mapping[str, _Check]) -> Any:
    """Return what comes before the writes of a node, and lets only those through that fit."""

    def refuse(result: Any, config: RunnableConfig) -> Any:
        faults = [
            f"the node {name!r} writes {type(value).__name__} to the channel {key!r} of the state, "
            f"which does not take it: {fault}"
            for key, value in updates_of(result) or ()
            if (check := checks.get(key)) is not None
            and (fault := check.fault(value, partial(config[CONF][CONFIG_KEY_READ], key)))
        ]
        if faults:
            raise ConfigurationError(faults, code="state")
        return result

    async def arefuse(result: Any, config: RunnableConfig) -> Any:
        return refuse(result, config)

    return RunnableCallable(refuse, arefuse, trace=False)


@dataclass(frozen=True, slots=True)
class _Check:
    """What one channel takes."""

    adapter: TypeAdapter[Any]
    reducer: Callable[[Any, Any], Any] | None

    def fault(self, value: object, read: Callable[[], Any]) -> str:
        """Return what is wrong with an update, "" where nothing is."""
        value, is_whole = _overwritten(value) if self.reducer is not None else (value, False)
        fault = self._misfit(value)
        if not fault or self.reducer is None or is_whole:
            return fault
        try:  # a reducer may take updates of another type than its channel has
            current = read()
            total = value if current is None else self.reducer(current, value)
        except Exception:
            return fault
        return self._misfit(total) and fault

    def _misfit(self, value: object) -> str:
        try:
            self.adapter.validate_python(value, strict=True)
        except ValidationError as error:
            return "" if self._fits_as_json(value) else _reasons(error)
        except Exception as error:  # of a validator of the user's
            return str(error)
        return ""

    def _fits_as_json(self, value: object) -> bool:
        """Tell whether a value fits in the form that a client sends: a model as an object, say."""
        try:
            self.adapter.validate_json(to_json(value), strict=True)
        except Exception:  # what is no JSON does not fit as JSON
            return False
        return True


def _overwritten(value: Any) -> tuple[Any, bool]:
    """Return what an update puts in the place of a channel's value, and whether it does so."""
    if isinstance(value, Overwrite):
        return value.value, True
    if isinstance(value, dict) and value.keys() == {"__overwrite__"}:
        return value["__overwrite__"], True
    return value, False


def _check_of(hint: Any, channel: BaseChannel[Any, Any, Any]) -> _Check | None:
    reducer = channel.operator if isinstance(channel, BinaryOperatorAggregate) else None
    if reducer is None and not isinstance(channel, _PLAIN):
        return None
    adapter = _adapter_of(_without_marks(hint))
    return None if adapter is None else _Check(adapter, reducer)


def _adapter_of(hint: Any) -> TypeAdapter[Any] | None:
    """Return the adapter of a type, None for a type that pydantic does not know or takes all of."""
    if hint is Any or hint is object:
        return None
    for config in (ConfigDict(arbitrary_types_allowed=True), None):
        try:
            return TypeAdapter(_portable(hint), config=config)
        except (PydanticUserError, SchemaError, TypeError, NameError):
            continue  # some types have a configuration of their own and take no other
    return None


def _without_marks(hint: Any) -> Any:
    """Return a field's type without what a TypedDict says of the field, and without its reducer."""
    while get_origin(hint) in (Required, NotRequired, Annotated):
        hint = get_args(hint)[0]
    return hint


def _portable(hint: Any) -> Any:
    """Return a type whose TypedDicts pydantic reads: before Python 3.12 not those of `typing`."""
    if is_typeddict(hint):
        return _portable_dict(hint)
    origin, args = get_origin(hint), get_args(hint)
    if not args or origin in (Literal, Annotated):
        return hint
    parts = tuple(
        [*map(_portable, part)] if isinstance(part, list) else _portable(part) for part in args
    )
    if parts == args:
        return hint
    if not isinstance(origin, type) or origin.__module__ == "types":
        return reduce(operator.or_, parts)
    return origin[parts]  # type: ignore[index]  # it had arguments


def _portable_dict(hint: Any) -> Any:
    if type(hint).__module__ != "typing":
        return hint
    fields: dict[str, Any] = {}
    for key, field in get_type_hints(hint).items():
        part: Any = _portable(field)
        fields[key] = Required[part] if key in hint.__required_keys__ else NotRequired[part]
    return TypedDict(hint.__name__, fields)  # type: ignore[operator]


def _reasons(error: ValidationError) -> str:
    reasons: Iterator[str] = (
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault["loc"] else fault["msg"]
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )
    return "; ".join(reasons)
