"""The programs we compare with, written as their own documentation writes them."""

from __future__ import annotations

import warnings
from typing import Any

from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.script import FunctionModel, answer, look_up, then_answer

__all__ = ["bare_langgraph", "langgraph_supervisor"]


def bare_langgraph(saver: BaseCheckpointSaver[Any]) -> Any:
    """Build the loop of a model and its tools that LangGraph's tutorials begin with."""
    model = FunctionModel(say=then_answer("look_up", order="A17")).bind_tools([look_up])

    async def call_model(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("call_model", call_model)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "call_model")
    graph.add_conditional_edges("call_model", tools_condition)
    graph.add_edge("tools", "call_model")
    return graph.compile(saver)


def langgraph_supervisor(saver: BaseCheckpointSaver[Any]) -> Any:
    """Build a supervisor with one worker; the worker hands back, the supervisor answers."""
    from langgraph.prebuilt import create_react_agent
    from langgraph_supervisor import create_supervisor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its README uses create_react_agent
        worker = create_react_agent(
            FunctionModel(say=lambda _: answer()),
            [look_up],
            name="orders",
            prompt="You know orders.",
        )
        supervisor = create_supervisor(
            [worker],
            model=FunctionModel(say=then_answer("transfer_to_orders")),
            prompt="You supervise.",
        )
    return supervisor.compile(saver)
