"""The floor graph: who may get the floor after whom, according to the rules alone.

Each edge is the effect of one rule after a turn of one speaker. `check` reads the graph to find
endless cycles and unreachable participants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, AnyOf, Not
from agentgraph.routing.conditions import (
    Always,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
)
from agentgraph.routing.protocols import HUMAN, TransitionCondition
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

    def stays_in(self, cycle: frozenset[str]) -> bool:
        """Tell whether the floor stays inside `cycle`."""
        return not self.ends and not self.is_open and self.floor <= cycle


FloorGraph: TypeAlias = Mapping[str, Sequence[FloorEdge]]
"""The edges from each speaker, in the order in which the rules are tried."""


def floor_graph(rules: Rules, participants: Sequence[str]) -> dict[str, list[FloorEdge]]:
    """Return the floor graph; a speaker's last edge is taken if no other edge is."""
    # An edge that is the same for every speaker is built once: large graphs have many of them.
    same_for_all = {
        index: _edge(rule, HUMAN, participants, index)
        for index, rule in enumerate(rules.transitions)
        if not _depends_on_speaker(rule)
    }
    default = Transition(Always(), rules.default)
    graph: dict[str, list[FloorEdge]] = {}
    for speaker in (*participants, HUMAN):
        edges = graph[speaker] = []
        for index, rule in [*rules.rules_for(speaker), (None, default)]:
            fires = fires_for(rule.when, speaker)
            if fires is not False:
                edge = None if index is None else same_for_all.get(index)
                edges.append(edge or _edge(rule, speaker, participants, index))
            if fires is True:
                break
    return graph


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


def fires_for(condition: TransitionCondition, speaker: str) -> bool | None:
    """Evaluate a condition knowing only the speaker; None if the speaker does not decide it."""
    match condition:
        case Always():
            return True
        case FromSpeaker(agent_id):
            if agent_id == speaker:
                return True
            # The creator may be any participant, and is then also "human".
            return None if HUMAN in (agent_id, speaker) else False
        case AllOf(conditions):
            results = {fires_for(part, speaker) for part in conditions}
            return False if False in results else None if None in results else True
        case AnyOf(conditions):
            results = {fires_for(part, speaker) for part in conditions}
            return True if True in results else None if None in results else False
        case Not(part):
            inner = fires_for(part, speaker)
            return None if inner is None else not inner
        case _:
            return None


def depends_on_context_alone(when: TransitionCondition, speaker: str) -> bool:
    """Tell whether, for this speaker, only context values decide the condition."""
    leaves = [p for p in parts_of(when) if not isinstance(p, AllOf | AnyOf | Not)]
    open_leaves = [leaf for leaf in leaves if fires_for(leaf, speaker) is None]
    context = (ContextEquals, ContextIn, ContextThreshold)
    return bool(open_leaves) and all(isinstance(leaf, context) for leaf in open_leaves)


def _depends_on_speaker(rule: Transition) -> bool:
    """Tell whether the edge of a rule may depend on the speaker."""
    parts = (*parts_of(rule.when), *parts_of(rule.then))
    return any(isinstance(part, FromSpeaker | StayTarget | RoundRobinTarget) for part in parts)


def _edge(
    rule: Transition, speaker: str, participants: Sequence[str], index: int | None
) -> FloorEdge:
    """Return the effect of a rule after a turn of this speaker."""
    by_context = depends_on_context_alone(rule.when, speaker)
    speakers, floor, ends, is_open = _reach(as_target(rule.then), speaker, participants)
    return FloorEdge(frozenset(speakers), frozenset(floor), ends, index, by_context, is_open)


def _reach(
    target: Target, speaker: str, participants: Sequence[str]
) -> tuple[Sequence[str], Sequence[str], bool, bool]:
    """Return who speaks, who then gets the floor, whether it may end, whether it is open."""
    match target:
        case AgentTarget(agent_id) if agent_id != HUMAN:
            return [agent_id], [agent_id], False, False
        case StayTarget():
            return [speaker], [speaker], False, False
        case RoundRobinTarget(agents):
            ring = agents or tuple(participants)
            if not ring:
                return [], [], True, False
            position = ring.index(speaker) + 1 if speaker in ring else 0
            name = ring[position % len(ring)]
            return [name], [name], False, False
        case PhaseTarget(then=then):
            return _reach(as_target(then), speaker, participants)
        case ParallelTarget(agents, join):
            # Each of these agents may be the last one to speak, and the join may depend on it.
            joins = [_reach(as_target(join), agent, participants) for agent in agents]
            floor = [name for _, names, _, _ in joins for name in names]
            ends, is_open = any(reach[2] for reach in joins), any(reach[3] for reach in joins)
            return agents, floor, ends, is_open
        case TerminateTarget():
            return [], [], True, False
        case HumanTarget(str(name)) if name in participants:
            return [name], [name], True, False
        case HumanTarget() | AgentTarget() | RevertToInitiatorTarget():
            return [], [HUMAN], True, False
        case _:  # decided by the state, or by a registered class
            return participants, participants, False, True
