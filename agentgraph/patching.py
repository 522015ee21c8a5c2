"""Patches of a graph before it compiles; the only module that uses private parts of LangGraph.

Below the patchers are functions that read a task's config: state, checkpoint, durability.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, get_type_hints

from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph._internal._config import ensure_config
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_READ,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    NS_SEP,
    PUSH,
    TASKS,
)
from langgraph._internal._runnable import RunnableCallable
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph._branch import BranchSpec
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel.protocol import StreamProtocol
from langgraph.types import Command, Send
from typing_extensions import TypedDict, is_typeddict

from agentgraph.blocking import LoopedGraph, in_caller, is_synchronous, run_node
from agentgraph.errors import ConfigurationError
from agentgraph.storage import with_async_methods

AnyGraph: TypeAlias = StateGraph[Any, Any, Any, Any]
AnyCompiledGraph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]
Patch: TypeAlias = Callable[[AnyGraph], AnyGraph]
NodeWrapper: TypeAlias = Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
Destinations: TypeAlias = str | Sequence[str | Send]
Route: TypeAlias = Callable[["AfterNode"], Destinations]


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
            return await wrapper(state, partial(inner.ainvoke, config=config))

        def run_synchronously(state: Any, config: RunnableConfig) -> Any:
            async def call(state: Any) -> Any:
                if _has_sync(inner):
                    return await in_caller(inner.invoke, state, config)
                return await inner.ainvoke(state, config)

            return run_node(_await(wrapper(state, call)))

        runnable: Any = RunnableCallable(run_synchronously, run, name=name, trace=False)
        graph.nodes[name] = replace(spec, runnable=runnable)
        return graph

    return Patcher(patch, state=state)


class AfterNode:
    """What a conditional edge reads: the state with the writes of the node before it.

    `update_state` writes as a node, and asks its edges in the same way.
    """

    __slots__ = ("_channels", "is_sent", "writes")

    def __init__(self, config: RunnableConfig) -> None:
        _, self._channels, _, task = config[CONF][CONFIG_KEY_READ].args
        self.writes: Sequence[tuple[str, Any]] = task.writes
        """What the node itself has written, by channel."""
        self.is_sent = task.path[:1] == (PUSH,)
        """Whether a `Send` has started the node's task."""

    def read(self, *keys: str) -> Mapping[str, Any]:
        """Return the values of channels, without those that are empty or do not exist."""
        values = {}
        for key in keys:
            channel = self._channels.get(key)
            if channel is None:
                continue
            if writes := [value for name, value in self.writes if name == key]:
                channel = channel.copy()
                channel.update(writes)
            if channel.is_available():
                values[key] = channel.get()
        return values


def add_route(graph: AnyGraph, node: str, route: Route, ends: Sequence[str]) -> None:
    """Let a function of the state decide what follows a node, where no `Command` of it does."""
    path_map: Any = {end: end for end in ends}
    graph.branches[node]["route"] = _StateBranch(_Router(route), path_map)


def change_route(
    graph: AnyGraph, node: str, change: Callable[[Route], Route], more_ends: Sequence[str]
) -> None:
    """Change the function of the state that decides what follows a node."""
    branch = graph.branches[node]["route"]
    route = change(branch.path.route)  # type: ignore[attr-defined]  # as `add_route` sets it
    add_route(graph, node, route, [*map(str, branch.ends or ()), *more_ends])


class _StateBranch(BranchSpec):
    """A conditional edge without the whole state, which LangGraph would copy at each step."""

    def run(self, writer: Any, reader: Any = None) -> Any:
        return super().run(writer, None)


