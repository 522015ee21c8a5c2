"""Patchers: changes of a graph before it compiles, and patched copies of compiled graphs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.types import Command

from agentgraph.blocking import LoopedGraph, in_caller, run_node
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import (
    AnyCompiledGraph,
    AnyGraph,
    add_state,
    compile_graph,
    copy_of,
    functional_fault,
    has_sync,
)
from agentgraph.graphs.private import CONF, CONFIG_KEY_READ, RunnableCallable
from agentgraph.graphs.run_value import RUN_VALUE
from agentgraph.storage import with_async_methods

Patch: TypeAlias = Callable[[AnyGraph], AnyGraph]
NodeWrapper: TypeAlias = Callable[[Any, Callable[..., Awaitable[Any]]], Awaitable[Any]]
Names: TypeAlias = str | Collection[str] | None


@runtime_checkable
class FindsNodes(Protocol):
    """A patcher that looks for nodes, and can be told the names of those that it does not find."""

    def with_names(self, model: tuple[str, ...], tools: tuple[str, ...]) -> Patch:
        """Return the patcher that guards the nodes of these names too."""
        ...


class Patcher:
    """A change to a graph, with the state that it needs; a plain function of a graph works too.

    Its `state` is a TypedDict that is merged into the graph's state before the build. Its channels
    are shared with sub-agents, so they need last-value or idempotent reducers.
    """

    state: type | None = None

    def __init__(self, patch: Patch, *, state: type | None = None) -> None:
        self._patch = patch
        self.state = state

    def __call__(self, graph: AnyGraph) -> AnyGraph:
        """Return the changed graph."""
        return self._patch(graph)


def insert_node(
    name: str, node: Any, *, after: str, before: str, state: type | None = None
) -> Patcher:
    """Put a node on the edge between two others."""

    def patch(graph: AnyGraph) -> AnyGraph:
        if (after, before) not in graph.edges:
            edges = ", ".join(sorted(f"{a} → {b}" for a, b in graph.edges))
            raise ConfigurationError(
                f"node {name!r} cannot stand between {after!r} and {before!r}: "
                f"the edges are {edges}"
            )
        graph.edges.discard((after, before))
        graph.add_node(name, node)
        graph.add_edge(after, name)
        graph.add_edge(name, before)
        return graph

    return Patcher(patch, state=state)


def wrap_node(name: str, wrapper: NodeWrapper, *, state: type | None = None) -> Patcher:
    """Run `await wrapper(state, call)` for a node; `await call(state)` runs the node itself.

    `await call(state, config=…)` runs it with another config than its own.
    Interrupts and other control flow pass through `call` as exceptions of type `GraphBubbleUp`:
    let them through.
    """

    def patch(graph: AnyGraph) -> AnyGraph:
        if name not in graph.nodes:
            raise ConfigurationError(
                f"there is no node {name!r} to wrap: the nodes are {', '.join(graph.nodes)}"
            )
        spec = graph.nodes[name]
        inner: Runnable[Any, Any] = spec.runnable  # type: ignore[assignment]  # as stored

        async def run(state: Any, config: RunnableConfig) -> Any:
            if CONFIG_KEY_READ not in config.get(CONF, {}):  # called by itself, outside of a graph
                return await inner.ainvoke(state, config)
            return await wrapper(state, partial(inner.ainvoke, config=config))

        def run_synchronously(state: Any, config: RunnableConfig) -> Any:
            if CONFIG_KEY_READ not in config.get(CONF, {}):
                return inner.invoke(state, config)

            async def call(state: Any, config: RunnableConfig = config) -> Any:
                if has_sync(inner):
                    return await in_caller(inner.invoke, state, config)
                return await inner.ainvoke(state, config)

            return run_node(_await(wrapper(state, call)))

        runnable: Any = RunnableCallable(run_synchronously, run, name=name, trace=False)
        if (tools := getattr(inner, "tools_by_name", None)) is not None:
            runnable.tools_by_name = tools  # drawings and swarms read it
        graph.nodes[name] = replace(spec, runnable=runnable)
        return graph

    return Patcher(patch, state=state)


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def updates_of(result: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the updates in what a node returns: a mapping, a `Command`, or a list of them."""
    if isinstance(result, Command):
        result = result.update
    if isinstance(result, Mapping):
        yield result
    elif isinstance(result, list):
        for part in result:
            yield from updates_of(part)


