"""Graphs before and after they compile: copies, more channels, and how their nodes are run."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeAlias, get_type_hints

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from typing_extensions import TypedDict, is_typeddict

from agentgraph.blocking import LoopedGraph, run_node
from agentgraph.contexts import in_context
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.private import DEFAULT_ERROR_HANDLER, RunnableCallable, RunnableSeq
from agentgraph.graphs.state_types import check_writes
from agentgraph.storage import BoundSaver, until_written

AnyGraph: TypeAlias = StateGraph[Any, Any, Any, Any]
AnyCompiledGraph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]


def functional_fault(graph: object, name: str) -> str:
    """Return why a graph cannot be patched or guarded: it was not compiled from a StateGraph."""
    if not isinstance(graph, Pregel) or isinstance(graph, CompiledStateGraph):
        return ""
    return (
        f"{name!r} is made with LangGraph's functional API (@entrypoint) or is a bare Pregel: it "
        "has no nodes that guards could hold for. Build it as a StateGraph or as an Agent"
    )


def compile_graph(graph: AnyGraph, *args: Any, **kwargs: Any) -> AnyCompiledGraph:
    """Compile a graph that can be run synchronously too, its asynchronous nodes included."""
    for name, spec in graph.nodes.items():
        graph.nodes[name] = replace(spec, runnable=_with_sync(spec.runnable))
    for branches in graph.branches.values():
        for name, branch in branches.items():
            branches[name] = branch._replace(path=_with_sync(branch.path))
    result = graph.compile(*args, **kwargs)
    result.__class__ = StoredGraph  # `compile` makes graphs of LangGraph's class only
    check_writes(result)
    return result


class StoredGraph(LoopedGraph):
    """A compiled graph whose asynchronous runs, cut off, end after their last write."""

    def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Run, and yield what happens."""
        parts = super().astream(*args, **kwargs)
        saver = self.checkpointer
        return until_written(parts, saver) if isinstance(saver, BoundSaver) else parts


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


def without_idle_callbacks(graph: AnyCompiledGraph) -> None:
    """Let the nodes of a graph call no callbacks where no handler is told of nodes.

    LangGraph tells the handlers of a run where each node and each writer behind it begin and end,
    and makes a task for each node. Where nobody listens, that is a twentieth of a turn.
    """
    for node in graph.nodes.values():
        if isinstance(node.node, RunnableSeq):
            sequence = NodeSequence(*node.node.steps, trace_policy=node.trace_policy)
            vars(node)["node"] = sequence  # LangGraph caches it there


class NodeSequence(RunnableSeq):
    """A node and its writers.

    Runs below the node name the run of the graph as their parent where the node has none.
    """

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the node in a context of its own, then its writers."""
        manager = None if config is None else config.get("callbacks")
        if config is None or not isinstance(manager, AsyncCallbackManager):
            return await super().ainvoke(input, config, **kwargs)
        if not all(handler.ignore_chain for handler in manager.handlers):
            return await super().ainvoke(input, config, **kwargs)
        config = config.copy()
        for own in ("run_name", "run_id"):  # they are the node's, and not of what it runs
            config.pop(own, None)  # type: ignore[misc]  # one key after the other
        context = copy_context()
        context.run(var_child_runnable_config.set, config)
        node, *writers = self.steps
        result: Any = await in_context(node.ainvoke(input, config, **kwargs), context)
        for writer in writers:
            result = await writer.ainvoke(result, config)
        return result


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
    vars(duplicate).pop("agentgraph_substitute", None)  # a changed graph is no longer the same
    # The build adds it, once more to a graph that was built before.
    duplicate.nodes.pop(DEFAULT_ERROR_HANDLER, None)
    return duplicate


def add_state(builder: AnyGraph, extra: type) -> None:
    """Add channels to a graph that is not compiled yet; existing channels do not change.

    A state that is no TypedDict cannot be merged: its nodes are not shown the new channels.
    """
    builder.channels = {**StateGraph(extra).channels, **builder.channels}
    if not is_typeddict(builder.state_schema):
        return
    for attribute in ("state_schema", "input_schema", "output_schema"):
        schema = getattr(builder, attribute)
        state = merge_states(schema.__name__, schema, extra)
        scratch: AnyGraph = StateGraph(state)
        builder.schemas[state] = scratch.schemas[state]
        builder.channels = {**scratch.channels, **builder.channels}
        setattr(builder, attribute, state)
