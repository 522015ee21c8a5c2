"""The built-in conditions: when a rule fires.

Each is a frozen dataclass with a `name`, under which it is stored, and `evaluate`, which reads the
session's state and the envelope of the turn, with that turn counted in. Conditions of your own look
the same; see `register_condition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

from agentgraph.errors import ConfigurationError
from agentgraph.routing.composites import Composable
from agentgraph.routing.protocols import HUMAN, RoutingEnvelope, RoutingState
from agentgraph.routing.values import (
    as_json,
    as_tuple,
    check_text,
    is_whole,
    json_equal,
    plain,
    short,
)


@dataclass(frozen=True, slots=True)
class Always(Composable):
    """Fires every time."""

    name: ClassVar[str] = "always"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FromSpeaker(Composable):
    """Fires if this participant has spoken; `"human"` is the creator of the session."""

    agent_id: str

    name: ClassVar[str] = "from_speaker"

    def __post_init__(self) -> None:
        check_text("agent_id", self.agent_id)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        sender = envelope.sender_id
        return sender == self.agent_id or (self.agent_id == HUMAN and sender == state.creator_id)


@dataclass(frozen=True, slots=True)
class ToolCalled(Composable):
    """Fires if the first routing tool that the turn called was this one.

    A routing tool is a tool that some `ToolCalled` of the graph names.
    """

    tool_name: str

    name: ClassVar[str] = "tool_called"

    def __post_init__(self) -> None:
        check_text("tool_name", self.tool_name)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        routing = envelope.event_data.get("routing")
        return isinstance(routing, Mapping) and routing.get("tool") == self.tool_name


@dataclass(frozen=True, slots=True)
class ContextEquals(Composable):
    """Fires where a context variable has this value; one that is not set counts as None.

    Values are compared as JSON: `True` is not 1, and 1 is 1.0.
    """

    key: str
    value: Any

    name: ClassVar[str] = "context_equals"

    def __post_init__(self) -> None:
        check_text("key", self.key)
        object.__setattr__(self, "value", as_json(self.value, f"the value of {self.key!r}"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextEquals):
            return NotImplemented
        return self.key == other.key and json_equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash((self.name, self.key))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return json_equal(state.context_vars.get(self.key), self.value)


@dataclass(frozen=True, slots=True)
class ContextIn(Composable):
    """Fires where a context variable has one of these values."""

    key: str
    values: Sequence[Any]

    name: ClassVar[str] = "context_in"

    def __post_init__(self) -> None:
        check_text("key", self.key)
        values = as_tuple("values", self.values)
        object.__setattr__(self, "values", tuple(as_json(values, f"a value for {self.key!r}")))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextIn):
            return NotImplemented
        return self.key == other.key and json_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash((self.name, self.key))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        current = state.context_vars.get(self.key)
        return any(json_equal(current, value) for value in self.values)


@dataclass(frozen=True, slots=True)
class ContextThreshold(Composable):
    """Fires where a context variable is a number, and at least the threshold.

    ContextThreshold("confidence", 0.8)
    """

    key: str
    threshold: int | float

    name: ClassVar[str] = "context_threshold"

    def __post_init__(self) -> None:
        _check_threshold(self.key, self.threshold)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        current = state.context_vars.get(self.key)
        return _is_number(current) and current >= self.threshold


@dataclass(frozen=True, slots=True)
class ContextBelow(Composable):
    """Fires where a context variable is a number, and less than the threshold.

    Its negation fires also where the variable is not set; `ContextThreshold` does not.
    """

    key: str
    threshold: int | float

    name: ClassVar[str] = "context_below"

    def __post_init__(self) -> None:
        _check_threshold(self.key, self.threshold)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        current = state.context_vars.get(self.key)
        return _is_number(current) and current < self.threshold


@dataclass(frozen=True, slots=True)
class InPhase(Composable):
    """Fires where the conversation is in one of these phases."""

    phases: Sequence[str]

    name: ClassVar[str] = "in_phase"

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", _names("phases", self.phases))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.phase in self.phases


@dataclass(frozen=True, slots=True)
class IntentIn(Composable):
    """Fires where the envelope's metadata has one of these as its `intent`."""

    intents: Sequence[str]

    name: ClassVar[str] = "intent_in"

    def __post_init__(self) -> None:
        object.__setattr__(self, "intents", _names("intents", self.intents))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("intent") in self.intents


@dataclass(frozen=True, slots=True)
class FromSource(Composable):
    """Fires where the source is one of these: the metadata's `source`, else the sender."""

    sources: Sequence[str]

    name: ClassVar[str] = "from_source"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", _names("sources", self.sources))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("source", envelope.sender_id) in self.sources


@dataclass(frozen=True, slots=True)
class FromChannelType(Composable):
    """Fires where the envelope's metadata has one of these as its `channel_type`."""

    types: Sequence[str]

    name: ClassVar[str] = "from_channel_type"

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", _names("types", self.types))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("channel_type") in self.types


@dataclass(frozen=True, slots=True)
class HasActiveAgent(Composable):
    """Fires where an agent has the conversation, by a handoff, and still takes part."""

    name: ClassVar[str] = "has_active_agent"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.active_agent is not None and state.active_agent in state.participant_order


@dataclass(frozen=True, slots=True)
class FromActiveAgent(Composable):
    """Fires if the active agent has spoken."""

    name: ClassVar[str] = "from_active_agent"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.active_agent is not None and envelope.sender_id == state.active_agent


@dataclass(frozen=True, slots=True)
class IsAddressed(Composable):
    """Fires if the envelope's metadata names a participant as `addressed_to`."""

    name: ClassVar[str] = "is_addressed"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("addressed_to") is not None


@dataclass(frozen=True, slots=True)
class TurnIs(Composable):
    """Fires in the turn with this number; the first turn is 1."""

    turn: int

    name: ClassVar[str] = "turn_is"

    def __post_init__(self) -> None:
        if not is_whole(self.turn):
            raise ConfigurationError(f"turn={short(self.turn)} is no whole number of 64 bits")

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.turn_count == self.turn


def _check_threshold(key: object, threshold: object) -> None:
    check_text("key", key)
    label = f"the threshold of {key!r}"
    if not _is_number(threshold):
        raise ConfigurationError(f"{label} is {short(threshold)}, not a number")
    as_json(threshold, label)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _names(label: str, value: Iterable[str]) -> tuple[str, ...]:
    """Return names as a tuple of plain strings; raise `ConfigurationError` for other values."""
    names = as_tuple(label, value)
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise ConfigurationError([f"{label}: {short(name)} is no string" for name in strange])
    return tuple(map(plain, names))
