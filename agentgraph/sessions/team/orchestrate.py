"""`orchestrate`: a patcher that makes the nodes of any graph take turns by routing rules."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import AnyGraph, add_state
from agentgraph.participant import ForeignGraph, Participant
from agentgraph.patching import Patcher
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.graph import TeamState
from agentgraph.sessions.team.spec import Routing


def orchestrate(routing: Routing, **options: Any) -> Patcher:
    """Return a patcher that makes a graph's nodes take turns: each node becomes a participant.

    A node is a compiled graph (an agent's, for instance) or a function of messages. The options are
    those of `Team`; the session of a thread is kept in memory. A graph with edges of its own is
    refused: they would run nodes that do not have the floor.
    """

    def patch(graph: AnyGraph) -> AnyGraph:
        edges = sorted(f"{a} → {b}" for a, b in graph.edges if a != START)
        if edges or graph.branches:
            raise ConfigurationError(
                "the rules say who follows whom: leave the edges to them"
                + (f", which are {', '.join(edges)}" if edges else "")
            )
        members = [_participant(name, spec.runnable, graph) for name, spec in graph.nodes.items()]
        graph.nodes.clear()
        graph.edges.clear()
        add_state(graph, TeamState)
        return CompiledTeam(members, routing, **options).add_to(graph)

    return Patcher(patch)


class _NodeParticipant:
    """A participant made from a function of messages."""

    def __init__(self, name: str, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        self.name = name
        self.description = ""
        self.graph = graph


def _participant(name: str, runnable: Any, graph: AnyGraph) -> Participant:
    # A function is compiled as a graph of one node, since a speaker runs a graph.
    if isinstance(runnable, CompiledStateGraph):
        participant = ForeignGraph(runnable)
        participant.name = name
        return participant
    single: AnyGraph = StateGraph(graph.state_schema)
    single.add_node(name, runnable)
    single.add_edge(START, name)
    single.add_edge(name, END)
    return _NodeParticipant(name, single.compile(name=name))
