"""Conditions that can never hold, such as `FromSpeaker("a") & FromSpeaker("b")`.

This is read from how conditions are written; they are never evaluated, so that every finding is
certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import (
    Always,
    ContextBelow,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromChannelType,
    FromSource,
    FromSpeaker,
    InPhase,
    IntentIn,
    ToolCalled,
    TurnIs,
)
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.values import json_equal

Conditions = Sequence[TransitionCondition]


def never_holds(when: TransitionCondition, tools: Collection[str] | None = None) -> bool:
    """Tell whether a condition, as it is written, can never hold; it may say no of one that cannot.

    `tools` are all that the participants have, None where they are not known.
    """
    match when:
        case AnyOf(conditions):
            return all(never_holds(part, tools) for part in conditions)
        case AllOf(conditions):
            parts = [*_parts(conditions)]
            return any(never_holds(part, tools) for part in parts) or _contradict(parts)
        case Not(part):
            return _always_holds(part, tools)
        case ToolCalled(tool_name):
            return tools is not None and tool_name not in tools
        case ContextIn(_, values):
            return not values
        case InPhase(names) | IntentIn(names) | FromSource(names) | FromChannelType(names):
            return not names
    return False


def unknown_tools(
    when: TransitionCondition, people: Collection[str] | None, tools: Collection[str] | None
) -> list[str]:
    """Return the tools that a condition names and nobody has.

    `people` have no tools, but may send a packet that names one: a condition that names one of
    them as the speaker may hold.
    """
    parts = [*parts_of(when)]
    speakers = {part.agent_id for part in parts if isinstance(part, FromSpeaker)}
    if tools is None or not speakers.isdisjoint((*(people or ()), HUMAN)):
        return []
    names = [part.tool_name for part in parts if isinstance(part, ToolCalled)]
    return [name for name in dict.fromkeys(names) if name not in tools]


def _always_holds(when: TransitionCondition, tools: Collection[str] | None) -> bool:
    match when:
        case Always():
            return True
        case AllOf(conditions):
            return all(_always_holds(part, tools) for part in conditions)
        case AnyOf(conditions):
            return any(_always_holds(part, tools) for part in conditions)
        case Not(part):
            return never_holds(part, tools)
    return False


def _parts(conditions: Conditions) -> Iterator[TransitionCondition]:
    """Yield the parts of a conjunction, and of those within it."""
    for condition in conditions:
        if isinstance(condition, AllOf):
            yield from _parts(condition.conditions)
        else:
            yield condition


def _contradict(parts: Conditions) -> bool:
    """Tell whether the parts of a conjunction exclude each other."""
    negations = [part.condition for part in parts if isinstance(part, Not)]
    if any(part == negation for part in parts for negation in negations):
        return True
    return any(excludes(parts) for excludes in _EXCLUSIONS)


def _speakers_exclude(parts: Conditions) -> bool:
    # The creator has a name and is "human" too.
    names = {part.agent_id for part in parts if isinstance(part, FromSpeaker)} - {HUMAN}
    return len(names) > 1


def _tools_exclude(parts: Conditions) -> bool:
    # A round has one routing tool: the first that was called.
    return len({part.tool_name for part in parts if isinstance(part, ToolCalled)}) > 1


def _turns_exclude(parts: Conditions) -> bool:
    return len({part.turn for part in parts if isinstance(part, TurnIs)}) > 1


def _names_exclude(parts: Conditions) -> bool:
    return any(
        _are_disjoint([values(part) for part in parts if isinstance(part, kind)])
        for kind, values in _NAMES.items()
    )


def _are_disjoint(lists: Sequence[Sequence[str]]) -> bool:
    return len(lists) > 1 and not frozenset(lists[0]).intersection(*lists[1:])


def _values_exclude(parts: Conditions) -> bool:
    """Tell whether no value of a context variable fits all that is said of it."""
    keys = {part.key for part in parts if isinstance(part, ContextEquals | ContextIn)}
    return any(not _possible_values(key, parts) for key in keys)


def _possible_values(key: str, parts: Conditions) -> list[Any]:
    about = [part for part in parts if getattr(part, "key", None) == key]
    lists = [
        [part.value] if isinstance(part, ContextEquals) else [*part.values]
        for part in about
        if isinstance(part, ContextEquals | ContextIn)
    ]
    limits = [part for part in about if isinstance(part, ContextThreshold | ContextBelow)]
    negations = [part.condition for part in parts if isinstance(part, Not)]
    first, *more = lists
    return [
        value
        for value in first
        if all(any(json_equal(value, candidate) for candidate in values) for values in more)
        and all(_is_within(value, limit) for limit in limits)
        and not any(_holds_for(value, key, negation) for negation in negations)
    ]


def _holds_for(value: Any, key: str, when: TransitionCondition) -> bool:
    """Tell whether a condition on this context variable holds for the value."""
    match when:
        case ContextEquals(name, expected) if name == key:
            return json_equal(value, expected)
        case ContextIn(name, expected_values) if name == key:
            return any(json_equal(value, expected) for expected in expected_values)
        case ContextThreshold(name) | ContextBelow(name) if name == key:
            return _is_within(value, when)
    return False


def _bounds_exclude(parts: Conditions) -> bool:
    """Tell whether a context variable would have to reach a threshold and stay below it."""
    upper_limits = [part for part in parts if isinstance(part, ContextBelow)]
    return any(
        part.key == upper.key and part.threshold >= upper.threshold
        for part in parts
        if isinstance(part, ContextThreshold)
        for upper in upper_limits
    )


def _is_within(value: Any, limit: ContextThreshold | ContextBelow) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    is_floor = isinstance(limit, ContextThreshold)
    return value >= limit.threshold if is_floor else value < limit.threshold


_EXCLUSIONS: Sequence[Callable[[Conditions], bool]] = (
    _speakers_exclude,
    _tools_exclude,
    _turns_exclude,
    _names_exclude,
    _values_exclude,
    _bounds_exclude,
)
_NAMES: dict[type, Callable[[Any], Sequence[str]]] = {
    InPhase: lambda condition: condition.phases,
    IntentIn: lambda condition: condition.intents,
    FromSource: lambda condition: condition.sources,
    FromChannelType: lambda condition: condition.types,
}
