"""Conditions of conditions, and what becomes of one that fails."""

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
from agentgraph.routing.values import cause, listed, short


class Composable:
    """Conditions compose: `one & other`, `one | other`, `~one`. Inherit it in your own."""

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
    """A condition of conditions: one of them that fails is neither true nor false."""

    __slots__ = ()

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        raise NotImplementedError

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return self.judge(state, envelope, []) is True


@dataclass(frozen=True, slots=True)
class AllOf(_Composite):
    """All of these fire; none at all counts as all."""

    conditions: Sequence[TransitionCondition]

    name: ClassVar[str] = "all_of"

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _conditions(self.name, self.conditions))

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        found = [judge(part, state, envelope, trace) for part in self.conditions]
        return False if False in found else None if None in found else True


@dataclass(frozen=True, slots=True)
class AnyOf(_Composite):
    """One of these fires."""

    conditions: Sequence[TransitionCondition]

    name: ClassVar[str] = "any_of"

    def __post_init__(self) -> None:
        object.__setattr__(self, "conditions", _conditions(self.name, self.conditions))

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        found = [judge(part, state, envelope, trace) for part in self.conditions]
        return True if True in found else None if None in found else False


@dataclass(frozen=True, slots=True)
class Not(_Composite):
    """This does not fire."""

    condition: TransitionCondition

    name: ClassVar[str] = "not"

    def __post_init__(self) -> None:
        _conditions(self.name, (self.condition,))

    def judge(
        self, state: RoutingState, envelope: RoutingEnvelope, trace: list[str]
    ) -> bool | None:
        found = judge(self.condition, state, envelope, trace)
        return None if found is None else not found


def judge(
    condition: TransitionCondition,
    state: RoutingState,
    envelope: RoutingEnvelope,
    trace: list[str],
) -> bool | None:
    """Evaluate a condition; None where it failed, which goes into the trace.

    What failed is neither true nor false: it makes no `Not` fire, and no `AnyOf` that has another
    reason to fire stay silent. A rule whose whole condition failed does not fire.
    """
    if isinstance(condition, _Composite):
        return condition.judge(state, envelope, trace)
    try:
        fired: object = condition.evaluate(state, envelope)
    except Exception as error:
        trace.append(f"{type(condition).name} failed: {cause(error)}")
        return None
    if fired is True or fired is False:
        return fired
    trace.append(f"{type(condition).name} answered {short(fired)}, which is no bool")
    return None


def _members(
    condition: TransitionCondition, kind: type[AllOf] | type[AnyOf]
) -> Sequence[TransitionCondition]:
    return condition.conditions if isinstance(condition, kind) else (condition,)


def _conditions(what: str, given: Iterable[TransitionCondition]) -> tuple[TransitionCondition, ...]:
    conditions = listed("conditions", given)
    strange = [c for c in conditions if not is_condition(c)]
    if strange:
        raise ConfigurationError([f"{what}: {short(each)} is no condition" for each in strange])
    return conditions