class _Router(Runnable[Any, Any]):
    """A route as LangGraph calls it; a plain function would be traced, which is slow."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        after = AfterNode(config or {})
        # A `Command` of the node leads on already, and LangGraph would follow both.
        has_gone = any(key == TASKS or key.startswith("branch:") for key, _ in after.writes)
        return [] if has_gone else self.route(after)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:
        return self.invoke(input, config)


def hold_edges(graph: AnyGraph, node: str, flag: str) -> None:
    """Block the edges out of a node where the node has set a flag: then only its Command counts.

    Without this LangGraph would follow both the edge and the Command.
    """
    ends = [end for start, end in graph.edges if start == node]
    graph.edges -= {(node, end) for end in ends}
    branches = graph.branches[node]
    for name, branch in branches.items():
        branches[name] = branch._replace(path=_unless(flag, branch.path))
    if ends:
        always: Any = RunnableLambda(lambda _: list(ends))
        graph.add_conditional_edges(node, _unless(flag, always), {end: end for end in ends})


def _unless(flag: str, path: Runnable[Any, Any]) -> Runnable[Any, Any]:
    def is_set(config: RunnableConfig) -> bool:
        return bool(config[CONF][CONFIG_KEY_READ]([flag], True).get(flag))

    async def goes(state: Any, config: RunnableConfig) -> Any:
        return [] if is_set(config) else await path.ainvoke(state, config)

    def goes_synchronously(state: Any, config: RunnableConfig) -> Any:
        return [] if is_set(config) else path.invoke(state, config)

    return RunnableLambda(goes_synchronously, goes)


def compile_graph(graph: AnyGraph, *args: Any, **kwargs: Any) -> AnyCompiledGraph:
    """Compile a graph that can be run synchronously too, its asynchronous nodes included."""
    for name, spec in graph.nodes.items():
        graph.nodes[name] = replace(spec, runnable=_with_sync(spec.runnable))
    for branches in graph.branches.values():
        for name, branch in branches.items():
            branches[name] = branch._replace(path=_with_sync(branch.path))
    result = graph.compile(*args, **kwargs)
    result.__class__ = LoopedGraph
    return result


def _with_sync(runnable: Any) -> Any:
    """Return a node or a path that can be run synchronously."""
    if _has_sync(runnable):
        return runnable

    def run(*args: Any, **kwargs: Any) -> Any:
        return run_node(runnable.afunc(*args, **kwargs))

    twin = copy.copy(runnable)
    twin.func = run
    return twin


def _has_sync(runnable: object) -> bool:
    return not isinstance(runnable, RunnableCallable) or runnable.func is not None


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


def written_by(result: Any) -> list[Mapping[str, Any]] | None:
    """Return the updates of a command without a goto, None for any other result."""
    return [*updates_of(result)] if isinstance(result, Command) and not result.goto else None


def patched(compiled: AnyCompiledGraph, *patchers: Patch) -> AnyCompiledGraph:
    """Return a patched copy of a compiled graph; the graph itself stays as it is.

        safe = patched(somebodys_graph, Guards.interactive())

    Nodes, edges, saver, store and config are copied. Raises `ConfigurationError` where a patcher
    does not fit the graph.
    """
    builder = copy_of(compiled.builder)
    for extra in states_of(patchers):
        add_state(builder, extra)
    builder = apply_patchers(builder, patchers)
    copy = compile_graph(
        builder,
        compiled.checkpointer,
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
    return copy.with_config(compiled.config) if compiled.config else copy


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


def read_value(config: RunnableConfig, key: str) -> Any:
    """Read one channel in a task; None where the channel is empty or does not exist."""
    return config[CONF][CONFIG_KEY_READ](key, False)


def read_state(config: RunnableConfig, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Read channels in a task that a `Send` has started, which carries no state."""
    values: Mapping[str, Any] = config[CONF][CONFIG_KEY_READ](list(keys), False)
    return values


def whole_state(config: RunnableConfig) -> Mapping[str, Any]:
    """Read the whole state at a task's begin, without LangGraph's internal channels."""
    read = config[CONF][CONFIG_KEY_READ]
    own = ("branch:", "__")
    values: Mapping[str, Any] = read([name for name in read.args[1] if not name.startswith(own)])
    return values


def has_parent(config: RunnableConfig) -> bool:
    """Tell whether the graph of a node runs inside of another graph's node."""
    return NS_SEP in str(config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS, ""))


def begun_from(
    config: RunnableConfig,
) -> tuple[BaseCheckpointSaver[Any], RunnableConfig] | None:
    """Return the saver of a node's run, and the checkpoint from which the node began."""
    values = config.get(CONF, {})
    saver = values.get(CONFIG_KEY_CHECKPOINTER)
    level = str(values.get(CONFIG_KEY_CHECKPOINT_NS, "")).rpartition(NS_SEP)[0]
    checkpoint_id = (values.get(CONFIG_KEY_CHECKPOINT_MAP) or {}).get(level)
    if checkpoint_id is None or not isinstance(saver, BaseCheckpointSaver):
        return None
    at = {CONFIG_KEY_CHECKPOINT_NS: level, CONFIG_KEY_CHECKPOINT_ID: checkpoint_id}
    if is_synchronous():
        saver = with_async_methods(saver)
    return saver, {CONF: {CONFIG_KEY_THREAD_ID: values[CONFIG_KEY_THREAD_ID], **at}}


