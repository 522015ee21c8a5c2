"""Composite conditions: `AllOf`, `AnyOf`, `Not`, and how any condition is evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgraph.errors import ConfigurationError
from agentgraph.routing.protocols import (
    RoutingEnvelope,
    RoutingState,
    TransitionCondition,
    is_condition,
)
from agentgraph.routing.values import as_tuple, cause, short


class Composable:
    """Base of conditions that compose with `&`, `|` and `~`; inherit it in your own.

    FromSpeaker("writer") & ~ContextEquals("done", True) | Always()
    """

    __slots__ = ()

    def __and__(self: TransitionCondition, other: TransitionCondition) -> AllOf:
        return AllOf((*_members(self, AllOf), *_members(other, AllOf)))

    def __or__(self: TransitionCondition, other: TransitionCondition) -> AnyOf:
        return AnyOf((*_members(self, AnyOf), *_members(other, AnyOf)))

    def __rand__(self: TransitionCondition, other: TransitionCondition) -> AllOf:
        return AllOf((*_members(other, AllOf), *_members(self, AllOf)))

    def __ror__(self: TransitionCondition, other: TransitionCondition) -> AnyOf:
        return AnyOf((*_members(other, AnyOf), *_members(self, AnyOf)))

    def __invert__(self: TransitionCondition) -> Not:
        return Not(self)


class _Composite(Composable):
    """A composite condition; `judge` is three-valued, because a part may fail."""

    __slots__ = ()

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        raise NotImplementedError

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return self.judge(state, envelope, []) is True


@dataclass(frozen=True, slots=True)
class AllOf(_Composite):
    """Fires if all these conditions fire; without conditions it always fires."""

    conditions: Sequence[TransitionCondition]

    name: ClassVar[str] = "all_of"

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _conditions(self.name, self.conditions))

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        results = [judge(part, state, envelope, trace) for part in self.conditions]
        return False if False in results else None if None in results else True


@dataclass(frozen=True, slots=True)
class AnyOf(_Composite):
    """Fires if at least one of these conditions fires; without conditions it never fires."""

    conditions: Sequence[TransitionCondition]

    name: ClassVar[str] = "any_of"

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _conditions(self.name, self.conditions))

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        results = [judge(part, state, envelope, trace) for part in self.conditions]
        return True if True in results else None if None in results else False


@dataclass(frozen=True, slots=True)
class Not(_Composite):
    """Fires if this condition does not fire."""

    condition: TransitionCondition

    name: ClassVar[str] = "not"

    def __post_init__(self) -> None:
        _conditions(self.name, (self.condition,))

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        result = judge(self.condition, state, envelope, trace)
        return None if result is None else not result


def judge(
    condition: TransitionCondition,
    state: RoutingState,
    envelope: RoutingEnvelope,
    trace: list[str],
) -> bool | None:
    """Evaluate a condition; None, with a line in the trace, if it raised or returned no bool.

    None is neither true nor false: `Not` of it does not fire, and an `AnyOf` may still fire by
    another part. A rule whose whole condition is None does not fire.
    """
    if isinstance(condition, _Composite):
        return condition.judge(state, envelope, trace)
    try:
        answer: object = condition.evaluate(state, envelope)
    except Exception as error:
        trace.append(f"{type(condition).name} failed: {cause(error)}")
        return None
    if answer is True or answer is False:
        return answer
    trace.append(f"{type(condition).name} answered {short(answer)}, which is no bool")
    return None


def _members(
    condition: TransitionCondition, kind: type[AllOf] | type[AnyOf]
) -> Sequence[TransitionCondition]:
    """Return the parts of a composite of this kind: `a & b & c` is one `AllOf` of three."""
    return condition.conditions if isinstance(condition, kind) else (condition,)


def _conditions(
    label: str, value: Iterable[TransitionCondition]
) -> tuple[TransitionCondition, ...]:
    """Return conditions as a tuple; raise `ConfigurationError` for other values."""
    conditions = as_tuple("conditions", value)
    strange = [c for c in conditions if not is_condition(c)]
    if strange:
        raise ConfigurationError(
            [f"{label}: {short(condition)} is no condition" for condition in strange]
        )
    return conditions