def with_values(result: Any, change: Callable[[Any], Any]) -> Any:
    """Return what a node returns with `change(value)` in the place of each value in its updates."""
    if isinstance(result, Command):
        return replace(result, update=with_values(result.update, change))
    if isinstance(result, Mapping):
        return {key: with_values(value, change) for key, value in result.items()}
    if isinstance(result, list):
        return [with_values(value, change) for value in result]
    return change(result)


def written_by(result: Any) -> list[Mapping[str, Any]] | None:
    """Return the updates of a command without a goto, None for any other result."""
    return [*updates_of(result)] if isinstance(result, Command) and not result.goto else None


def patched(
    compiled: AnyCompiledGraph, *patchers: Patch, model: Names = None, tools: Names = None
) -> AnyCompiledGraph:
    """Return a patched copy of a compiled graph; the graph itself stays as it is.

        safe = patched(somebodys_graph, Guards.interactive())

    Nodes, edges, saver, store and config are copied. `model` and `tools` name the nodes, on any
    level, that guards cannot find themselves. Raises `ConfigurationError` where a patcher does not
    fit the graph.
    """
    if fault := functional_fault(compiled, str(getattr(compiled, "name", ""))):
        raise ConfigurationError(fault)
    builder = copy_of(compiled.builder)
    for extra in states_of(patchers):
        add_state(builder, extra)
    builder = apply_patchers(builder, _told_names(patchers, model, tools))
    copy = compile_graph(
        builder,
        _saver_of(compiled),
        cache=compiled.cache,
        store=compiled.store,
        interrupt_before=_node_names(compiled.interrupt_before_nodes),
        interrupt_after=_node_names(compiled.interrupt_after_nodes),
        debug=compiled.debug,
        name=compiled.name,
        transformers=compiled.stream_transformers,
    )
    if isinstance(compiled, LoopedGraph):  # of a class with a public surface of its own
        copy.__class__ = type(compiled)
    for attribute in ("step_timeout", "stream_mode", "retry_policy", "cache_policy"):
        setattr(copy, attribute, getattr(compiled, attribute))
    if not isinstance(copy.stream_channels, str):
        names = copy.stream_channels or ()
        copy.stream_channels = [name for name in names if name != RUN_VALUE]
    return copy.with_config(compiled.config) if compiled.config else copy


def _saver_of(compiled: AnyCompiledGraph) -> Any:
    """Return a graph's saver, in the form that can tell when its last write has ended."""
    saver = compiled.checkpointer
    return with_async_methods(saver) if isinstance(saver, BaseCheckpointSaver) else saver


def _told_names(patchers: tuple[Patch, ...], model: Names, tools: Names) -> tuple[Patch, ...]:
    """Tell the patchers that look for nodes the names of those that they cannot find."""
    if model is None and tools is None:
        return patchers
    patches = tuple(
        patch.with_names(_names(model), _names(tools)) if isinstance(patch, FindsNodes) else patch
        for patch in patchers
    )
    if patches == patchers:
        raise ConfigurationError("model= and tools= name nodes for guards: give Guards too")
    return patches


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def apply_patchers(graph: AnyGraph, patchers: tuple[Patch, ...]) -> AnyGraph:
    """Apply patchers in their order."""
    for patch in patchers:
        try:
            result = patch(graph)
        except ValueError as error:
            if "already exists with a different type" not in str(error):
                raise
            raise ConfigurationError(
                f"a node of the patcher {patch!r} declares a state that clashes with the graph's: "
                f"{error}. Leave the node's state unannotated, or name only its own keys"
            ) from error
        if not isinstance(result, StateGraph):
            raise ConfigurationError(
                f"the patcher {patch!r} returned {type(result).__name__}: return the graph"
            )
        graph = result
    return graph


def states_of(patchers: tuple[Patch, ...]) -> list[type]:
    """Return the states that patchers add."""
    states = [getattr(patch, "state", None) for patch in patchers]
    return [state for state in states if state is not None]


def _node_names(names: Any) -> Any:
    return names if isinstance(names, str) else list(names or ())