def has_saver(config: RunnableConfig) -> bool:
    """Tell whether a node's run is stored."""
    return isinstance(config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINTER), BaseCheckpointSaver)


def stores_each_step(config: RunnableConfig) -> bool:
    """Tell whether each step of a run is stored before the next one begins."""
    return config.get(CONF, {}).get(CONFIG_KEY_DURABILITY) == "sync"


def stores_meanwhile(config: RunnableConfig) -> bool:
    """Tell whether each step of a run is stored while the next one runs."""
    return config.get(CONF, {}).get(CONFIG_KEY_DURABILITY) == "async"


def is_node(*configs: RunnableConfig | None) -> bool:
    """Tell whether a graph that is run with these configs is inside of a node of another graph."""
    return CONFIG_KEY_TASK_ID in ensure_config(*configs)[CONF]


def is_part_of_snapshot(config: RunnableConfig) -> bool:
    """Tell whether a state is read as a part of the state of the graph around it."""
    return CONFIG_KEY_CHECKPOINTER in config.get(CONF, {})


def concatenates(config: RunnableConfig | None, key: str) -> bool:
    """Tell whether the graph around a node only adds to a list of messages, as `+` does.

    Then a message with the id of an earlier one does not replace that one.
    """
    read = ensure_config(config)[CONF].get(CONFIG_KEY_READ)
    channel = None if read is None else read.args[1].get(key)
    reducer = getattr(channel, "operator", None)
    if reducer is None or reducer is add_messages:
        return False
    try:
        return len(reducer([_PROBE], [_PROBE])) == 2
    except Exception:  # a function of the user, which may expect other values
        return False


_PROBE = HumanMessage("", id="probe")


def hide_in_stream(
    config: RunnableConfig | None, channels: frozenset[str]
) -> RunnableConfig | None:
    """Return the config for a nested graph of which the stream shows no such channels.

    It concerns the streams of values and updates of the nested graph itself, not of graphs below.
    """
    values = ensure_config(config)[CONF]
    stream: Any = values.get(CONFIG_KEY_STREAM)
    if stream is None:
        return config
    own = tuple(str(values[CONFIG_KEY_CHECKPOINT_NS]).split(NS_SEP))

    def send(chunk: Any) -> None:
        namespace, mode, payload = chunk
        # LangGraph numbers the namespaces of the further graphs that one task runs.
        is_own = namespace[: len(own)] == own and all(map(str.isdigit, namespace[len(own) :]))
        if is_own and mode == "values":
            payload = _without(channels, payload)
        elif is_own and mode == "updates":
            payload = {node: _without(channels, update) for node, update in payload.items()}
        stream((namespace, mode, payload))

    conf = {**(config or {}).get(CONF, {}), CONFIG_KEY_STREAM: StreamProtocol(send, stream.modes)}
    return {**(config or {}), CONF: conf}


def _without(channels: frozenset[str], update: Any) -> Any:
    """Return an update without some channels; None where nothing is left, as LangGraph has it."""
    if isinstance(update, list):
        parts = [_without(channels, part) for part in update]
        return [part for part in parts if part is not None] or None
    if not isinstance(update, dict):
        return update
    return {key: value for key, value in update.items() if key not in channels} or None


def answers_to(config: RunnableConfig) -> int:
    """Return how many of a task's own questions a human has decided before this resumption."""
    return len(config[CONF][CONFIG_KEY_SCRATCHPAD].resume)


def has_answer(config: RunnableConfig) -> bool:
    """Tell whether a task is resumed with a human's decision, with or without a question's id."""
    scratchpad = config[CONF][CONFIG_KEY_SCRATCHPAD]
    return bool(scratchpad.resume) or scratchpad.get_null_resume(False) is not None


def copy_of(builder: AnyGraph) -> AnyGraph:
    """Return a copy of a graph that is not compiled: changes of it do not show in the original."""
    duplicate = copy.copy(builder)
    for attribute in ("nodes", "edges", "channels", "managed", "schemas", "waiting_edges"):
        setattr(duplicate, attribute, copy.copy(getattr(builder, attribute)))
    duplicate.branches = copy.copy(builder.branches)
    for source, ends in builder.branches.items():
        duplicate.branches[source] = dict(ends)
    duplicate.compiled = False
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


def _node_names(names: Any) -> Any:
    return names if isinstance(names, str) else list(names or ())
