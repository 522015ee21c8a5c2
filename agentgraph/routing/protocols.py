"""What routing reads, and what conditions and targets of one's own have to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from typing_extensions import TypeIs

from agentgraph.routing.decision import TransitionDecision

HUMAN = "human"
"""The name under which the human of a session is reached, whatever they are called."""


class RoutingState(Protocol):
    """What is known of a session, this envelope's turn counted in."""

    @property
    def participant_order(self) -> Sequence[str]: ...
    @property
    def expected_next_speaker(self) -> str | None: ...
    @property
    def last_speaker_id(self) -> str | None: ...
    @property
    def turn_count(self) -> int: ...
    @property
    def creator_id(self) -> str: ...
    @property
    def context_vars(self) -> Mapping[str, Any]: ...
    @property
    def phase(self) -> str: ...
    @property
    def active_agent(self) -> str | None: ...


class RoutingEnvelope(Protocol):
    """What was said."""

    @property
    def sender_id(self) -> str: ...
    @property
    def event_type(self) -> str: ...
    @property
    def event_data(self) -> Mapping[str, Any]: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


@runtime_checkable
class TransitionCondition(Protocol):
    """When a rule fires; a dataclass whose fields are its arguments can be stored with a graph."""

    name: ClassVar[str]

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether the rule fires."""
        ...


def is_condition(given: object) -> TypeIs[TransitionCondition]:
    """Tell whether something is a condition; quicker than `isinstance` with a protocol."""
    return callable(getattr(given, "evaluate", None)) and has_name(given)


def has_name(given: object) -> bool:
    """Tell whether the class of something says under which name it is stored."""
    return isinstance(getattr(type(given), "name", None), str)


@runtime_checkable
class TransitionTarget(Protocol):
    """Where a rule leads; a dataclass whose fields are its arguments can be stored with a graph."""

    name: ClassVar[str]

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        """Decide."""
        ...
