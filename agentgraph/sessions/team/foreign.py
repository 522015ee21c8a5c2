"""Graphs of others in a team: what their tools decide is kept in their state, as in ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from agentgraph.guards import Guards
from agentgraph.guards.nodes.foreign_graph import guarded_copy
from agentgraph.outcomes import Note, NotesState, collect_notes
from agentgraph.participant import Graph
from agentgraph.patching import patched, wrap_node
from agentgraph.telling import AGENT_TAG, FOREIGN_TAG

_STEPS = 1_000
"""The super-steps of one turn; the team's own limit, which would else hold, is far beyond."""


def seated_foreign(name: str, graph: Graph, guards: Guards | None) -> Graph:
    """Return a copy of a graph that collects notes, and whose models say whose they are."""
    limit = (getattr(graph, "config", None) or {}).get("recursion_limit", _STEPS)
    graph = graph if guards is None else guarded_copy(graph, guards, name)
    if isinstance(graph, CompiledStateGraph):
        nodes = [node for node in graph.builder.nodes if not node.startswith("__")]
        graph = patched(graph, *(wrap_node(node, _collected, state=NotesState) for node in nodes))
    tags = {AGENT_TAG: name, FOREIGN_TAG: True}
    return graph.with_config(metadata=tags, recursion_limit=limit)


async def _collected(state: Any, call: Callable[[Any], Awaitable[Any]]) -> Any:
    notes: list[Note] = []
    with collect_notes(notes):
        result = await call(state)
    if not notes:
        return result
    written = {"notes": [{**note, "call_id": note.get("call_id", "")} for note in notes]}
    return [*(result if isinstance(result, list) else [result]), Command(update=written)]
