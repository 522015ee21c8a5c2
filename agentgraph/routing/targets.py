"""Where a rule leads."""

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
    """This one speaks; `"human"` is waited for, whatever they are called."""

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
    """The next of these speaks, after whoever spoke last; of none, the next participant."""

    agents: Sequence[str] = ()

    name: ClassVar[str] = "round_robin"

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", _ring("agents", self.agents))

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        ring = self.agents or tuple(state.participant_order)
        if not ring:
            return TransitionDecision.close("no_participants")
        last = state.last_speaker_id
        following = ring.index(last) + 1 if last is not None and last in ring else 0
        return TransitionDecision.speak(ring[following % len(ring)])


@dataclass(frozen=True, slots=True)
class StayTarget:
    """Whoever has spoken goes on."""

    name: ClassVar[str] = "stay"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.speak(envelope.sender_id)


@dataclass(frozen=True, slots=True)
class RevertToInitiatorTarget:
    """Whoever opened the session speaks."""

    name: ClassVar[str] = "revert_to_initiator"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.speak(state.creator_id)


@dataclass(frozen=True, slots=True)
class ActiveAgentTarget:
    """Whoever has the conversation speaks; after their own words, it is the human's turn."""

    name: ClassVar[str] = "active_agent"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        if state.active_agent is None:
            raise LookupError("nobody has the conversation")
        if state.active_agent == envelope.sender_id:
            return TransitionDecision.wait(state.creator_id)
        return TransitionDecision.speak(state.active_agent)


@dataclass(frozen=True, slots=True)
class AddressedTarget:
    """Those whom the envelope addresses speak: who is a participant; where nobody is, the human."""

    name: ClassVar[str] = "addressed"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        present = [name for name in addressed_to(envelope) if name in state.participant_order]
        if not present:
            return TransitionDecision.wait(state.creator_id)
        return TransitionDecision.speak(present[0])


@dataclass(frozen=True, slots=True)
class ParallelTarget:
    """These speak at once; when all have spoken, `join` says who goes on."""

    agents: Sequence[str]
    join: Target | str

    name: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", _ring("agents", self.agents))
        object.__setattr__(self, "join", as_target(self.join))
        if not self.agents:
            raise ConfigurationError("parallel: agents is empty: name who speaks")
        if any(isinstance(part, ParallelTarget) for part in parts_of(self.join)):
            raise ConfigurationError("parallel: join is parallel again: let one speak in between")

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.speak(*self.agents)


@dataclass(frozen=True, slots=True)
class TerminateTarget:
    """The session ends."""

    reason: str = "terminated"

    name: ClassVar[str] = "terminate"

    def __post_init__(self) -> None:
        check_text("reason", self.reason)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return TransitionDecision.close(self.reason)


T = TypeVar("T")


def _called(name: str) -> Callable[[type[T]], type[T]]:
    """Give a class a registered name where its instances have a field that is called `name`."""

    def call(cls: type[T]) -> type[T]:
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return call


@_called("human")
@dataclass(frozen=True)
class HumanTarget:
    """The session waits for this human, or for whoever opened it: without a name, or `"human"`."""

    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_text("name", self.name)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        named = self.name if self.name != HUMAN else None
        return TransitionDecision.wait(named or state.creator_id)


@_called("phase")
@dataclass(frozen=True)
class PhaseTarget:
    """The conversation enters a phase, and goes on as `then` says."""

    name: str
    then: Target | str

    def __post_init__(self) -> None:
        check_text("name", self.name)
        object.__setattr__(self, "then", as_target(self.then))

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        return replace(as_target(self.then).resolve(state, envelope), phase=self.name)


Target: TypeAlias = TransitionTarget | HumanTarget | PhaseTarget


def as_target(given: Target | str) -> Target:
    """Return a target; a string is an agent's name."""
    if isinstance(given, str):
        return AgentTarget(given)
    if not callable(getattr(given, "resolve", None)) or not has_name(given):
        raise ConfigurationError(f"{short(given)} is no target: give one, or a participant's name")
    return given


def addressed_to(envelope: RoutingEnvelope) -> tuple[str, ...]:
    """Return whom an envelope's metadata addresses: a name, or a list of them."""
    given: Any = envelope.metadata.get("addressed_to")
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Mapping) or not isinstance(given, list | tuple):
        return ()
    return tuple(name for name in given if isinstance(name, str))


def _ring(what: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise ConfigurationError(f"{what}={short(given)}: give a list of names")
    faults = [f"{what}: {short(name)} is no name" for name in given if not isinstance(name, str)]
    often = Counter(name for name in given if isinstance(name, str))
    faults += [f"{what}: {name!r} stands there twice" for name, n in often.items() if n > 1]
    if faults:
        raise ConfigurationError(faults)
    return tuple(given)
