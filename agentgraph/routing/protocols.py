"""The protocols of routing: the state and the envelope that rules read, conditions and targets.

Any object with these attributes can be routed, and any class with these methods can be used in a
rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from typing_extensions import TypeIs

from agentgraph.routing.decision import TransitionDecision

HUMAN = "human"
"""The name for the human who created a session, whatever their own name."""


class RoutingState(Protocol):
    """The state of a session, with the turn of the envelope counted in."""

    @property
    def participant_order(self) -> Sequence[str]: ...
    @property
    def expected_next_speaker(self) -> str | None:
        """The participant that has the floor, None if none has."""
        ...

    @property
    def last_speaker_id(self) -> str | None:
        """The last participant that spoke with the floor; None before any has."""
        ...

    @property
    def turn_count(self) -> int:
        """The number of envelopes from senders that had the floor."""
        ...

    @property
    def creator_id(self) -> str:
        """The participant that opened the session."""
        ...

    @property
    def context_vars(self) -> Mapping[str, Any]: ...
    @property
    def phase(self) -> str: ...
    @property
    def active_agent(self) -> str | None:
        """The agent that has the conversation, by a handoff."""
        ...


class RoutingEnvelope(Protocol):
    """The envelope of the turn that has just been made."""

    @property
    def sender_id(self) -> str: ...
    @property
    def event_type(self) -> str: ...
    @property
    def event_data(self) -> Mapping[str, Any]:
        """The data of the packet: `routing` has the handoff or finish that a tool made."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...


@runtime_checkable
class TransitionCondition(Protocol):
    """When a rule fires. A dataclass whose fields are its arguments can be stored with a graph."""

    name: ClassVar[str]

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether the rule fires: a pure function, called again whenever a log is replayed.

        An error counts as not firing, and is named in the decision's trace.
        """
        ...


def is_condition(value: object) -> TypeIs[TransitionCondition]:
    """Tell whether a value is a condition; faster than `isinstance` with a protocol."""
    return callable(getattr(value, "evaluate", None)) and has_name(value)


def has_name(value: object) -> bool:
    """Tell whether a value's class has a `name`, under which it can be stored."""
    return isinstance(getattr(type(value), "name", None), str)


@runtime_checkable
class TransitionTarget(Protocol):
    """What a rule decides; a dataclass whose fields are its arguments can be stored in a graph."""

    name: ClassVar[str]

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        """Decide who speaks next: a pure function, called again whenever a log is replayed.

        An error is named in the decision's trace, and the next rule is tried.
        """
        ...
