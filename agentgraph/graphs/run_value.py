"""A value of one run in a graph of others, which no node, caller or parent of that graph sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyChannelError

from agentgraph.graphs.compiled import AnyGraph
from agentgraph.graphs.private import (
    CONF,
    CONFIG_KEY_READ,
    MISSING,
    ChannelWrite,
    ChannelWriteEntry,
)

RUN_VALUE = "__agentgraph_run"
"""The channel of guards in a foreign graph, which `patched` hides."""


GOES_ON = {"goes_on": True}


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
        self.goes_on = GOES_ON in values
        for value in values:
            if value != GOES_ON:
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
