"""Read a graph for its faults, without running it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentgraph.routing.analysis.moves import Move, heard, is_by_context, moves_of
from agentgraph.routing.analysis.shadows import Earlier, shadowed
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import FromSpeaker
from agentgraph.routing.document.arguments import parts_of
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.resolve import Rules, in_order
from agentgraph.routing.targets import (
    AgentTarget,
    HumanTarget,
    ParallelTarget,
    RoundRobinTarget,
    as_target,
)

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a graph, what to do about it, and the rules that it is about."""

    code: str
    severity: Severity
    message: str
    rules: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = f" (rules {', '.join(map(str, self.rules))})" if self.rules else ""
        return f"{self.severity} {self.code}: {self.message}{where}"


def check(rules: Rules, participants: Sequence[str]) -> tuple[Finding, ...]:
    """Return all findings: errors, with which a team is not built, then warnings."""
    found = [*_limits(rules), *_strangers(rules, participants)]
    if not found:  # what names strangers cannot be followed
        moves = moves_of(rules, participants)
        reached = _reached_from([rules.initial_speaker], moves)
        found += [
            *_endless(rules, moves, reached),
            *_unreached(rules, moves, reached, participants),
        ]
    found += [*_shadowed(rules), *_sticky(rules)]
    return tuple(sorted(found, key=lambda finding: finding.severity))


def _limits(rules: Rules) -> Iterator[Finding]:
    if rules.max_turns is not None and rules.max_turns < 1:
        told = f"max_turns={rules.max_turns} lets nobody speak: write at least 1, or None"
        yield Finding("max_turns", "error", told)


def _strangers(rules: Rules, participants: Sequence[str]) -> Iterator[Finding]:
    there = f"there are {', '.join(participants)}" if participants else "there is nobody"

    def finding(what: str, name: str, indices: tuple[int, ...] = ()) -> Finding:
        told = f"{what} {name!r}, who is no participant: {there}"
        if name == HUMAN:
            told = f"{what} {name!r}, who cannot speak in turn with others: use their own name"
        return Finding("unknown_name", "error", told, indices)

    if rules.initial_speaker not in (*participants, HUMAN):
        yield finding("the initial speaker is", rules.initial_speaker)
    present = frozenset(participants)
    for name in _strangers_of(rules.default, present):
        yield finding("default_target names", name)
    for index, rule in enumerate(rules.transitions):
        parts = (rule.when, as_target(rule.then))
        named = (name for part in parts for name in _strangers_of(part, present))
        for name in dict.fromkeys(named):
            yield finding(f"rule {index} names", name, (index,))


def _strangers_of(whole: object, present: Collection[str]) -> Iterator[str]:
    for part in parts_of(whole):
        match part:
            case AgentTarget(name) | FromSpeaker(name) | HumanTarget(str(name)):
                if name not in present and name != HUMAN:
                    yield name
            case RoundRobinTarget(agents) | ParallelTarget(agents):
                yield from (name for name in agents if name not in present)


def _reached_from(names: Sequence[str], moves: Mapping[str, Sequence[Move]]) -> set[str]:
    """Return who can have the floor, beginning with these."""
    reached = set(names)
    waiting = list(names)
    while waiting:
        for move in moves.get(waiting.pop(), ()):
            waiting += move.floor - reached
            reached |= move.floor
    return reached


def _endless(
    rules: Rules, moves: Mapping[str, Sequence[Move]], reached: Collection[str]
) -> Iterator[Finding]:
    """Find circles that nothing leaves: for ever an error, but for a value a warning."""
    if rules.max_turns is not None:
        return
    for circle in _circles(moves):
        if not circle & set(reached):
            continue
        leaving = [m for name in circle for m in moves[name] if not m.stays_in(circle)]
        involved = {m.rule for name in circle for m in moves[name]}
        indices = tuple(sorted(index for index in involved if index is not None))
        named = ", ".join(sorted(circle))
        if not leaving:
            told = f"the floor never leaves {named}: add a rule that ends it, or set max_turns"
            yield Finding("endless_cycle", "error", told, indices)
        elif all(m.by_context for m in leaving):
            told = (
                f"the floor leaves {named} only by a context value: if no tool sets it, never; "
                "set max_turns, or add a rule that leaves otherwise"
            )
            yield Finding("context_exit", "warning", told, indices)


