"""The floor graph: who may get the floor after whom, according to the rules alone.

Each edge is the effect of one rule after a turn of one speaker. `check` reads the graph to find
endless cycles and unreachable participants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from agentgraph.routing.analysis.contradictions import never_holds
from agentgraph.routing.analysis.shadowed_rules import (
    EarlierRules,
    always_decides,
    shadowed_rules,
)
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import (
    Always,
    ContextBelow,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
    ToolCalled,
)
from agentgraph.routing.protocols import HUMAN, TransitionCondition
from agentgraph.routing.questions import ModelChoice
from agentgraph.routing.rules import Rules, Transition
from agentgraph.routing.targets import (
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
    """The index of the rule; None for the default target."""
    by_context: bool
    """Whether only context values decide if the rule fires."""
    is_open: bool = False
    """Whether the rules do not determine the next speaker, so that it may be anyone."""
    waits: bool = False
    """Whether the session waits for a human then, and nobody speaks before."""

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
    by_tool = FloorEdge(anyone, anyone, ends=True, rule=None, by_context=False, is_open=True)
    graph: dict[str, list[FloorEdge]] = {}
    for speaker in (*participants, HUMAN):
        edges = [
            (None if index is None else same_for_all.get(index))
            or _edge(rule, speaker, participants, people, index)
            for index, rule in _rules_after(speaker, rules, never, people)
        ]
        # Parallel speakers are no nodes on the way to their join: their moves are counted here.
        parallel = [edge.speakers - edge.floor for edge in edges if len(edge.speakers) > 1]
        is_decided = not frozenset((speaker,)).union(*parallel).isdisjoint(deciders)
        graph[speaker] = [by_tool, *edges] if is_decided else edges
    return graph


def _rules_after(
    speaker: str, rules: Rules, never: Collection[int], people: Collection[str] | None
) -> Iterator[tuple[int | None, Transition]]:
    """Yield the rules that may fire after a turn of a speaker, in order, then the default."""
    earlier, has_earlier = EarlierRules(), False
    for index, rule in rules.rules_for(speaker):
        fires = False if index in never else fires_for(rule.when, speaker, people)
        if fires is None and has_earlier:
            when = AllOf((FromSpeaker(speaker), rule.when))
            if earlier.first_implied_by(when) is not None:
                continue  # an earlier rule fires whenever it would
        if fires is None and _names_speaker(rule.when) and always_decides(rule.then):
            earlier.add(index, rule.when)
            has_earlier = True
        if fires is not False:
            yield index, rule
        if fires is True and not isinstance(_innermost(rule.then), ModelChoice):
            return
    yield None, Transition(Always(), rules.default)


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


def reachable_from(names: Sequence[str], graph: FloorGraph) -> set[str]:
    """Return the participants that may get the floor, starting from `names`."""
    reachable = set(names)
    queue = list(names)
    while queue:
        for edge in graph.get(queue.pop(), ()):
            queue += edge.floor - reachable
            reachable |= edge.floor
    return reachable


def cycles_of(graph: FloorGraph) -> list[frozenset[str]]:
    """Return the strongly connected components: sets of speakers among which the floor can cycle.

    Kosaraju's algorithm, without recursion: a graph may have thousands of speakers.
    """
    after = {name: {n for e in graph[name] for n in e.floor if n in graph} for name in graph}
    before: dict[str, set[str]] = {name: set() for name in graph}
    for name, successors in after.items():
        for successor in successors:
            before[successor].add(name)
    seen_names: set[str] = set()
    cycles = []
    for name in reversed(_post_order(after)):
        component = frozenset(_post_order(before, [name], seen_names))
        if len(component) > 1 or name in after[name] & component:
            cycles.append(component)
    return sorted(cycles, key=sorted)


def _post_order(
    after: Mapping[str, Collection[str]],
    starts: Collection[str] | None = None,
    seen_names: set[str] | None = None,
) -> list[str]:
    """Return the nodes that a depth-first search reaches, each after all its successors."""
    seen_names = set() if seen_names is None else seen_names
    order = []
    for start in after if starts is None else starts:
        path = [] if start in seen_names else [(start, iter(after[start]))]
        seen_names.add(start)
        while path:
            successor = next((name for name in path[-1][1] if name not in seen_names), None)
            if successor is None:
                order.append(path.pop()[0])
            else:
                seen_names.add(successor)
                path.append((successor, iter(after[successor])))
    return order


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


def depends_on_context_alone(
    when: TransitionCondition, speaker: str, people: Collection[str] | None = None
) -> bool:
    """Tell whether, for this speaker, only context values decide the condition."""
    leaves = [p for p in parts_of(when) if not isinstance(p, AllOf | AnyOf | Not)]
    open_leaves = [leaf for leaf in leaves if fires_for(leaf, speaker, people) is None]
    context = (ContextEquals, ContextIn, ContextThreshold, ContextBelow)
    return bool(open_leaves) and all(isinstance(leaf, context) for leaf in open_leaves)


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
) -> FloorEdge:
    """Return the effect of a rule after a turn of this speaker."""
    by_context = depends_on_context_alone(rule.when, speaker, people)
    reach = _reach(_innermost(rule.then), speaker, participants)
    # For a person the session waits: they may stay away.
    waits_for_person = not frozenset(reach.floor).isdisjoint(people or ())
    return FloorEdge(
        frozenset(reach.speakers),
        frozenset(reach.floor),
        reach.ends or waits_for_person,
        index,
        by_context,
        reach.is_open,
        reach.waits or (waits_for_person and not reach.is_open and len(reach.speakers) == 1),
    )


class _Reach(NamedTuple):
    """Who speaks by a target, who then gets the floor, and whether the session may end or wait."""

    speakers: Sequence[str] = ()
    floor: Sequence[str] = ()
    ends: bool = False
    is_open: bool = False
    waits: bool = False


def _reach(target: Target, speaker: str, participants: Sequence[str]) -> _Reach:
    """Return where a target leads after a turn of this speaker."""
    match target:
        case AgentTarget(agent_id) if agent_id != HUMAN:
            return _Reach([agent_id], [agent_id])
        case StayTarget():
            return _Reach([speaker], [speaker], waits=speaker == HUMAN)
        case RoundRobinTarget(agents):
            ring = agents or tuple(participants)
            if not ring:
                return _Reach(ends=True)
            position = ring.index(speaker) + 1 if speaker in ring else 0
            name = ring[position % len(ring)]
            return _Reach([name], [name])
        case ModelChoice(agents=agents):
            names = agents or [name for name in participants if name != speaker]
            return _Reach(names, names)
        case ParallelTarget(agents, join):
            # Each of these agents may be the last one to speak, and the join may depend on it.
            joins = [_reach(_innermost(join), agent, participants) for agent in agents]
            floor = [name for reach in joins for name in reach.floor]
            ends, is_open = any(r.ends for r in joins), any(r.is_open for r in joins)
            return _Reach(agents, floor, ends, is_open)
        case TerminateTarget():
            return _Reach(ends=True)
        case HumanTarget(str(name)) if name in participants:
            return _Reach([name], [name], ends=True, waits=True)
        case HumanTarget() | AgentTarget() | RevertToInitiatorTarget():
            return _Reach([], [HUMAN], ends=True, waits=True)
        case _:  # decided by the state, or by a registered class
            return _Reach(participants, participants, is_open=True)
