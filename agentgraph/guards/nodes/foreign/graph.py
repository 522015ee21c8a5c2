"""Guards in a foreign graph, which agentgraph did not build: where they are put, at every level.

Nodes of models, tools and further graphs are found, or named, and wrapped; `foreign/wrappers` has
what is put around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from langgraph.graph import END
from langgraph.graph.state import CompiledStateGraph

from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph, functional_fault
from agentgraph.graphs.nested import with_graphs
from agentgraph.graphs.routes import hold_edges
from agentgraph.graphs.run_value import add_run_value
from agentgraph.guards.checks import (
    gated_at,
    schema_faults,
    stage_faults,
    unseen_price_faults,
    unused_fallback_faults,
    warn_of_ineffective_guards,
)
from agentgraph.guards.nodes.agent_graph import AWAIT_HUMAN, also_to, is_agent_graph
from agentgraph.guards.nodes.foreign.calls import (
    FORM,
    merge_states,
)
from agentgraph.guards.nodes.foreign.parts import (
    Names,
    Parts,
    asks_a_model,
    has_parts,
    is_guarded,
    parts_of,
    tools_of,
    unknown_names,
)
from agentgraph.guards.nodes.foreign.wrappers import ForeignWrappers
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.participant import Graph
from agentgraph.patching import Patcher, patched, wrap_node

_NO_NAMES = Names()


def guarded_copy(graph: Graph, policy: Policy, path: str) -> Graph:
    """Return a guarded copy of a foreign graph below an agent or in a team.

    A graph that has guards already is returned as it is. Where no model's node is found, the calls
    of models are still counted and limited, wherever in the graph they are made.
    """
    if not isinstance(graph, CompiledStateGraph):
        return graph  # a remote one; any other was refused
    if is_guarded(graph.builder):
        return graph
    return patched(graph, _patcher(policy, Place(path), _NO_NAMES))


def faults_in(graph: object, policy: Policy, path: str) -> Iterator[str]:
    """Yield what is wrong with a policy for a foreign graph."""
    if fault := functional_fault(graph, path):
        yield fault
    if not isinstance(graph, CompiledStateGraph) or is_guarded(graph.builder):
        return
    if asks_a_model(graph.builder, _NO_NAMES):
        yield from unused_fallback_faults(policy, path)
        yield from unseen_price_faults(policy, path)


def foreign_patcher(policy: Policy, names: Names = _NO_NAMES) -> Patcher:
    """Return the patcher of a graph that a user guards: it raises where it finds nothing to guard.

    `names` are those of nodes that cannot be found otherwise.
    """
    place = Place()

    def patch(graph: AnyGraph) -> AnyGraph:
        if is_guarded(graph):
            raise ConfigurationError(
                "the graph is guarded already: patch the one that it was before"
            )
        faults = [*_faults_of_parts(graph, names), *unseen_price_faults(policy, place.path)]
        faults += [*unused_fallback_faults(policy, place.path), *stage_faults(policy, ())]
        parts = parts_of(graph, names)
        if not parts.graphs:
            tools = _tools_in(graph, parts)
            faults += schema_faults(gated_at(policy, place.path, lambda: tools))
        if faults:
            raise ConfigurationError(faults)
        return _patcher(policy, place, names)(graph)

    return Patcher(patch)


def _faults_of_parts(graph: AnyGraph, names: Names) -> Iterator[str]:
    nodes = ", ".join(graph.nodes)
    if missing_names := unknown_names(graph, names):
        yield f"there is no node {', '.join(sorted(missing_names))} to guard: the nodes are {nodes}"
    elif not asks_a_model(graph, names):
        yield (
            "there is no node of a model to guard, in the graph or in one within it: name it, "
            f"patched(graph, Guards(…), model='<node>'); the nodes are {nodes}"
        )


def _patcher(policy: Policy, place: Place, names: Names, suffix: str = "") -> Patcher:
    """Return the patcher of one level; `suffix` is its path below the outermost graph."""

    def patch(graph: AnyGraph) -> AnyGraph:
        parts = parts_of(graph, names)
        add_run_value(graph, merge_states)
        await_human = _free_name(graph, AWAIT_HUMAN)
        wrappers = ForeignWrappers(
            policy,
            place,
            suffix,
            await_human,
            has_form=FORM in graph.channels,
            has_messages="messages" in graph.channels,
            sees_models=bool(parts.models or parts.graphs),
            has_tools=bool(parts.tools),
            named_models=names.model,
            is_agent=is_agent_graph(graph),
        )
        for node in parts.models:
            graph = wrap_node(node, wrappers.around_model(node))(graph)
        for node in parts.tools:
            around_tools = replace(wrappers, tools=tools_of(graph, node)).around_tools()
            graph = wrap_node(node, around_tools)(graph)
        for node in parts.graphs:
            _guard_within(graph, node, policy, place, names, f"{suffix}/{node}")
            graph = wrap_node(node, wrappers.around_graph())(graph)
        for node in parts.other_nodes:
            graph = wrap_node(node, wrappers.around_other())(graph)
        for node in [*graph.nodes]:
            hold_edges(graph, node)
        if parts.models:
            _add_await_human(graph, parts.models, wrappers)
        warn_of_ineffective_guards(policy, place.path, _tools_in(graph, parts))
        return graph

    return Patcher(patch)


def _guard_within(
    graph: AnyGraph, node: str, policy: Policy, place: Place, names: Names, suffix: str
) -> None:
    """Guard the graphs that a node is or calls."""

    def guard(inner: AnyCompiledGraph) -> AnyCompiledGraph:
        if is_guarded(inner.builder) or not has_parts(inner, names):
            return inner
        return patched(inner, _patcher(policy, place, names, suffix))

    spec = graph.nodes[node]
    graph.nodes[node] = replace(spec, runnable=with_graphs(spec.runnable, guard))


def _add_await_human(graph: AnyGraph, models: tuple[str, ...], wrappers: ForeignWrappers) -> None:
    """Let the nodes of models lead to a node that asks a human."""
    name = wrappers.await_human
    for model in models:
        spec, branches = graph.nodes[model], graph.branches.get(model, {})
        # A drawing would lose the edge to the end: it draws one where no other edge begins.
        leads_on = any(
            branch.ends is None or END in branch.ends.values() for branch in branches.values()
        )
        ends = (name,) if leads_on or (model, END) not in graph.edges else (name, END)
        graph.nodes[model] = replace(spec, ends=also_to(spec.ends, *ends))
    no_work: Any = lambda _: None  # noqa: E731
    graph.add_node(name, no_work, destinations=models)
    wrap_node(name, wrappers.around_question())(graph)


def _free_name(graph: AnyGraph, name: str) -> str:
    return _free_name(graph, f"{name}_") if name in graph.nodes else name


def _tools_in(graph: AnyGraph, parts: Parts) -> dict[str, Any]:
    return {name: tool for node in parts.tools for name, tool in tools_of(graph, node).items()}
