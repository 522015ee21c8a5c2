"""Who may take part: anything named that is, or has, a LangGraph graph over messages."""

from __future__ import annotations

from inspect import getattr_static
from typing import Any, Protocol, TypeAlias, cast

from langgraph.pregel.protocol import PregelProtocol

__all__ = ["ForeignGraph", "Graph", "Participant", "as_participant"]

Graph: TypeAlias = PregelProtocol[Any, Any, Any, Any]
"""A compiled LangGraph graph of any state, a remote one included."""


_ATTRIBUTES = ("name", "description", "graph")


class Participant(Protocol):
    """Somebody who can be given the floor."""

    @property
    def name(self) -> str:
        """Return the name others call it by."""
        ...

    @property
    def description(self) -> str:
        """Say what it is good for."""
        ...

    @property
    def graph(self) -> Graph:
        """Return the graph that runs it."""
        ...


class ForeignGraph:
    """Take part with a compiled graph that agentgraph did not build."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.name: str = getattr(graph, "name", "") or ""
        self.description: str = getattr(graph, "description", "") or ""


def as_participant(candidate: object) -> Participant | None:
    """Return what takes part, or None if this cannot."""
    if isinstance(candidate, PregelProtocol):
        return ForeignGraph(candidate)
    # Looked at without evaluating: `graph` compiles on first use.
    if all(getattr_static(candidate, name, None) is not None for name in _ATTRIBUTES):
        return cast(Participant, candidate)
    return None
