"""The protocols of routing: the state and envelope that it reads, conditions and targets.

Anything with these attributes can be routed, and any class with these methods can stand in a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from typing_extensions import TypeIs

from agentgraph.routing.decision import TransitionDecision

HUMAN = "human"
"""The name under which the human who opened a session is reached, whatever they are called."""


class RoutingState(Protocol):
    """The state of a session, with the turn of the envelope counted in."""

    @property
    def participant_order(self) -> Sequence[str]: ...
    @property
    def expected_next_speaker(self) -> str | None:
        """Who has the floor."""
        ...

    @property
    def last_speaker_id(self) -> str | None:
        """Who had the floor last, None before anybody had it; interjections do not count."""
        ...

    @property
    def turn_count(self) -> int:
        """How many envelopes were sent by those who had the floor."""
        ...

    @property
    def creator_id(self) -> str:
        """Who opened the session."""
        ...

    @property
    def context_vars(self) -> Mapping[str, Any]: ...
    @property
    def phase(self) -> str: ...
    @property
    def active_agent(self) -> str | None:
        """Who was given the conversation by a handoff."""
        ...


class RoutingEnvelope(Protocol):
    """The envelope of the turn that has just been made."""

    @property
    def sender_id(self) -> str: ...
    @property
    def event_type(self) -> str: ...
    @property
    def event_data(self) -> Mapping[str, Any]:
        """The packet: its `routing` says whether the turn made a handoff or a finish, by a tool."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...


@runtime_checkable
class TransitionCondition(Protocol):
    """When a rule fires; a dataclass whose fields are its arguments can be stored with a graph."""

    name: ClassVar[str]

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether the rule fires: a pure function, asked again whenever a log is replayed.

        What it raises counts as not firing, and is named in the decision's trace.
        """
        ...


def is_condition(value: object) -> TypeIs[TransitionCondition]:
    """Tell whether something is a condition; quicker than `isinstance` with a protocol."""
    return callable(getattr(value, "evaluate", None)) and has_name(value)


def has_name(value: object) -> bool:
    """Tell whether the class of something says under which name it is stored."""
    return isinstance(getattr(type(value), "name", None), str)


@runtime_checkable
class TransitionTarget(Protocol):
    """Where a rule leads; a dataclass whose fields are its arguments can be stored with a graph."""

    name: ClassVar[str]

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        """Decide who goes on: a pure function, asked again whenever a log is replayed.

        What it raises is named in the decision's trace, and the next rule is tried.
        """
        ...
