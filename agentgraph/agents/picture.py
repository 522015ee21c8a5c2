"""An agent's graph as a picture, and what a notebook shows of the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from agentgraph.agents.nodes.middleware import Middleware
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.display import fault
from agentgraph.drawing import Edge, Node, draw
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.guards import DEFAULT, Guards
from agentgraph.guards.decision import FAILURE_CLASSES
from agentgraph.guards.mechanisms.effects import effect_of
from agentgraph.guards.nodes.agent_graph import AWAIT_HUMAN, COMPENSATE

if TYPE_CHECKING:
    from langchain_core.runnables.graph import Graph


_Level: TypeAlias = "tuple[str, AgentSpec, Guards | None]"
"""The prefix of the names of an agent's nodes, the agent, and its policy."""


def visible_graph(agent: AgentSpec, compiled_graph: AnyCompiledGraph) -> Graph:
    """Return a tree's graph for drawing: without the nodes of guards that no run can reach."""
    graph = compiled_graph.get_graph(xray=True)
    idle = _idle_nodes(agent)
    graph.nodes = {name: node for name, node in graph.nodes.items() if name not in idle}
    graph.edges = [edge for edge in graph.edges if not idle & {edge.source, edge.target}]
    return graph


def _idle_nodes(agent: AgentSpec) -> set[str]:
    """Return the guards' nodes that no run can reach: no policy asks humans, no tool is undone."""
    levels = [*_levels(agent, "", None)]
    tools = [
        tool
        for _, member, _ in levels
        for tool in (*member.own_tools, *Middleware(member.middleware).tools)
    ]
    effects = [effect for effect in map(effect_of, tools) if effect is not None]
    undoes = any(effect.compensate is not None for effect in effects)
    # The outcome of an action may be unknown, and then a human is asked.
    asks = bool(effects) or any(_may_ask(guards) for *_, guards in levels if guards is not None)
    kinds = [kind for kind, occurs in ((AWAIT_HUMAN, asks), (COMPENSATE, undoes)) if not occurs]
    return {f"{at}{kind}" for at, _, guards in levels if guards is not None for kind in kinds}


def _levels(agent: AgentSpec, at: str, around: Guards | None) -> Iterator[_Level]:
    own = Guards.default() if agent.guards is DEFAULT and not at else agent.guards
    guards = own.within(around) if isinstance(own, Guards) else around
    yield at, agent, guards
    for child in agent.children:
        if isinstance(child, AgentSpec):
            yield from _levels(child, f"{at}{child.name}:", guards)


def _may_ask(guards: Guards) -> bool:
    """Tell whether a policy, or the policy of one of its stages, may ask a human."""
    for policy in (guards, *guards.stages.values()):
        if policy.gates or policy.escalation.critic is not None:
            return True
        cells = [policy.table.cell(failure, policy.tier) for failure in FAILURE_CLASSES]
        if any("escalate" in (cell.action, cell.after(cell.bound)) for cell in cells):
            return True
    return False


def mermaid_of(graph: Graph) -> str:
    """Draw a graph as Mermaid text; graphs of one name within it are numbered.

    LangChain refuses them, and two graphs of others may well have members of one name.
    """
    clusters: dict[str, str] = {}
    ids = {name: _with_own_clusters(name, clusters) for name in graph.nodes}
    nodes = {ids[name]: node.copy(id=ids[name]) for name, node in graph.nodes.items()}
    edges = [edge.copy(source=ids[edge.source], target=ids[edge.target]) for edge in graph.edges]
    return type(graph)(nodes, edges).draw_mermaid()


def _with_own_clusters(node: str, clusters: dict[str, str]) -> str:
    """Return a node's name, the graphs around it with names that no other graph has."""
    *parts, own = node.split(":")
    paths = [":".join(parts[: depth + 1]) for depth in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        name, number = part, 1
        while path not in clusters and name in clusters.values():
            number += 1
            name = f"{part}_{number}"
        clusters.setdefault(path, name)
    return ":".join([*(clusters[path] for path in paths), own])


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


def mimebundle_of(subject: object, visible_graph: Callable[[], Graph]) -> dict[str, str]:
    """Return what a notebook shows of an agent or a flow: its picture, or why there is none.

    The graph comes as a function, because the compilation may fail, and the error is shown too.
    """
    try:
        return _bundle(subject, visible_graph())
    except Exception as error:  # the display of an agent must not fail the cell
        message = f"{type(error).__name__}: {error}"
        return {
            "text/plain": f"{subject!r} cannot be drawn: {message}",
            "text/html": fault(f"{subject!r} cannot be drawn", message),
        }


_MOST_NODES = 1000  # a larger picture is unreadable, and takes megabytes in a notebook


def _bundle(subject: object, graph: Graph) -> dict[str, str]:
    if len(graph.nodes) > _MOST_NODES:
        note = f"{subject!r}: {len(graph.nodes)} nodes, too many to show; .svg() draws them"
        return {"text/plain": note}
    return {
        "text/plain": repr(subject),
        "image/svg+xml": picture_of(graph),
        "text/vnd.mermaid": mermaid_of(graph),
    }
