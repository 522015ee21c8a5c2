"""The parts of a foreign graph that guards hold for: its models, its tools, and the graphs in it.

Nodes are found by their names, by what they are, and by the models and graphs that their functions
name; `model=` and `tools=` of `patched` name the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel

from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph
from agentgraph.graphs.nested import module_of, values_of, with_graphs
from agentgraph.graphs.run_value import RUN_VALUE
from agentgraph.graphs.task import is_kept

MODELS = ("call_model", "model", "agent")
TOOLS = ("call_tools", "tools")
_SURELY_MODELS = ("call_model", "model")
_MAKERS = ("langchain.agents.", "langgraph.prebuilt.")
_OWN_NODES = {"render_system_prompt", "continue_conversation", "call_model"}


class Names(NamedTuple):
    """The names of nodes that guards are named_nodes."""

    model: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()


class Parts(NamedTuple):
    """The nodes of one level of a foreign graph, by what guards do about them."""

    models: tuple[str, ...]
    tools: tuple[str, ...]
    graphs: tuple[str, ...]
    """The nodes that run further graphs with parts for guards."""
    other_nodes: tuple[str, ...]


def parts_of(graph: AnyGraph, names: Names) -> Parts:
    """Return the parts of a graph that is not guarded yet."""
    models = _models_of(graph, names)
    tools = tuple(
        node
        for node in graph.nodes
        if node not in models and (node in (*TOOLS, *names.tools) or tools_of(graph, node))
    )
    graphs = tuple(
        node
        for node in graph.nodes
        if node not in (*models, *tools)
        and any(has_parts(inner, names) for inner in graphs_of(graph, node))
    )
    own_nodes = {*models, *tools, *graphs}
    return Parts(
        models, tools, graphs, tuple(node for node in graph.nodes if node not in own_nodes)
    )


def has_parts(compiled: AnyCompiledGraph, names: Names) -> bool:
    """Tell whether guards hold for something in a graph, or hold already."""
    parts = parts_of(compiled.builder, names)
    return is_guarded(compiled.builder) or bool(parts.models or parts.tools or parts.graphs)


def asks_a_model(graph: AnyGraph, names: Names) -> bool:
    """Tell whether a graph, or one in it, has a model's node that is or can be guarded."""
    parts = parts_of(graph, names)
    inner = [inner.builder for node in parts.graphs for inner in graphs_of(graph, node)]
    return is_guarded(graph) or bool(parts.models) or any(asks_a_model(g, names) for g in inner)


def nodes_within(graph: AnyGraph, names: Names) -> set[str]:
    """Return the names of the nodes of all levels that guards can reach."""
    graphs = parts_of(graph, names).graphs
    inner = (inner.builder for node in graphs for inner in graphs_of(graph, node))
    return set(graph.nodes).union(*(nodes_within(builder, names) for builder in inner))


def is_guarded(graph: AnyGraph) -> bool:
    """Tell whether a graph has guards already: an agent's or a team's, or `patched` gave them."""
    is_team = "messages" in graph.channels and not is_kept(graph, "messages")
    return (
        RUN_VALUE in graph.channels or is_team or (is_agent(graph) and "guarded" in graph.channels)
    )


def is_agent(graph: AnyGraph) -> bool:
    """Tell whether a graph is that of an agent of ours."""
    return set(graph.nodes) >= _OWN_NODES


def graphs_of(graph: AnyGraph, node: str) -> list[AnyCompiledGraph]:
    """Return the graphs that a node is or calls."""
    graphs: list[AnyCompiledGraph] = []

    def see(inner: AnyCompiledGraph) -> AnyCompiledGraph:
        graphs.append(inner)
        return inner

    with_graphs(graph.nodes[node].runnable, see)
    return graphs


def tools_of(graph: AnyGraph, node: str) -> Mapping[str, Any]:
    """Return the tools of a `ToolNode` by name, {} for any other node."""
    tools: Mapping[str, Any] = getattr(graph.nodes[node].runnable, "tools_by_name", {})
    return tools


def _models_of(graph: AnyGraph, names: Names) -> tuple[str, ...]:
    named_nodes = [node for node in graph.nodes if node in names.model]
    if named_nodes:
        return tuple(named_nodes)
    has_tools = any(node in TOOLS or tools_of(graph, node) for node in graph.nodes)
    # Without a tools node, a node named "agent" may do any work: it must not be retried.
    by_name = [node for node in (MODELS if has_tools else _SURELY_MODELS) if _is_plain(graph, node)]
    return tuple(by_name[:1]) or tuple(node for node in graph.nodes if _names_a_model(graph, node))


def _is_plain(graph: AnyGraph, node: str) -> bool:
    """Tell whether a node exists, and runs neither a graph nor a tools node."""
    return node in graph.nodes and not tools_of(graph, node) and not graphs_of(graph, node)


def _names_a_model(graph: AnyGraph, node: str) -> bool:
    if not _is_plain(graph, node):
        return False
    # A function that is given the model for each call is own_nodes by who has made it.
    by_langchain = node in MODELS and module_of(graph.nodes[node].runnable).startswith(_MAKERS)
    return by_langchain or any(
        isinstance(value, BaseChatModel) for value in values_of(graph.nodes[node].runnable)
    )


def unknown_names(graph: AnyGraph, names: Names) -> Collection[str]:
    """Return the names that no node on any level has."""
    return {*names.model, *names.tools} - nodes_within(graph, names)
