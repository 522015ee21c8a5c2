"""What of a graph's state lasts from turn to turn on a thread, apart from its messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.channels import (
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    UntrackedValue,
)
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Overwrite
from typing_extensions import is_typeddict

from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph, copy_of
from agentgraph.graphs.private import (
    CONF,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_THREAD_ID,
    NS_SEP,
)

StoredValue: TypeAlias = tuple[str, bytes]
"""The type and the bytes of a serialised value."""


class LastingChannels:
    """The channels of a graph whose values a thread would keep, and how they are serialised."""

    def __init__(self, graph: AnyCompiledGraph, private: Collection[str] = ()) -> None:
        self._channels = {
            name: channel
            for name, channel in graph.builder.channels.items()
            if not isinstance(channel, EphemeralValue | UntrackedValue)
            and name not in ("messages", *private)
        }
        messages = graph.builder.channels.get("messages")
        self.replaces_messages = isinstance(messages, LastValue)
        """Whether the graph's messages have no reducer: each write replaces them."""
        self._takes_overwrites = is_typeddict(graph.builder.state_schema)
        self._serde = _serde_of(graph.builder)

    @property
    def names(self) -> list[str]:
        """The names of the channels."""
        return list(self._channels)

    def as_input(self, stored_values: Mapping[str, StoredValue]) -> dict[str, Any]:
        """Return stored values as the input of a graph with an empty state, which then has them."""
        values = {
            name: self._serde.loads_typed(stored_values[name])
            for name in self._channels
            if name in stored_values
        }
        return {
            name: Overwrite(value) if self._is_reduced(name) else value
            for name, value in values.items()
        }

    def to_store(self, values: Mapping[str, Any]) -> dict[str, StoredValue]:
        """Return those of a state's values that last, as they are stored."""
        names = (name for name in self._channels if name in values)
        return {name: self._serde.dumps_typed(values[name]) for name in names}

    def _is_reduced(self, name: str) -> bool:
        is_reduced = isinstance(self._channels[name], BinaryOperatorAggregate | DeltaChannel)
        return is_reduced and self._takes_overwrites


class NestedMemories:
    """The memories of graphs inside of a graph, which a thread would keep: `checkpointer=True`.

    Each is the last checkpoint of a namespace without tasks, and is put back before a run.
    """

    def __init__(self, graph: AnyCompiledGraph) -> None:
        nested_graphs = graph.get_subgraphs(recurse=True)
        self._serdes = {
            f"{NS_SEP}{path}": _serde_of(graph_below.builder)
            for path, graph_below in nested_graphs
            if isinstance(graph_below, CompiledStateGraph) and graph_below.checkpointer is True
        }

    @property
    def names(self) -> list[str]:
        """The names under which the memories are stored; no channel has such a name."""
        return list(self._serdes)

    async def put_back(
        self, config: RunnableConfig, stored_values: Mapping[str, StoredValue]
    ) -> None:
        """Write the memories for the run of a node, unless the run goes on and has them."""
        saver = config[CONF].get(CONFIG_KEY_CHECKPOINTER)
        if not isinstance(saver, BaseCheckpointSaver):
            return
        for name in self._serdes.keys() & stored_values.keys():
            at = _config_of_memory(config, name)
            if await saver.aget_tuple(at) is None:
                checkpoint, metadata = self._serdes[name].loads_typed(stored_values[name])
                await saver.aput(at, checkpoint, metadata, checkpoint["channel_versions"])

    async def read(self, config: RunnableConfig) -> dict[str, StoredValue]:
        """Return the memories after the run of a node, as they are stored."""
        saver = config[CONF].get(CONFIG_KEY_CHECKPOINTER)
        if not isinstance(saver, BaseCheckpointSaver):
            return {}
        memories: dict[str, StoredValue] = {}
        for name, serde in self._serdes.items():
            latest = await saver.aget_tuple(_config_of_memory(config, name))
            if latest is not None:
                memories[name] = serde.dumps_typed((latest.checkpoint, latest.metadata))
        return memories


def _config_of_memory(config: RunnableConfig, name: str) -> RunnableConfig:
    """Return where a memory is stored: LangGraph leaves the tasks out of its namespace."""
    values = config[CONF]
    nodes = [part.partition(":")[0] for part in values[CONFIG_KEY_CHECKPOINT_NS].split(NS_SEP)]
    namespace = NS_SEP.join(node for node in nodes if not node.isdigit())
    thread_id = values[CONFIG_KEY_THREAD_ID]
    return {CONF: {CONFIG_KEY_THREAD_ID: thread_id, CONFIG_KEY_CHECKPOINT_NS: f"{namespace}{name}"}}


def take_whole_state(graph: AnyGraph) -> AnyGraph:
    """Let the input of a graph be its whole state: a patcher."""
    graph.input_schema = graph.state_schema
    return graph


def _serde_of(builder: AnyGraph) -> SerializerProtocol:
    """Return the serialiser with which LangGraph stores a graph's state: it may load its types."""
    saver: Any = copy_of(builder).compile(InMemorySaver()).checkpointer
    serde: SerializerProtocol = saver.serde
    return serde
