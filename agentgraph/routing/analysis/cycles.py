"""The cycles of a floor graph, and what alone makes the floor leave them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from agentgraph.routing.analysis.floor_graph import FloorGraph
from agentgraph.routing.analysis.partial_evaluation import BY_MODEL, NO_SOURCES, Sources


class Cycle(NamedTuple):
    """Speakers among whom the floor may stay for ever."""

    names: frozenset[str]
    exits: Sequence[Sources]
    """For each way out, what alone decides that the floor takes it."""


def endless_cycles(graph: FloorGraph) -> Iterator[Cycle]:
    """Yield the cycles that the floor never leaves, or only by what may never come."""
    for names in cycles_of(graph):
        trapped_names = _trapped(names, graph)
        for inner_names in cycles_of({name: graph[name] for name in trapped_names}):
            exits = [way for name in inner_names for way in _exits(name, inner_names, graph)]
            if all(exits):
                yield Cycle(inner_names, exits)


def cycles_of(graph: FloorGraph) -> list[frozenset[str]]:
    """Return the strongly connected components: sets of speakers among which the floor can cycle.

    Where the session waits for a human a cycle ends, as the human may stay away.

    Kosaraju's algorithm, without recursion: a graph may have thousands of speakers.
    """
    after = {
        name: {n for e in graph[name] for n in e.floor - e.waits_for if n in graph}
        for name in graph
    }
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


def _trapped(names: frozenset[str], graph: FloorGraph) -> frozenset[str]:
    """Return the speakers from whom the floor need not get out, not even by way of others."""
    while True:
        free_names = {name for name in names if not all(_exits(name, names, graph))}
        if not free_names:
            return names
        names -= free_names


def _exits(name: str, cycle: frozenset[str], graph: FloorGraph) -> Iterator[Sources]:
    """Yield, for each way out of a cycle after a speaker, what alone decides that it is taken.

    The empty set means that something else decides it too. A rule that may keep the floor inside
    for good holds back the ways out behind it.
    """
    holds = NO_SOURCES
    for edge in graph[name]:
        may_stay = edge.stays_in(cycle) or (edge.is_choice and not edge.floor.isdisjoint(cycle))
        if not edge.stays_in(cycle):
            by_choice = BY_MODEL if edge.is_choice and may_stay else NO_SOURCES
            yield holds | (NO_SOURCES if edge.sources is None else edge.sources | by_choice)
        if may_stay:
            holds |= edge.holds_by


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
