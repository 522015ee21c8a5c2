"""Patches of a graph before it compiles; the only module that uses private parts of LangGraph.

Below the patchers are functions that read a task's config: state, checkpoint, durability.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Protocol, Self, TypeAlias, get_type_hints, runtime_checkable

from langchain_core.messages import HumanMessage
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    RunnableSequence,
)
from langchain_core.runnables.base import RunnableBindingBase
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
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph._internal._typing import MISSING
from langgraph.channels import UntrackedValue
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import EmptyChannelError
from langgraph.graph import END, StateGraph
from langgraph.graph._branch import BranchSpec
from langgraph.graph.message import add_messages
from langgraph.graph.state import _DEFAULT_ERROR_HANDLER_NODE, CompiledStateGraph
from langgraph.pregel._write import (
    PASSTHROUGH,
    SKIP_WRITE,
    ChannelWrite,
    ChannelWriteEntry,
)
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
Names: TypeAlias = str | Collection[str] | None

RUN_VALUE = "__agentgraph_run"
"""The channel of guards in a foreign graph, which `patched` hides."""
_GOES_ON = {"goes_on": True}


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
    """Put a node on the edge between two new_globals."""

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
            if CONFIG_KEY_READ not in config.get(CONF, {}):  # called by itself, outside of a graph
                return await inner.ainvoke(state, config)
            return await wrapper(state, partial(inner.ainvoke, config=config))

        def run_synchronously(state: Any, config: RunnableConfig) -> Any:
            if CONFIG_KEY_READ not in config.get(CONF, {}):
                return inner.invoke(state, config)

            async def call(state: Any) -> Any:
                if _has_sync(inner):
                    return await in_caller(inner.invoke, state, config)
                return await inner.ainvoke(state, config)

            return run_node(_await(wrapper(state, call)))

        runnable: Any = RunnableCallable(run_synchronously, run, name=name, trace=False)
        if (tools := getattr(inner, "tools_by_name", None)) is not None:
            runnable.tools_by_name = tools  # drawings and swarms read it
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


class Halt(Command[Any]):
    """What a node with held edges returns where the run must follow this Command and no edge."""


def hold_edges(graph: AnyGraph, node: str) -> None:
    """Make the edges out of a node lead nowhere where the node returns a `Halt`.

    Without this LangGraph would follow both the edge and the Command.
    """
    held_branches = {name: _HeldBranch(*branch) for name, branch in graph.branches[node].items()}
    branches: dict[str, BranchSpec] = {**held_branches}
    for start, end in [*graph.edges]:
        if start == node and end != END:  # the end is no node: nothing is written for it
            graph.edges.discard((start, end))
            branches[f"edge to {end}"] = _HeldEdge(_NO_PATH, {end: end})
    if RUN_VALUE in graph.channels:
        branches["sends"] = _NotesSends(_NO_PATH, {})
    graph.branches[node] = branches


def _is_halt(result: Any) -> bool:
    return any(isinstance(part, Halt) for part in _parts(result))


def _has_send(part: Any) -> bool:
    goto = _parts(part.goto) if isinstance(part, Command) else [part]
    return any(isinstance(target, Send) for target in goto)


def _parts(result: Any) -> Sequence[Any]:
    return result if isinstance(result, list | tuple) else [result]


class _HeldBranch(BranchSpec):
    """A conditional edge that is not followed after a `Halt`."""

    def _route(self, input: Any, config: RunnableConfig, **fields: Any) -> Any:
        return input if _is_halt(input) else super()._route(input, config, **fields)

    async def _aroute(self, input: Any, config: RunnableConfig, **fields: Any) -> Any:
        return input if _is_halt(input) else await super()._aroute(input, config, **fields)

    def _finish(self, writer: Any, input: Any, result: Any, config: RunnableConfig) -> Any:
        if any(isinstance(part, Send) for part in _parts(result)):
            write_run_value(config, _GOES_ON)
        return super()._finish(writer, input, result, config)


class _NotesSends(BranchSpec):
    """Notes that the run goes on where a node returns a `Send` in a Command."""

    def run(self, writer: Any, reader: Any = None) -> Any:
        def value(result: Any) -> Any:
            return _GOES_ON if any(_has_send(part) for part in _parts(result)) else SKIP_WRITE

        return ChannelWrite((ChannelWriteEntry(RUN_VALUE, PASSTHROUGH, mapper=value),))


class _HeldEdge(BranchSpec):
    """An edge that is not followed after a `Halt`; drawings show it as the edge that it is."""

    def run(self, writer: Any, reader: Any = None) -> Any:
        def value(result: Any) -> Any:
            return SKIP_WRITE if _is_halt(result) else None

        entries = writer([*(self.ends or {}).values()], False)
        return ChannelWrite(tuple(e._replace(value=PASSTHROUGH, mapper=value) for e in entries))


_NO_PATH: Runnable[Any, Any] = RunnableLambda(lambda _: [])


def with_graphs(runnable: Any, swap: Callable[[AnyCompiledGraph], AnyCompiledGraph]) -> Any:
    """Return a node's runnable with `swap(graph)` in the place of each graph that it is or calls.

    A graph that a function calls is found among the values that the function names. Without a
    change the runnable itself is returned.
    """
    return _GraphSwap(swap).of(runnable)


def values_of(runnable: Any) -> list[Any]:
    """Return the values that a node's functions name, such as the model that they ask."""
    values: list[Any] = []
    _GraphSwap(lambda graph: graph, values.append).of(runnable)
    return values


def module_of(runnable: Any) -> str:
    """Return the name of the module of a node's function, "" where it has none."""
    function = getattr(runnable, "func", None) or getattr(runnable, "afunc", None)
    return str(getattr(function, "__module__", ""))


class _GraphSwap:
    """Visits runnables and functions once each, and puts other graphs into them."""

    def __init__(
        self,
        swap: Callable[[AnyCompiledGraph], AnyCompiledGraph],
        see: Callable[[Any], object] = id,
    ) -> None:
        self._swap = swap
        self._see = see
        self._results: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """Return a value with other graphs, or the value itself where it calls none."""
        if id(value) not in self._results:
            self._results[id(value)] = value, value  # a function may name itself
            self._see(value)
            self._results[id(value)] = value, self._copy_of(value)
        return self._results[id(value)][1]

    def _copy_of(self, value: Any) -> Any:
        if isinstance(value, CompiledStateGraph):
            return self._swap(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            owner = self.of(value.__self__)
            return value if owner is value.__self__ else getattr(owner, value.__name__)
        if isinstance(value, partial):
            old = (value.func, *value.args)
            new = [self.of(part) for part in old]
            return value if _same(old, new) else partial(new[0], *new[1:], **value.keywords)
        fields = next((names for kind, names in _PARTS.items() if isinstance(value, kind)), ())
        return self._object(value, fields)

    def _object(self, value: Any, fields: tuple[str, ...]) -> Any:
        result = value
        for name in fields:
            old = getattr(value, name, None)
            parts = old if isinstance(old, list) else [old]
            new = [self.of(part) for part in parts if part is not None]
            if old is not None and not _same(parts, new):
                result = copy.copy(value) if result is value else result
                object.__setattr__(result, name, new if isinstance(old, list) else new[0])
        return result

    def _function(self, function: FunctionType) -> FunctionType:
        closure, space = function.__closure__ or (), function.__globals__
        cells = [*map(_content_of, closure)]
        new_cells = [self.of(value) for value in cells]
        names = {name: space[name] for name in function.__code__.co_names if name in space}
        own = {
            name: value
            for name, value in names.items()
            if getattr(value, "__module__", "") == function.__module__
            or not isinstance(value, FunctionType | type)
        }
        new_names = {name: self.of(value) for name, value in own.items()}
        new_globals = {name: value for name, value in new_names.items() if value is not own[name]}
        if not new_globals and _same(cells, new_cells):
            return function
        pairs = zip(closure, cells, new_cells, strict=True)
        twin = FunctionType(
            function.__code__,
            _Namespace(space, new_globals) if new_globals else space,
            function.__name__,
            function.__defaults__,
            tuple(cell if old is new else CellType(new) for cell, old, new in pairs),
        )
        # No `__wrapped__`: LangGraph would find the graphs of the function that it names.
        for name in ("__kwdefaults__", "__annotations__", "__qualname__", "__module__", "__doc__"):
            setattr(twin, name, getattr(function, name))
        twin.__dict__.update(function.__dict__)
        return twin


class _Namespace(dict[str, Any]):
    """The globals of a function, of which some have other values for this function."""

    def __init__(self, space: dict[str, Any], new_globals: Mapping[str, Any]) -> None:
        super().__init__(new_globals)
        self._space = space

    def __missing__(self, name: str) -> Any:
        return self._space[name]

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self._space


_PARTS: Mapping[type, tuple[str, ...]] = {
    RunnableCallable: ("func", "afunc"),
    RunnableLambda: ("func", "afunc"),
    RunnableSeq: ("steps",),
    RunnableSequence: ("first", "middle", "last"),
    RunnableBindingBase: ("bound",),
}


def _same(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(map(operator.is_, old, new))


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None


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


def patched(
    compiled: AnyCompiledGraph, *patchers: Patch, model: Names = None, tools: Names = None
) -> AnyCompiledGraph:
    """Return a patched copy of a compiled graph; the graph itself stays as it is.

        safe = patched(somebodys_graph, Guards.interactive())

    Nodes, edges, saver, store and config are copied. `model` and `tools` name the nodes, on any
    level, that guards cannot find themselves. Raises `ConfigurationError` where a patcher does not
    fit the graph.
    """
    builder = copy_of(compiled.builder)
    for extra in states_of(patchers):
        add_state(builder, extra)
    builder = apply_patchers(builder, _told_names(patchers, model, tools))
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
    for attribute in ("step_timeout", "stream_mode", "retry_policy", "cache_policy"):
        setattr(copy, attribute, getattr(compiled, attribute))
    if not isinstance(copy.stream_channels, str):
        names = copy.stream_channels or ()
        copy.stream_channels = [name for name in names if name != RUN_VALUE]
    return copy.with_config(compiled.config) if compiled.config else copy


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


def add_run_value(builder: AnyGraph, reducer: Callable[[Any, Any], Any]) -> None:
    """Add a channel that no schema of the graph has, for a dict.

    No node, caller or parent graph sees it, and it is empty once a run has gone to its end. Nodes
    use `read_run_value` and `write_run_value`; the edges of all of them must be held.
    """
    builder.channels = {**builder.channels, RUN_VALUE: _RunValue(reducer)}


class _RunValue(BaseChannel[Any, Any, Any]):
    """A value of one run: the checkpoint after its end is the one of the graph without guards."""

    __slots__ = ("goes_on", "reducer", "value")

    def __init__(self, reducer: Callable[[Any, Any], Any]) -> None:
        super().__init__(dict)
        self.reducer = reducer
        self.value: Any = MISSING
        self.goes_on = False
        """Whether a task goes on by a `Send`."""

    ValueType = UpdateType = property(lambda self: self.typ)

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Return a new channel with a stored value."""
        channel = self.__class__(self.reducer)
        channel.key, channel.value = self.key, checkpoint
        return channel

    def copy(self) -> Self:
        """Return a copy of the channel."""
        return self.from_checkpoint(self.value)

    def checkpoint(self) -> Any:
        """Return the value to store."""
        return self.value

    def get(self) -> Any:
        """Return the value."""
        if self.value is MISSING:
            raise EmptyChannelError
        return self.value

    def is_available(self) -> bool:
        """Tell whether there is a value."""
        return self.value is not MISSING

    def update(self, values: Sequence[Any]) -> bool:
        """Reduce the values, and note whether a task goes on by a `Send`."""
        self.goes_on = _GOES_ON in values
        for value in values:
            if value != _GOES_ON:
                is_first = self.value is MISSING
                self.value = value if is_first else self.reducer(self.value, value)
        return bool(values)

    def finish(self) -> bool:
        """Empty the channel at the end of a run; LangGraph calls it before a `Send` too."""
        if self.goes_on or self.value is MISSING:
            return False
        self.value = MISSING
        return True


def read_run_value(config: RunnableConfig) -> Mapping[str, Any]:
    """Read in a task what `add_run_value` has added."""
    values: Mapping[str, Any] = config[CONF][CONFIG_KEY_READ](RUN_VALUE, False) or {}
    return values


def write_run_value(config: RunnableConfig, value: Mapping[str, Any]) -> None:
    """Write in a task what `add_run_value` has added, beside what its node returns."""
    ChannelWrite.do_write(config, [ChannelWriteEntry(RUN_VALUE, value)])


def is_kept(graph: AnyGraph, channel: str) -> bool:
    """Tell whether a channel's value is stored in checkpoints."""
    return not isinstance(graph.channels[channel], UntrackedValue)


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
    # The build adds it, once more to a graph that was built before.
    duplicate.nodes.pop(_DEFAULT_ERROR_HANDLER_NODE, None)
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
