"""What of a graph's state lasts from turn to turn on a thread, apart from its messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langgraph.channels import BinaryOperatorAggregate, DeltaChannel, EphemeralValue, UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Overwrite
from typing_extensions import is_typeddict

from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph, copy_of


class LastingChannels:
    """The channels of a graph whose values a thread would keep, and how they are serialised."""

    def __init__(self, graph: AnyCompiledGraph, private: Collection[str] = ()) -> None:
        self._channels = {
            name: channel
            for name, channel in graph.builder.channels.items()
            if not isinstance(channel, EphemeralValue | UntrackedValue)
            and name not in ("messages", *private)
        }
        self._takes_overwrites = is_typeddict(graph.builder.state_schema)
        self.serde: SerializerProtocol = _serde_of(graph.builder)

    @property
    def names(self) -> list[str]:
        """The names of the channels."""
        return list(self._channels)

    def as_input(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values as the input of a graph with an empty state, which then has just these."""
        return {
            name: Overwrite(value) if self._is_reduced(name) else value
            for name, value in values.items()
            if name in self._channels
        }

    def _is_reduced(self, name: str) -> bool:
        is_reduced = isinstance(self._channels[name], BinaryOperatorAggregate | DeltaChannel)
        return is_reduced and self._takes_overwrites


def take_whole_state(graph: AnyGraph) -> AnyGraph:
    """Let the input of a graph be its whole state: a patcher."""
    graph.input_schema = graph.state_schema
    return graph


def _serde_of(builder: AnyGraph) -> SerializerProtocol:
    """Return the serialiser with which LangGraph stores a graph's state: it may load its types."""
    saver: Any = copy_of(builder).compile(InMemorySaver()).checkpointer
    serde: SerializerProtocol = saver.serde
    return serde
