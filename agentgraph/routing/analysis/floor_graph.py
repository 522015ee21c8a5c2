"""The floor graph: who may get the floor after whom, according to the rules alone.

Each edge is the effect of one rule after a turn of one speaker. `check` reads the graph to find
endless cycles and unreachable participants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from agentgraph.routing.analysis.contradictions import never_holds, unknown_tools
from agentgraph.routing.analysis.partial_evaluation import (
    BY_MODEL,
    NO_SOURCES,
    Sources,
    fires_for,
    may_hold_for_good,
    open_sources,
    sources_of,
)
from agentgraph.routing.analysis.shadowed_rules import (
    EarlierRules,
    always_decides,
    shadowed_rules,
)
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf
from agentgraph.routing.conditions import Always, FromSpeaker
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.questions import ModelChoice
from agentgraph.routing.rules import Rules, Transition
from agentgraph.routing.targets import (
    ActiveAgentTarget,
    AddressedTarget,
    AgentTarget,
    HumanTarget,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    Target,
    TerminateTarget,
    as_target,
)


@dataclass(frozen=True, slots=True)
class FloorEdge:
    """The effect of a rule after a turn: the next speakers, and whether the session may end."""

    speakers: frozenset[str]
    floor: frozenset[str]
    ends: bool
    rule: int | None
    """The index of the rule; None for the default target, and for a tool of the speaker."""
    when: TransitionCondition | None
    """The condition of the rule; None if a tool of the speaker decides."""
    sources: Sources | None
    """What alone decides whether the rule fires; None if something else does too."""
    holds_by: Sources = NO_SOURCES
    """What may make the rule fire turn after turn, so that no later rule does."""
    is_open: bool = False
    """Whether the rules do not determine the next speaker, so that it may be anyone."""
    is_choice: bool = False
    """Whether a model chooses one of the speakers."""
    waits_for: frozenset[str] = frozenset()
    """The humans for whom the session may wait then."""

    def stays_in(self, cycle: frozenset[str]) -> bool:
        """Tell whether the floor stays inside `cycle`."""
        return not self.ends and not self.is_open and self.floor <= cycle


FloorGraph: TypeAlias = Mapping[str, Sequence[FloorEdge]]
"""The edges from each speaker, in the order in which the rules are tried."""


def floor_graph(
    rules: Rules,
    participants: Sequence[str],
    people: Collection[str] | None = None,
    tools: Collection[str] | None = None,
    deciders: Collection[str] = (),
) -> dict[str, list[FloorEdge]]:
    """Return the floor graph; a speaker's last edge is taken if no other edge is.

    A rule that never fires has no edge. `people` are the participants of whom one may be the
    creator, `tools` are all that the participants have; None where that is not known. `deciders`
    may hand the floor to anyone, or end the session.
    """
    never = {
        index
        for index, rule in enumerate(rules.transitions)
        if never_holds(rule.when, tools if unknown_tools(rule.when, people, tools) else None)
    }
    never |= {index for index, _ in shadowed_rules(rules)}
    # An edge that is the same for every speaker is built once: large graphs have many of them.
    same_for_all = {
        index: _edge(rule, HUMAN, participants, people, index)
        for index, rule in enumerate(rules.transitions)
        if not _depends_on_speaker(rule)
    }
    anyone = frozenset(participants)
    by_tool = FloorEdge(anyone, anyone, True, None, when=None, sources=None, is_open=True)
    graph: dict[str, list[FloorEdge]] = {}
    for speaker in (*participants, HUMAN):
        edges = [
            (None if index is None or is_fallback else same_for_all.get(index))
            or _edge(rule, speaker, participants, people, index, is_fallback)
            for index, rule, is_fallback in _rules_after(speaker, rules, never, people)
        ]
        # Parallel speakers are no nodes on the way to their join: their moves are counted here.
        parallel = [edge.speakers - edge.floor for edge in edges if len(edge.speakers) > 1]
        is_decided = not frozenset((speaker,)).union(*parallel).isdisjoint(deciders)
        graph[speaker] = [by_tool, *edges] if is_decided else edges
    return graph


def _rules_after(
    speaker: str, rules: Rules, never: Collection[int], people: Collection[str] | None
) -> Iterator[tuple[int | None, Transition, bool]]:
    """Yield the rules that may fire after a turn of a speaker, in order, then the default.

    Each comes with whether it is a fallback: tried only where a model that chooses has no answer.
    """
    earlier, choices = EarlierRules(), EarlierRules()
    for index, rule in rules.rules_for(speaker):
        fires = False if index in never else fires_for(rule.when, speaker, people)
        if fires is False or (fires is None and _follows(earlier, speaker, rule.when)):
            continue  # an earlier rule fires whenever it would
        yield index, rule, _follows(choices, speaker, rule.when)
        is_choice = isinstance(_innermost(rule.then), ModelChoice)
        if fires is True and not is_choice:
            return
        if is_choice:
            choices.add(index, Always() if fires else rule.when)
        if fires is None and _names_speaker(rule.when) and always_decides(rule.then):
            earlier.add(index, rule.when)
    default = Transition(Always(), rules.default)
    yield None, default, _follows(choices, speaker, default.when)


def _follows(earlier: EarlierRules, speaker: str, when: TransitionCondition) -> bool:
    """Tell whether one of the earlier rules fires whenever this condition holds for a speaker."""
    if not len(earlier):
        return False
    return earlier.first_implied_by(AllOf((FromSpeaker(speaker), when))) is not None


def reachable_from(names: Sequence[str], graph: FloorGraph) -> set[str]:
    """Return the participants that may get the floor, starting from `names`."""
    reachable = set(names)
    queue = list(names)
    while queue:
        for edge in graph.get(queue.pop(), ()):
            queue += edge.floor - reachable
            reachable |= edge.floor
    return reachable


def _innermost(target: Target | str) -> Target:
    """Return the target that decides who speaks, inside of those that enter a phase."""
    target = as_target(target)
    return _innermost(target.then) if isinstance(target, PhaseTarget) else target


def _names_speaker(when: TransitionCondition) -> bool:
    return any(isinstance(part, FromSpeaker) for part in parts_of(when))


_SPEAKER_PARTS = (FromSpeaker, StayTarget, RoundRobinTarget, ModelChoice)
"""The parts whose effect may depend on who has spoken."""


def _depends_on_speaker(rule: Transition) -> bool:
    """Tell whether the edge of a rule may depend on the speaker."""
    parts = (*parts_of(rule.when), *parts_of(rule.then))
    return any(isinstance(part, _SPEAKER_PARTS) for part in parts)


def _edge(
    rule: Transition,
    speaker: str,
    participants: Sequence[str],
    people: Collection[str] | None,
    index: int | None,
    is_fallback: bool = False,
) -> FloorEdge:
    """Return the effect of a rule after a turn of this speaker."""
    target = _innermost(rule.then)
    reach = _reach(target, speaker, participants)
    # For a person the session waits: they may stay away.
    waits_for_person = not frozenset(reach.floor).isdisjoint(people or ())
    persons = frozenset() if reach.is_open else frozenset(reach.floor).intersection(people or ())
    is_choice = isinstance(target, ModelChoice)
    holds_by = NO_SOURCES
    if may_hold_for_good(rule.when, speaker, people):
        by_choice = BY_MODEL if is_choice else NO_SOURCES
        holds_by = open_sources(rule.when, speaker, people) | by_choice
    return FloorEdge(
        frozenset(reach.speakers),
        frozenset(reach.floor),
        reach.ends or waits_for_person,
        index,
        rule.when,
        BY_MODEL if is_fallback else sources_of(rule.when, speaker, people),
        holds_by,
        reach.is_open,
        is_choice,
        persons.union(reach.waits_for),
    )


class _Reach(NamedTuple):
    """Who speaks by a target, who then gets the floor, and how the session may end or wait."""

    speakers: Sequence[str] = ()
    floor: Sequence[str] = ()
    ends: bool = False
    is_open: bool = False
    waits_for: Sequence[str] = ()


def _reach(target: Target, speaker: str, participants: Sequence[str]) -> _Reach:
    """Return where a target leads after a turn of this speaker."""
    match target:
        case AgentTarget(agent_id) if agent_id != HUMAN:
            return _Reach([agent_id], [agent_id])
        case StayTarget():
            return _Reach([speaker], [speaker], waits_for=[HUMAN] if speaker == HUMAN else [])
        case RoundRobinTarget(agents):
            names = _next_in(agents or participants, speaker)
            return _Reach(names, names, ends=not names)
        case ModelChoice(agents=agents):
            names = agents or [name for name in participants if name != speaker]
            return _Reach(names, names)
        case ParallelTarget(agents, join):
            return _joint_reach(agents, join, participants)
        case TerminateTarget():
            return _Reach(ends=True)
        case HumanTarget(str(name)) if name in participants:
            return _Reach([name], [name], ends=True, waits_for=[name])
        case HumanTarget() | AgentTarget() | RevertToInitiatorTarget():
            return _Reach([], [HUMAN], ends=True, waits_for=[HUMAN])
        case ActiveAgentTarget() | AddressedTarget():
            return _Reach(participants, [*participants, HUMAN], is_open=True, waits_for=[HUMAN])
        case _:  # decided by the state, or by a registered class
            return _Reach(participants, participants, is_open=True)


def _joint_reach(agents: Sequence[str], join: Target | str, participants: Sequence[str]) -> _Reach:
    """Return where parallel speakers lead: each may be the last one, and the join depend on it."""
    joins = [_reach(_innermost(join), agent, participants) for agent in agents]
    return _Reach(
        agents,
        [name for reach in joins for name in reach.floor],
        any(reach.ends for reach in joins),
        any(reach.is_open for reach in joins),
        [name for reach in joins for name in reach.waits_for],
    )


def _next_in(ring: Sequence[str], speaker: str) -> Sequence[str]:
    """Return the next name after a speaker's, the first after anyone else's; none in no ring."""
    position = ring.index(speaker) + 1 if speaker in ring else 0
    return [ring[position % len(ring)]] if ring else []
