"""Graphs before and after they compile: copies, more channels, and nodes that run synchronously."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, TypeAlias, get_type_hints

from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict, is_typeddict

from agentgraph.blocking import LoopedGraph, run_node
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.private import DEFAULT_ERROR_HANDLER, RunnableCallable

AnyGraph: TypeAlias = StateGraph[Any, Any, Any, Any]
AnyCompiledGraph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]


def compile_graph(graph: AnyGraph, *args: Any, **kwargs: Any) -> AnyCompiledGraph:
    """Compile a graph that can be run synchronously too, its asynchronous nodes included."""
    for name, spec in graph.nodes.items():
        graph.nodes[name] = replace(spec, runnable=_with_sync(spec.runnable))
    for branches in graph.branches.values():
        for name, branch in branches.items():
            branches[name] = branch._replace(path=_with_sync(branch.path))
    result = graph.compile(*args, **kwargs)
    result.__class__ = LoopedGraph  # `compile` makes graphs of LangGraph's class only
    return result


def _with_sync(runnable: Any) -> Any:
    """Return a node or a path that can be run synchronously."""
    if has_sync(runnable):
        return runnable

    def run(*args: Any, **kwargs: Any) -> Any:
        return run_node(runnable.afunc(*args, **kwargs))

    twin = copy.copy(runnable)
    twin.func = run
    return twin


def has_sync(runnable: object) -> bool:
    """Tell whether a node or a path can be run synchronously as it is."""
    return not isinstance(runnable, RunnableCallable) or runnable.func is not None


def merge_states(name: str, *states: type) -> type:
    """Return one TypedDict with all fields; the first declaration of a field counts."""
    fields: dict[str, Any] = {}
    for state in states:
        if not is_typeddict(state):
            raise ConfigurationError(
                f"the state {state.__name__!r} cannot be merged: declare it as a TypedDict"
            )
        for key, hint in get_type_hints(state, include_extras=True).items():
            fields.setdefault(key, hint)
    return TypedDict(name, fields, total=False)  # type: ignore[operator,no-any-return]


def copy_of(builder: AnyGraph) -> AnyGraph:
    """Return a copy of a graph that is not compiled: changes of it do not show in the original."""
    duplicate = copy.copy(builder)
    for attribute in ("nodes", "edges", "channels", "managed", "schemas", "waiting_edges"):
        setattr(duplicate, attribute, copy.copy(getattr(builder, attribute)))
    duplicate.branches = copy.copy(builder.branches)
    for source, ends in builder.branches.items():
        duplicate.branches[source] = dict(ends)
    duplicate.compiled = False
    # The build adds it, once more to a graph that was built before.
    duplicate.nodes.pop(DEFAULT_ERROR_HANDLER, None)
    return duplicate


def add_state(builder: AnyGraph, extra: type) -> None:
    """Add channels to a graph that is not compiled yet; existing channels do not change."""
    for attribute in ("state_schema", "input_schema", "output_schema"):
        schema = getattr(builder, attribute)
        state = merge_states(schema.__name__, schema, extra)
        scratch: AnyGraph = StateGraph(state)
        builder.schemas[state] = scratch.schemas[state]
        builder.channels = {**scratch.channels, **builder.channels}
        setattr(builder, attribute, state)
