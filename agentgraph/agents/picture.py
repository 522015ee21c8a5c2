"""An agent's graph as a picture, and as what a notebook shows of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgraph.display import fault
from agentgraph.drawing import Edge, Node, draw

if TYPE_CHECKING:
    from langchain_core.runnables.graph import Graph

    from agentgraph.agents.agent import Agent

__all__ = ["mimebundle_of", "picture_of"]

_MOST_NODES = 1000  # a picture of more is megabytes in a notebook, and there is nothing to see


def picture_of(graph: Graph) -> str:
    """Draw a graph as SVG, the graphs within it as clusters."""
    edges = [
        Edge(
            edge.source,
            edge.target,
            "" if edge.data is None else str(edge.data),
            dashed=edge.conditional,
        )
        for edge in graph.edges
    ]
    return draw(map(_node, graph.nodes), edges)


def _node(name: str) -> Node:
    *cluster, own = name.split(":")
    if own == "__start__":
        return Node(name, "start", "start", tuple(cluster))
    if own == "__end__":
        return Node(name, "end", "end", tuple(cluster))
    return Node(name, own, cluster=tuple(cluster))


def mimebundle_of(agent: Agent) -> dict[str, str]:
    """Return an agent for a notebook: its picture, or why there is none."""
    try:
        return _drawn(agent)
    except Exception as error:  # nothing runs here; whoever looks at an agent is told, not stopped
        message = f"{type(error).__name__}: {error}"
        return {
            "text/plain": f"{agent!r} cannot be drawn: {message}",
            "text/html": fault(f"{agent!r} cannot be drawn", message),
        }


def _drawn(agent: Agent) -> dict[str, str]:
    graph = agent.graph.get_graph(xray=True)
    if len(graph.nodes) > _MOST_NODES:
        note = f"{agent!r}: {len(graph.nodes)} nodes, too many to show; .svg() draws them"
        return {"text/plain": note}
    return {
        "text/plain": repr(agent),
        "image/svg+xml": picture_of(graph),
        "text/vnd.mermaid": graph.draw_mermaid(),
    }
