"""The built-in targets: what a rule decides when it fires.

Each has a `name`, under which it is stored, and `resolve`, which returns a decision. Targets of
your own have the same form; see `register_target`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from agentgraph.errors import ConfigurationError
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.decision import TransitionDecision
from agentgraph.routing.protocols import (
    HUMAN,
    RoutingEnvelope,
    RoutingState,
    TransitionTarget,
    has_name,
)
from agentgraph.routing.values import check_text, short


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """This agent speaks; for `"human"` the session waits for its creator, whatever their name."""

    agent_id: str

    name: ClassVar[str] = "agent"

    def __post_init__(self) -> None:
        check_text("agent_id", self.agent_id)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        if self.agent_id == HUMAN:
            return TransitionDecision.wait(state.creator_id)
        return TransitionDecision.speak(self.agent_id)


@dataclass(frozen=True, slots=True)
class RoundRobinTarget:
    """The next of these names after the last speaker speaks; without names, the next participant.

    After a speaker that is not among the names, the first one speaks. `state.participant_order` is
    the order of the participants; without any, the session closes with `no_participants`.
    """

    agents: Sequence[str] = ()

    name: ClassVar[str] = "round_robin"

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", distinct_names("agents", self.agents))

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        ring = self.agents or tuple(state.participant_order)
        if not ring:
            return TransitionDecision.close("no_participants")
        last = state.last_speaker_id
        position = ring.index(last) + 1 if last is not None and last in ring else 0
        return TransitionDecision.speak(ring[position % len(ring)])


@dataclass(frozen=True, slots=True)
class StayTarget:
    """The last speaker speaks again."""

    name: ClassVar[str] = "stay"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.speak(envelope.sender_id)


@dataclass(frozen=True, slots=True)
class RevertToInitiatorTarget:
    """The creator of the session speaks."""

    name: ClassVar[str] = "revert_to_initiator"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.speak(state.creator_id)


@dataclass(frozen=True, slots=True)
class ActiveAgentTarget:
    """The agent that has the conversation speaks; after its own turn the session waits.

    The session waits for its creator. If no agent has the conversation, the target fails, and the
    next rule is tried; the condition `HasActiveAgent` prevents that.
    """

    name: ClassVar[str] = "active_agent"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        if state.active_agent is None:
            raise LookupError("nobody has the conversation")
        if state.active_agent == envelope.sender_id:
            return TransitionDecision.wait(state.creator_id)
        return TransitionDecision.speak(state.active_agent)


@dataclass(frozen=True, slots=True)
class AddressedTarget:
    """The first participant that the envelope addresses speaks; if there is none, the human."""

    name: ClassVar[str] = "addressed"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        present = [name for name in addressed_to(envelope) if name in state.participant_order]
        if not present:
            return TransitionDecision.wait(state.creator_id)
        return TransitionDecision.speak(present[0])


@dataclass(frozen=True, slots=True)
class ParallelTarget:
    """These speak in parallel; when all have spoken, `join` decides.

    ParallelTarget(["lawyer", "accountant"], join="editor")
    """

    agents: Sequence[str]
    join: Target | str

    name: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", distinct_names("agents", self.agents))
        object.__setattr__(self, "join", as_target(self.join))
        if not self.agents:
            raise ConfigurationError("parallel: agents is empty: name who speaks")
        if any(isinstance(part, ParallelTarget) for part in parts_of(self.join)):
            raise ConfigurationError("parallel: join is parallel again: let one speak in between")

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.speak(*self.agents)


@dataclass(frozen=True, slots=True)
class TerminateTarget:
    """The session closes; `reason` becomes its `close_reason`."""

    reason: str = "terminated"

    name: ClassVar[str] = "terminate"

    def __post_init__(self) -> None:
        check_text("reason", self.reason)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.close(self.reason)


T = TypeVar("T")


def _registered_as(name: str) -> Callable[[type[T]], type[T]]:
    """Give a class a registered name, if its instances have a field called `name` already."""

    def call(cls: type[T]) -> type[T]:
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return call


@_registered_as("human")
@dataclass(frozen=True)
class HumanTarget:
    """The session waits for this human; without a name, or for `"human"`, for its creator."""

    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_text("name", self.name)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        name = self.name if self.name != HUMAN else None
        return TransitionDecision.wait(name or state.creator_id)


@_registered_as("phase")
@dataclass(frozen=True)
class PhaseTarget:
    """The conversation enters a phase, and then `then` decides.

    PhaseTarget("review", "editor")
    """

    name: str
    then: Target | str

    def __post_init__(self) -> None:
        check_text("name", self.name)
        object.__setattr__(self, "then", as_target(self.then))

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return replace(as_target(self.then).resolve(state, envelope), phase=self.name)


Target: TypeAlias = TransitionTarget | HumanTarget | PhaseTarget


def as_target(value: Target | str) -> Target:
    """Return a target; a string is an agent's name. Raises `ConfigurationError` for all else."""
    if isinstance(value, str):
        return AgentTarget(value)
    if not callable(getattr(value, "resolve", None)) or not has_name(value):
        raise ConfigurationError(f"{short(value)} is no target: give one, or a participant's name")
    return value


def addressed_to(envelope: RoutingEnvelope) -> tuple[str, ...]:
    """Return the names that an envelope's metadata addresses: one name, or a list of names."""
    value: Any = envelope.metadata.get("addressed_to")
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping) or not isinstance(value, list | tuple):
        return ()
    return tuple(name for name in value if isinstance(name, str))


def distinct_names(label: str, value: Any) -> tuple[str, ...]:
    """Return names as a tuple; raise `ConfigurationError` for repeated names and non-strings."""
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ConfigurationError(f"{label}={short(value)}: give a list of names")
    faults = [f"{label}: {short(name)} is no name" for name in value if not isinstance(name, str)]
    counts = Counter(name for name in value if isinstance(name, str))
    faults += [f"{label}: {name!r} stands there twice" for name, n in counts.items() if n > 1]
    if faults:
        raise ConfigurationError(faults)
    return tuple(value)
