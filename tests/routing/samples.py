"""States, envelopes, and conditions and targets of one's own, also such as fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentgraph.routing import (
    Composable,
    HumanTarget,
    Registry,
    RoutingEnvelope,
    RoutingState,
    TransitionCondition,
    TransitionDecision,
    TransitionTarget,
)

NAMES = ("a", "b", "c")
REGISTRY = Registry()


@dataclass(frozen=True)
class State:
    """A state, as a session has it."""

    participant_order: tuple[str, ...] = NAMES
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = "a"
    turn_count: int = 1
    creator_id: str = "user"
    context_vars: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "intake"
    active_agent: str | None = None


@dataclass(frozen=True)
class Envelope:
    """What was said."""

    sender_id: str = "a"
    event_data: Any = field(default_factory=dict)
    metadata: Any = field(default_factory=dict)
    event_type: str = "ag.packet"


def packet(sender: str = "a", **routing: Any) -> Envelope:
    return Envelope(sender, {"routing": routing} if routing else {})


@REGISTRY.register_condition
@dataclass(frozen=True)
class Raises(Composable):
    message: str = "broken"

    name: ClassVar[str] = "raises"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        raise LookupError(self.message)


@REGISTRY.register_condition
@dataclass(frozen=True)
class Answers(Composable):
    answer: Any

    name: ClassVar[str] = "answers"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return self.answer  # type: ignore[no-any-return]  # the point of it


@REGISTRY.register_condition
@dataclass(frozen=True)
class AtLeast(Composable):
    count: int
    of: tuple[TransitionCondition, ...]
    unless: TransitionCondition | None = None

    name: ClassVar[str] = "at_least"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        if self.unless is not None and self.unless.evaluate(state, envelope):
            return False
        return sum(part.evaluate(state, envelope) for part in self.of) >= self.count


@REGISTRY.register_target
@dataclass(frozen=True)
class Decides:
    """Answers whatever it is given."""

    answer: str

    name: ClassVar[str] = "decides"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        if self.answer == "raises":
            raise LookupError("nobody knows")
        decision: TransitionDecision = ODD[self.answer]
        return decision


@REGISTRY.register_target
@dataclass(frozen=True)
class ByPhase:
    """One target in a phase, another in all others."""

    phase: str
    then: TransitionTarget
    otherwise: TransitionTarget | None = None

    name: ClassVar[str] = "by_phase"

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        target = self.then if state.phase == self.phase else self.otherwise
        return (target or HumanTarget()).resolve(state, envelope)


ODD: dict[str, Any] = {
    "two": TransitionDecision.speak("a", "b"),
    "stranger": TransitionDecision.speak("nobody"),
    "nobody": TransitionDecision.speak(),
    "twice": TransitionDecision.speak("a", "a"),
    "list": TransitionDecision("speak", ["a"]),  # type: ignore[arg-type]
    "number": TransitionDecision("speak", (1,)),  # type: ignore[arg-type]
    "wait_for_stranger": TransitionDecision.wait("nobody"),
    "wait_for_nobody": TransitionDecision("wait"),
    "wait_for_two": TransitionDecision("wait", ("a", "b")),
    "dance": TransitionDecision("dance", ("a",)),  # type: ignore[arg-type]
    "close_with_speaker": TransitionDecision("close", ("a",)),
    "reason": TransitionDecision("close", close_reason=3),  # type: ignore[arg-type]
    "phase": TransitionDecision("speak", ("a",), phase=3),  # type: ignore[arg-type]
    "text": "a",
    "none": None,
}


class Hostile:
    """Can be compared with nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


class Unspeakable(Hostile):
    """Cannot even be written down."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def cyclic() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle
