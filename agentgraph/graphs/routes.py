"""Where a run goes after a node: routes that read the state, and edges that a node can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import END
from langgraph.types import Command, Send

from agentgraph.graphs.compiled import AnyGraph
from agentgraph.graphs.private import (
    CONF,
    CONFIG_KEY_READ,
    PASSTHROUGH,
    PUSH,
    SKIP_WRITE,
    TASKS,
    BranchSpec,
    ChannelWrite,
    ChannelWriteEntry,
)
from agentgraph.graphs.run_value import GOES_ON, RUN_VALUE, write_run_value

Destinations: TypeAlias = str | Sequence[str | Send]
Route: TypeAlias = Callable[["AfterNode"], Destinations]


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
            write_run_value(config, GOES_ON)
        return super()._finish(writer, input, result, config)


class _NotesSends(BranchSpec):
    """Notes that the run goes on where a node returns a `Send` in a Command."""

    def run(self, writer: Any, reader: Any = None) -> Any:
        def value(result: Any) -> Any:
            return GOES_ON if any(_has_send(part) for part in _parts(result)) else SKIP_WRITE

        return ChannelWrite((ChannelWriteEntry(RUN_VALUE, PASSTHROUGH, mapper=value),))


class _HeldEdge(BranchSpec):
    """An edge that is not followed after a `Halt`; drawings show it as the edge that it is."""

    def run(self, writer: Any, reader: Any = None) -> Any:
        def value(result: Any) -> Any:
            return SKIP_WRITE if _is_halt(result) else None

        entries = writer([*(self.ends or {}).values()], False)
        return ChannelWrite(tuple(e._replace(value=PASSTHROUGH, mapper=value) for e in entries))


_NO_PATH: Runnable[Any, Any] = RunnableLambda(lambda _: [])