def _circles(moves: Mapping[str, Sequence[Move]]) -> list[frozenset[str]]:
    """Return the largest sets of speakers among whom the floor can go round."""
    after = {name: {n for m in moves[name] for n in m.floor if n in moves} for name in moves}
    before: dict[str, set[str]] = {name: set() for name in moves}
    for name, following in after.items():
        for one in following:
            before[one].add(name)
    placed: set[str] = set()
    circles = []
    for name in reversed(_left_last(after)):
        circle = frozenset(_left_last(before, [name], placed))
        if len(circle) > 1 or name in after[name] & circle:
            circles.append(circle)
    return sorted(circles, key=sorted)


def _left_last(
    after: Mapping[str, Collection[str]],
    starts: Collection[str] | None = None,
    seen: set[str] | None = None,
) -> list[str]:
    """Return whom a walk from these comes to, each when all after it have been walked."""
    seen = set() if seen is None else seen
    left = []
    for start in after if starts is None else starts:
        path = [] if start in seen else [(start, iter(after[start]))]
        seen.add(start)
        while path:
            following = next((name for name in path[-1][1] if name not in seen), None)
            if following is None:
                left.append(path.pop()[0])
            else:
                seen.add(following)
                path.append((following, iter(after[following])))
    return left


def _unreached(
    rules: Rules,
    moves: Mapping[str, Sequence[Move]],
    reached: Collection[str],
    participants: Sequence[str],
) -> Iterator[Finding]:
    made = [move for name in reached for move in moves.get(name, ())]
    if any(move.is_open for move in made):
        return
    heard_of = {name for move in made for name in move.speakers}
    for name in participants:
        if name not in reached and name not in heard_of:
            told = (
                f"no rule ever gives {name!r} the floor, only a Handoff could: add one, or leave "
                "the participant out"
            )
            yield Finding("unreached", "warning", told)


def _shadowed(rules: Rules) -> Iterator[Finding]:
    for index, earlier in shadowed(rules):
        told = (
            f"rule {index} never fires: whenever it would, rule {earlier} does before it; "
            "put it first, with a lower priority, or drop it"
        )
        yield Finding("shadowed", "warning", told, (index, earlier))


def _sticky(rules: Rules) -> Iterator[Finding]:
    """Find context values that send the floor back to whoever has it, turn after turn."""
    earlier = Earlier()
    for index, rule in in_order(rules.transitions):
        *_, target = parts_of(as_target(rule.then))
        freed = not isinstance(target, AgentTarget) or not any(
            _is_context_alone(way, target.agent_id)
            and earlier.first_implied_by(AllOf((FromSpeaker(target.agent_id), way))) is None
            for way in _ways(rule.when)
        )
        earlier.add(index, rule.when)
        if freed:
            continue
        told = (
            f"rule {index} also fires on {target.agent_id!r}'s own turns while the value stays as "
            "it is, and keeps the floor there: put a rule from that speaker before it, or let a "
            "tool delete the value"
        )
        yield Finding("sticky_context", "warning", told, (index,))


def _ways(when: TransitionCondition) -> Iterator[TransitionCondition]:
    """Yield the conditions of which each alone makes a rule fire."""
    if isinstance(when, AnyOf):
        for part in when.conditions:
            yield from _ways(part)
    else:
        yield when


def _is_context_alone(when: TransitionCondition, speaker: str) -> bool:
    is_open = heard(when, speaker) is None and not isinstance(when, Not)
    return is_open and is_by_context(when, speaker)
