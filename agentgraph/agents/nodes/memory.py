"""The memory of a foreign graph: its state on a thread, between the turns of a conversation.

A graph that was compiled with a saver, or with `checkpointer=True`, has one; so has a remote graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import AnyMessage
from langgraph.config import get_config
from langgraph.graph.state import CompiledStateGraph

from agentgraph.blocking import run_graph, state_of_graph
from agentgraph.graphs.run_context import inherited_context
from agentgraph.graphs.task import has_saver
from agentgraph.history import unknown_outcomes
from agentgraph.participant import Graph
from agentgraph.remote import RemoteMember, read_messages, unseen_messages
from agentgraph.running import current_delegation


def with_memory(graph: Graph) -> Graph:
    """Return the graph for visits: it keeps its state on the thread, if it was made to keep one."""
    if isinstance(graph, RemoteMember):
        return replace(graph, remembers=True)
    if isinstance(graph, CompiledStateGraph) and graph.checkpointer:
        return graph.copy({"checkpointer": True})
    return graph


@dataclass(frozen=True, slots=True)
class Delegate:
    """The same graph for delegates, without memory: parallel calls would share it.

    It is held here and not by the node, in which LangGraph looks for the nested graph.
    """

    graph: Graph
    remembers_below: bool = False
    """Whether a graph inside of it has a memory."""

    @classmethod
    def of(cls, graph: Graph) -> Delegate:
        """Return the graph of delegates for that of visits."""
        if not isinstance(graph, CompiledStateGraph):
            return cls(graph)
        nested_graphs = (below for _, below in graph.get_subgraphs(recurse=True))
        remembers = any(getattr(below, "checkpointer", None) is True for below in nested_graphs)
        return cls(graph.copy({"checkpointer": None}) if graph.checkpointer else graph, remembers)

    async def ask(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the graph for one call."""
        graph = self.graph
        if self.remembers_below:
            # LangGraph leaves the tasks out of a memory's namespace, but no part that is a number.
            at = get_config().get("configurable", {})
            task = str(at.get("checkpoint_ns"))
            number = uuid5(NAMESPACE_OID, task).int
            graph = graph.with_config({"configurable": {**at, "checkpoint_ns": f"{task}|{number}"}})
        result: Mapping[str, Any] = await run_graph(graph, values, **inherited_context(graph))
        return result


async def ask(graph: Graph, delegate: Delegate, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a foreign graph on a conversation; one with a memory gets only what it has not seen."""
    config = get_config()
    has_memory = isinstance(graph, CompiledStateGraph) and graph.checkpointer is True
    if current_delegation() or (has_memory and not has_saver(config)):
        return await delegate.ask(values)
    if not isinstance(graph, CompiledStateGraph) or not has_memory:
        result: Mapping[str, Any] = await run_graph(graph, values, **inherited_context(graph))
        return result
    state = await state_of_graph(graph, config)
    stored_messages = _messages_in(state.values)
    messages: list[AnyMessage] = values["messages"]
    new_input = unseen_messages(messages, stored_messages)
    if stored_messages and not new_input and not state.next:
        # It had answered when the process was cut off.
        return {"messages": unseen_messages(stored_messages, messages)}
    graph_input = {**values, "messages": [*unknown_outcomes(stored_messages), *new_input]}
    result = await run_graph(graph, graph_input, **inherited_context(graph))
    return {**result, "messages": unseen_messages(_messages_in(result), messages)}


def _messages_in(values: object) -> list[AnyMessage]:
    return read_messages(values.get("messages") or ()) if isinstance(values, Mapping) else []
