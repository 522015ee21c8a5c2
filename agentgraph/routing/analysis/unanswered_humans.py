"""Humans for whom a session waits, and whose words no agent may answer.

A human's rules are followed with all values that context variables and models' answers may have:
none of these is the usual one. Conditions on the rest (the phase, the message's intent, address or
channel) are taken to hold where that leads to somebody else, as whoever writes them knows what the
messages carry. Models are taken to answer, where they choose who speaks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgraph.routing.analysis.contradictions import never_holds
from agentgraph.routing.analysis.floor_graph import FloorEdge, FloorGraph
from agentgraph.routing.analysis.partial_evaluation import (
    CONTEXT_CONDITIONS,
    fires_for,
    open_leaves,
)
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import FromSpeaker, ToolCalled
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.questions import ModelCondition

MOST_STEPS = 2_000
"""The steps on the rules of one human; where more are needed, the human counts as answered."""

_Values: TypeAlias = Mapping[TransitionCondition, bool]


@dataclass(frozen=True, slots=True)
class UnansweredHuman:
    """A human who has the floor and may speak without an answer, and the rules concerned."""

    name: str
    waits_again: bool
    """Whether the session may wait for a human again then."""
    closes: bool
    """Whether `default_target` may close the session then."""
    may_be_answered: bool
    """Whether an agent answers if some condition holds."""
    rules: tuple[int, ...]


def unanswered_humans(
    initial_speaker: str,
    graph: FloorGraph,
    reachable: Collection[str],
    people: Collection[str] | None,
) -> Iterator[UnansweredHuman]:
    """Yield the humans to whom rules give the floor, and whom possibly nobody answers.

    A rule that closes the session after their words is meant so, and no fault.
    """
    edges = [edge for name in sorted(reachable) for edge in graph.get(name, ())]
    names = {name for edge in edges for name in edge.waits_for}
    names |= {initial_speaker} & {HUMAN, *(people or ())}
    # Whom some rule waits for is a human wherever else a rule gives them the floor: in a ring too.
    humans = frozenset(names)
    effects = {name: _effects(name, graph.get(name, ()), people, humans) for name in names}
    next_humans = {
        name: {human for edge in effects[name] for human in _humans_after(edge, humans)}
        for name in names
    }
    for name in sorted(names):
        later_humans = _all_after(name, next_humans)
        closes = any(edge.rule is None and not edge.floor for edge in effects[name])
        if not closes and name not in later_humans:
            continue
        concerned = [*effects[name], *(edge for edge in edges if name in edge.waits_for)]
        yield UnansweredHuman(
            name,
            waits_again=name in later_humans,
            closes=closes,
            may_be_answered=any(
                _is_answer(edge, humans)
                for human in {name, *later_humans}
                for edge in effects.get(human, ())
            ),
            rules=tuple(sorted({edge.rule for edge in concerned if edge.rule is not None})),
        )


def _effects(
    name: str,
    edges: Sequence[FloorEdge],
    people: Collection[str] | None,
    humans: frozenset[str],
) -> list[FloorEdge]:
    """Return the edges that may be taken after a turn of this human.

    Rules are tried in their order; where a condition is open, both values of its parts are.
    """
    rules = [(edge, edge.when) for edge in edges if edge.when is not None]
    effects: dict[int, FloorEdge] = {}
    stack: list[tuple[int, _Values]] = [(0, {})]
    for _ in range(MOST_STEPS):
        if not stack:
            break
        position, values = stack.pop()
        edge, when = rules[position]
        may_fire, may_not_fire = _outcomes(when, name, people, values)
        leaf = next(_undecided_leaves(when, name, people, values), None)
        if may_fire and may_not_fire and leaf is not None:
            stack += [(position, {**values, leaf: value}) for value in (True, False)]
        elif not may_fire or (may_not_fire and not _is_meant(name, edge, people, humans)):
            stack.append((position + 1, values))
        elif position not in effects and _is_possible(values):
            effects[position] = edge
    return [*effects.values()]


def _outcomes(
    when: TransitionCondition, name: str, people: Collection[str] | None, values: _Values
) -> tuple[bool, bool]:
    """Tell whether a condition may hold, and whether it may not, with these values of its parts."""
    match when:
        case AllOf(conditions) | AnyOf(conditions):
            outcomes = [_outcomes(part, name, people, values) for part in conditions]
            true_of, false_of = (all, any) if isinstance(when, AllOf) else (any, all)
            return true_of(may for may, _ in outcomes), false_of(may for _, may in outcomes)
        case Not(part):
            return _outcomes(part, name, people, values)[::-1]
    value = fires_for(when, name, people)
    if value is None and isinstance(when, FromSpeaker) and people is not None and len(people) == 1:
        value = True  # the only person is the creator
    if value is None:
        value = values.get(when) if _is_uncertain(when, name, people) else None
    return value is not False, value is not True


def _undecided_leaves(
    when: TransitionCondition, name: str, people: Collection[str] | None, values: _Values
) -> Iterator[TransitionCondition]:
    for leaf in open_leaves(when, name, people):
        if _is_uncertain(leaf, name, people) and leaf not in values:
            yield leaf


def _is_uncertain(leaf: TransitionCondition, name: str, people: Collection[str] | None) -> bool:
    """Tell whether a condition may hold or not, whatever the human's message carries."""
    if isinstance(leaf, FromSpeaker):  # one of several people need not be the creator
        return leaf.agent_id == HUMAN != name and len(people or ()) > 1
    return isinstance(leaf, (*CONTEXT_CONDITIONS, ModelCondition, ToolCalled))


def _is_possible(values: _Values) -> bool:
    parts = [leaf if value else Not(leaf) for leaf, value in values.items()]
    return not never_holds(AllOf(parts))


def _is_answer(edge: FloorEdge, humans: frozenset[str]) -> bool:
    """Tell whether an agent may speak after a human's words."""
    return edge.is_open or not edge.speakers <= edge.waits_for | humans


def _is_meant(
    name: str, edge: FloorEdge, people: Collection[str] | None, humans: frozenset[str]
) -> bool:
    """Tell whether a rule that may fire is taken to: it leads to others, or closes the session.

    A rule closes it after all words of a human only if nothing but their name is its condition.
    """
    if edge.floor or edge.when is None:
        return _is_answer(edge, humans) or not edge.floor <= {name}
    return all(isinstance(leaf, FromSpeaker) for leaf in open_leaves(edge.when, name, people))


def _humans_after(edge: FloorEdge, humans: frozenset[str]) -> frozenset[str]:
    """Return the humans who get the floor after a human's words, with no agent in between."""
    return frozenset() if _is_answer(edge, humans) else edge.floor


def _all_after(name: str, next_humans: Mapping[str, Collection[str]]) -> set[str]:
    """Return all humans who may get the floor after this one's words before any agent."""
    queue, humans = [name], set[str]()
    while queue:
        new = {human for human in next_humans.get(queue.pop(), ()) if human not in humans}
        humans |= new
        queue += new
    return humans
