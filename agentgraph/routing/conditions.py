"""When a rule fires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgraph.errors import ConfigurationError
from agentgraph.routing.composites import Composable
from agentgraph.routing.protocols import HUMAN, RoutingEnvelope, RoutingState
from agentgraph.routing.values import (
    as_json,
    check_text,
    is_whole,
    json_equal,
    listed,
    plain,
    short,
)


@dataclass(frozen=True, slots=True)
class Always(Composable):
    """Every time."""

    name: ClassVar[str] = "always"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FromSpeaker(Composable):
    """This one has spoken; `"human"` is whoever opened the session."""

    agent_id: str

    name: ClassVar[str] = "from_speaker"

    def __post_init__(self) -> None:
        check_text("agent_id", self.agent_id)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        sender = envelope.sender_id
        return sender == self.agent_id or (self.agent_id == HUMAN and sender == state.creator_id)


@dataclass(frozen=True, slots=True)
class ToolCalled(Composable):
    """The first routing tool of the turn was this one."""

    tool_name: str

    name: ClassVar[str] = "tool_called"

    def __post_init__(self) -> None:
        check_text("tool_name", self.tool_name)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        routing = envelope.event_data.get("routing")
        return isinstance(routing, Mapping) and routing.get("tool") == self.tool_name


@dataclass(frozen=True, slots=True)
class ContextEquals(Composable):
    """A context variable has this value; one that is not set counts as None."""

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
    """A context variable has one of these values."""

    key: str
    values: Sequence[Any]

    name: ClassVar[str] = "context_in"

    def __post_init__(self) -> None:
        check_text("key", self.key)
        given = listed("values", self.values)
        object.__setattr__(self, "values", tuple(as_json(given, f"a value for {self.key!r}")))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextIn):
            return NotImplemented
        return self.key == other.key and json_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash((self.name, self.key))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        found = state.context_vars.get(self.key)
        return any(json_equal(found, value) for value in self.values)


@dataclass(frozen=True, slots=True)
class ContextThreshold(Composable):
    """A context variable is a number, and at least this one."""

    key: str
    threshold: int | float

    name: ClassVar[str] = "context_threshold"

    def __post_init__(self) -> None:
        check_text("key", self.key)
        what, given = f"the threshold of {self.key!r}", self.threshold
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise ConfigurationError(f"{what} is {short(given)}, not a number")
        as_json(given, what)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        found = state.context_vars.get(self.key)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return False
        return found >= self.threshold


@dataclass(frozen=True, slots=True)
class InPhase(Composable):
    """The conversation is in one of these phases."""

    phases: Sequence[str]

    name: ClassVar[str] = "in_phase"

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", _names("phases", self.phases))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.phase in self.phases


@dataclass(frozen=True, slots=True)
class IntentIn(Composable):
    """The envelope's metadata has one of these as its `intent`."""

    intents: Sequence[str]

    name: ClassVar[str] = "intent_in"

    def __post_init__(self) -> None:
        object.__setattr__(self, "intents", _names("intents", self.intents))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("intent") in self.intents


@dataclass(frozen=True, slots=True)
class FromSource(Composable):
    """It came by one of these sources: the metadata's `source`, else the sender."""

    sources: Sequence[str]

    name: ClassVar[str] = "from_source"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", _names("sources", self.sources))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("source", envelope.sender_id) in self.sources


@dataclass(frozen=True, slots=True)
class FromChannelType(Composable):
    """The envelope's metadata has one of these as its `channel_type`."""

    types: Sequence[str]

    name: ClassVar[str] = "from_channel_type"

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", _names("types", self.types))

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("channel_type") in self.types


@dataclass(frozen=True, slots=True)
class HasActiveAgent(Composable):
    """Somebody who is still there has the conversation."""

    name: ClassVar[str] = "has_active_agent"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.active_agent is not None and state.active_agent in state.participant_order


@dataclass(frozen=True, slots=True)
class FromActiveAgent(Composable):
    """Whoever has the conversation has spoken."""

    name: ClassVar[str] = "from_active_agent"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.active_agent is not None and envelope.sender_id == state.active_agent


@dataclass(frozen=True, slots=True)
class IsAddressed(Composable):
    """The envelope's metadata names somebody as `addressed_to`."""

    name: ClassVar[str] = "is_addressed"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return envelope.metadata.get("addressed_to") is not None


@dataclass(frozen=True, slots=True)
class TurnIs(Composable):
    """It is the turn of this number, the first being 1."""

    turn: int

    name: ClassVar[str] = "turn_is"

    def __post_init__(self) -> None:
        if not is_whole(self.turn):
            raise ConfigurationError(f"turn={short(self.turn)} is no whole number of 64 bits")

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return state.turn_count == self.turn


def _names(what: str, given: Iterable[str]) -> tuple[str, ...]:
    names = listed(what, given)
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise ConfigurationError([f"{what}: {short(name)} is no string" for name in strange])
    return tuple(map(plain, names))
