"""The programs we compare with, written as their own documentation writes them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.script import FunctionModel, answer, ask, look_up, then_answer

__all__ = ["bare_chat", "bare_langgraph", "langgraph_supervisor", "langgraph_supervisor_of_two"]


def bare_langgraph(saver: BaseCheckpointSaver[Any], kind: type[FunctionModel]) -> Any:
    """Build the loop of a model and its tools that LangGraph's tutorials begin with."""
    model = kind(say=then_answer("look_up", order="A17")).bind_tools([look_up])

    async def call_model(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("call_model", call_model)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "call_model")
    graph.add_conditional_edges("call_model", tools_condition)
    graph.add_edge("tools", "call_model")
    return graph.compile(saver)


def bare_chat(model: BaseChatModel) -> Any:
    """Build a graph of a model alone, which keeps nothing."""

    async def call_model(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("call_model", call_model)
    graph.add_edge(START, "call_model")
    return graph.compile()


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


def langgraph_supervisor_of_two(saver: BaseCheckpointSaver[Any]) -> Any:
    """Build a supervisor that has two workers answer, each after a call of its tool."""
    from langgraph.prebuilt import create_react_agent
    from langgraph_supervisor import create_supervisor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its README uses create_react_agent
        workers = [
            create_react_agent(
                FunctionModel(say=_worker), [look_up], name=name, prompt="You know orders."
            )
            for name in ("desk", "orders")
        ]
        supervisor = create_supervisor(
            workers, model=FunctionModel(say=_each_in_turn), prompt="You supervise."
        )
    return supervisor.compile(saver)


def _worker(messages: Sequence[BaseMessage]) -> AIMessage:
    """Call the tool when the supervisor has transferred, and answer when it has."""
    return answer() if messages[-1].name == "look_up" else ask("look_up", order="A17")


def _each_in_turn(messages: Sequence[BaseMessage]) -> AIMessage:
    """Transfer to both workers, one after the other, and then answer."""
    if isinstance(messages[-1], HumanMessage):
        return ask("transfer_to_desk")
    # A worker's transfer back ends in a call of its own, and the answer to that.
    return ask("transfer_to_orders") if messages[-2].name == "desk" else answer()
