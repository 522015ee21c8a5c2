"""What is known of a condition before a session runs: who speaks, and what decides the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias

from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import (
    Always,
    ContextBelow,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
)
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.questions import ModelCondition

Sources: TypeAlias = frozenset[Literal["context", "model"]]
"""What decides a condition besides the speaker, and may stay as it is for ever."""

NO_SOURCES: Sources = frozenset()
BY_CONTEXT: Sources = frozenset(("context",))
BY_MODEL: Sources = frozenset(("model",))

CONTEXT_CONDITIONS = (ContextEquals, ContextIn, ContextThreshold, ContextBelow)


def fires_for(
    condition: TransitionCondition, speaker: str, people: Collection[str] | None = None
) -> bool | None:
    """Evaluate a condition knowing only the speaker; None if the speaker does not decide it.

    The creator is "human", and one of `people`; it may be any participant where these are None.
    """
    match condition:
        case Always():
            return True
        case FromSpeaker(agent_id):
            if agent_id == speaker:
                return True
            name = speaker if agent_id == HUMAN else agent_id
            is_creator = HUMAN in (agent_id, speaker) and (people is None or name in people)
            return None if is_creator else False
        case AllOf(conditions):
            results = {fires_for(part, speaker, people) for part in conditions}
            return False if False in results else None if None in results else True
        case AnyOf(conditions):
            results = {fires_for(part, speaker, people) for part in conditions}
            return True if True in results else None if None in results else False
        case Not(part):
            inner = fires_for(part, speaker, people)
            return None if inner is None else not inner
        case _:
            return None


def sources_of(
    when: TransitionCondition, speaker: str, people: Collection[str] | None = None
) -> Sources | None:
    """Return what alone decides a condition for this speaker; None if something else does too.

    The empty set means that the speaker decides it.
    """
    leaves = open_leaves(when, speaker, people)
    if not all(isinstance(leaf, (*CONTEXT_CONDITIONS, ModelCondition)) for leaf in leaves):
        return None
    return open_sources(when, speaker, people)


def open_sources(
    when: TransitionCondition, speaker: str, people: Collection[str] | None = None
) -> Sources:
    """Return which sources take part in deciding a condition for this speaker."""
    leaves = [*open_leaves(when, speaker, people)]
    by_context = any(isinstance(leaf, CONTEXT_CONDITIONS) for leaf in leaves)
    by_model = any(isinstance(leaf, ModelCondition) for leaf in leaves)
    return (BY_CONTEXT if by_context else NO_SOURCES) | (BY_MODEL if by_model else NO_SOURCES)


def may_hold_for_good(
    when: TransitionCondition, speaker: str, people: Collection[str] | None = None
) -> bool:
    """Tell whether a condition holds turn after turn if no context variable is ever set.

    Models may answer anything, and no tool is called.
    """
    return _stays(when, True, speaker, people)


def open_leaves(
    when: TransitionCondition, speaker: str, people: Collection[str] | None = None
) -> Iterator[TransitionCondition]:
    """Yield the conditions inside a condition that the speaker does not decide."""
    for part in parts_of(when):
        is_leaf = not isinstance(part, AllOf | AnyOf | Not)
        if is_leaf and fires_for(part, speaker, people) is None:
            yield part


def _stays(
    when: TransitionCondition, value: bool, speaker: str, people: Collection[str] | None
) -> bool:
    """Tell whether a condition may keep this value for good."""
    match when:
        case AllOf(conditions) | AnyOf(conditions):
            need_all = isinstance(when, AllOf) is value
            parts = (_stays(part, value, speaker, people) for part in conditions)
            return all(parts) if need_all else any(parts)
        case Not(part):
            return _stays(part, not value, speaker, people)
        case ModelCondition():
            return True
        case ContextEquals(_, expected):
            return (expected is None) is value
        case ContextIn(_, expected_values):
            return (None in expected_values) is value
        case ContextThreshold() | ContextBelow():
            return not value
        case _:
            return fires_for(when, speaker, people) is value
