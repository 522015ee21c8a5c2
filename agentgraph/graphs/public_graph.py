"""A compiled graph with a public surface: which of its channels others may read and write.

Code of this project runs such a graph by `run_whole` and reads it by `whole_state`, which reach all
channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias, get_type_hints

from langchain_core.messages import AnyMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.channels import EphemeralValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START
from langgraph.pregel.protocol import PregelProtocol
from langgraph.store.base import BaseStore
from langgraph.types import Command, StateSnapshot
from typing_extensions import TypedDict

from agentgraph.blocking import LoopedGraph, run_graph
from agentgraph.graphs.compiled import (
    AnyCompiledGraph,
    AnyGraph,
    compile_graph,
    copy_of,
    without_idle_callbacks,
)
from agentgraph.graphs.run_context import inherited_context
from agentgraph.graphs.task import (
    concatenates,
    has_stream,
    hide_in_stream,
    is_node,
    is_part_of_snapshot,
)
from agentgraph.storage import BoundSaver, until_written

_View: TypeAlias = Literal["public", "node", "whole"]
_view: ContextVar[_View] = ContextVar("agentgraph_view", default="public")
"""Which channels a snapshot shows: those of a root, those of a node, or all."""

SHARED_KEYS = ("messages",)
"""The channels that a graph shares with a graph of others in which it is a node."""


class PublicGraph(LoopedGraph):
    """A compiled graph that shows and takes its public channels only.

    Its input and output schemas name them. As a node of another graph, or called by one, it shares
    `messages` and nothing else, whatever the other graph's channels are called.
    """

    @property
    def stream_channels_asis(self) -> str | Sequence[str]:
        """Return the channels of snapshots, and of the streams of values and updates."""
        view = _view.get()
        if view == "whole":
            return self.all_channels
        return [key for key in self.output_channels if view == "public" or key in SHARED_KEYS]

    @property
    def all_channels(self) -> list[str]:
        """Return the names of all channels of its state."""
        return list(self.builder.channels)

    def in_force(self) -> PublicGraph:
        """Return the graph that runs in the place of this one here: itself, or its substitute."""
        find_substitute: Substitute | None = getattr(self.builder, _SUBSTITUTE, None)
        graph = None if find_substitute is None else find_substitute()
        if graph is None:
            return self
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return graph.copy({**settings, "config": merge_configs(graph.config, self.config)})

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        output_keys: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run to the end; a graph around this one gets the messages that it lacks."""
        if (graph := self.in_force()) is not self:
            return await graph.ainvoke(input, config, output_keys=output_keys, **kwargs)
        own_input, keys = self._choose(input, config, output_keys)
        result = await super().ainvoke(own_input, config, output_keys=keys, **kwargs)
        return result if keys is output_keys else self._for_parent(result, own_input, config)

    def invoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        output_keys: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run to the end; a graph around this one gets the messages that it lacks."""
        if (graph := self.in_force()) is not self:
            return graph.invoke(input, config, output_keys=output_keys, **kwargs)
        own_input, keys = self._choose(input, config, output_keys)
        result = super().invoke(own_input, config, output_keys=keys, **kwargs)
        return result if keys is output_keys else self._for_parent(result, own_input, config)

    def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        output_keys: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Run, and yield what happens; `values` and `updates` have public channels only."""
        if (graph := self.in_force()) is not self:
            return graph.astream(input, config, output_keys=output_keys, **kwargs)
        own_input, keys = self._choose(input, config, output_keys)
        settings = self._with_context(config, kwargs)
        parts = super().astream(own_input, config, output_keys=keys, **settings)
        saver = self.checkpointer
        return until_written(parts, saver) if isinstance(saver, BoundSaver) else parts

    def stream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        output_keys: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Run, and yield what happens; `values` and `updates` have public channels only."""
        if (graph := self.in_force()) is not self:
            return graph.stream(input, config, output_keys=output_keys, **kwargs)
        own_input, keys = self._choose(input, config, output_keys)
        settings = self._with_context(config, kwargs)
        return super().stream(own_input, config, output_keys=keys, **settings)

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return the state of a thread."""
        token = _view.set(_view_of(config))
        try:
            return await super().aget_state(config, subgraphs=subgraphs)
        finally:
            _view.reset(token)

    def get_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        """Return the state of a thread."""
        token = _view.set(_view_of(config))
        try:
            return super().get_state(config, subgraphs=subgraphs)
        finally:
            _view.reset(token)

    def _with_context(
        self, config: RunnableConfig | None, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the settings of a run with the context of the run around it, if it has no own."""
        if self.context_schema is None or settings.get("context") is not None:
            return settings
        return {**settings, **inherited_context(self, config)}

    def _choose(
        self, input: Any, config: RunnableConfig | None, output_keys: str | Sequence[str] | None
    ) -> tuple[Any, str | Sequence[str]]:
        """Return what of an input belongs to this graph's surface, and the channels to give out."""
        if isinstance(output_keys, _Keys):
            return input, output_keys
        is_shared = is_node(self.config, config)
        own_keys = SHARED_KEYS if is_shared else self.builder.schemas[self.builder.input_schema]
        default = SHARED_KEYS if is_shared else self.output_channels
        keys = output_keys if isinstance(output_keys, str) else _Keys(output_keys or default)
        if input is None or isinstance(input, Command):
            return input, keys
        if isinstance(input, Mapping):
            own_values = {key: input[key] for key in own_keys if key in input}
        else:  # the state of a graph around this one may be an object
            own_values = {key: getattr(input, key) for key in own_keys if hasattr(input, key)}
            if not own_values:
                return input, keys  # LangGraph says what is wrong with it
        if is_shared and isinstance(own_values.get("messages"), list):
            # With ids, by which the new messages are told apart in the end.
            own_values["messages"] = _with_ids(own_values["messages"])
        return own_values, keys

    def _for_parent(self, result: Any, own_input: Any, config: RunnableConfig | None) -> Any:
        """Return a result without the messages that a graph around this one would have twice."""
        if not isinstance(result, dict) or not isinstance(own_input, dict):
            return result
        if not is_node(self.config, config) or not concatenates(config, "messages"):
            return result
        earlier = {message.id: message for message in own_input.get("messages") or ()}
        new = [m for m in result.get("messages") or () if m.id not in earlier or m != earlier[m.id]]
        return {**result, "messages": new}


Substitute: TypeAlias = Callable[[], PublicGraph | None]
_SUBSTITUTE = "agentgraph_substitute"
"""The attribute of a builder that finds the substitute: all copies of a graph share its builder."""
_SETTINGS = (
    "checkpointer",
    "store",
    "cache",
    "interrupt_before_nodes",
    "interrupt_after_nodes",
    "step_timeout",
    "stream_mode",
    "debug",
)
"""What a user may have changed in a copy of a graph."""


def with_substitute(graph: AnyCompiledGraph, find_substitute: Substitute) -> AnyCompiledGraph:
    """Return a graph in whose place another runs wherever `find_substitute` returns one.

    That holds for its copies too, such as those of `with_config`, but for no patched one.
    """
    setattr(graph.builder, _SUBSTITUTE, find_substitute)
    return graph


class _Keys(list[str]):
    """The channels that a run gives out, once its input has been chosen."""


def publish(
    builder: AnyGraph,
    inputs: Sequence[str],
    outputs: Sequence[str],
    saver: BaseCheckpointSaver[Any] | None = None,
    *,
    store: BaseStore | None = None,
    name: str,
) -> AnyCompiledGraph:
    """Compile a graph with a public surface: the channels that it takes, and those it shows."""
    builder = copy_of(builder)
    builder.input_schema = builder.output_schema = builder.state_schema
    graph = compile_graph(builder, saver, store=store, name=name)
    # Only now: the node at the start writes the channels of the schema of its compilation, and
    # `run_whole` gives it all of them.
    hints = get_type_hints(builder.state_schema, include_extras=True)
    for attribute, keys in (("input_schema", inputs), ("output_schema", outputs)):
        fields = {key: hints[key] for key in keys}
        schema = TypedDict(f"{name}_{attribute}", fields, total=False)  # type: ignore[misc]
        builder.schemas[schema] = {key: builder.channels[key] for key in keys}
        setattr(builder, attribute, schema)
    graph.channels[START] = EphemeralValue(builder.input_schema)
    graph.output_channels = graph.stream_channels = list(outputs)
    graph.__class__ = PublicGraph
    without_idle_callbacks(graph)
    return graph


async def run_whole(
    graph: PregelProtocol[Any, Any, Any, Any],
    input: Any,
    config: RunnableConfig | None = None,
    *,
    result_keys: Sequence[str] | None = None,
    **settings: Any,
) -> Any:
    """Run a graph to its end, with all of its channels in its input and in its result.

    A stream around it shows the public ones. A graph without a public surface is run as it is.
    Where no stream shows the run, its result has only the `result_keys`: LangGraph reads the
    channels of a result after each step.
    """
    config, keys = _whole(graph, config, result_keys)
    return await graph.ainvoke(input, config, **keys, **settings)


async def run_inside(
    graph: PregelProtocol[Any, Any, Any, Any],
    values: object,
    result_keys: Sequence[str] | None = None,
) -> Any:
    """Run a graph as a part of the graph around this node, with all of its channels.

    Where no stream shows the run, its result has only the `result_keys`.
    """
    config, keys = _whole(graph, None, result_keys)
    return await run_graph(graph, values, config, **keys)


def _whole(
    graph: PregelProtocol[Any, Any, Any, Any],
    config: RunnableConfig | None,
    result_keys: Sequence[str] | None = None,
) -> tuple[RunnableConfig | None, dict[str, Any]]:
    """Return the config and the settings of a run with all channels, or those of its result."""
    if not isinstance(graph, PublicGraph):
        return config, {}
    if result_keys is not None and not has_stream(config):
        return config, {"output_keys": _Keys(result_keys)}
    keys = _Keys(graph.all_channels)
    config = hide_in_stream(config, frozenset(keys).difference(graph.output_channels))
    return config, {"output_keys": keys}


async def whole_state(
    graph: PregelProtocol[Any, Any, Any, Any], config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """Return the state of a thread with all channels, also those of the graphs within."""
    token = _view.set("whole")
    try:
        return await graph.aget_state(config, subgraphs=subgraphs)
    finally:
        _view.reset(token)


def _view_of(config: RunnableConfig) -> _View:
    if _view.get() == "whole":
        return "whole"
    return "node" if is_part_of_snapshot(config) else "public"


def _with_ids(messages: Sequence[Any]) -> list[AnyMessage]:
    """Return messages with ids, which are the same whenever the same messages come again."""
    copies: list[Any] = convert_to_messages(messages)
    return [
        message if message.id else message.model_copy(update={"id": _derived_id(number, message)})
        for number, message in enumerate(copies)
    ]


def _derived_id(number: int, message: AnyMessage) -> str:
    text = f"{number} {message.type} {message.content!r}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
