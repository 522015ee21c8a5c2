"""The programs we compare with, written as their own documentation writes them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send
from pydantic import BaseModel
from typing_extensions import TypedDict

from benchmarks.script import FunctionModel, answer, ask, look_up, then_answer

__all__ = [
    "bare_chat",
    "bare_langgraph",
    "bare_map_reduce",
    "langgraph_supervisor",
    "langgraph_supervisor_of_two",
]


def bare_langgraph(saver: BaseCheckpointSaver[Any] | None, kind: type[FunctionModel]) -> Any:
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


class Plan(BaseModel):
    """The parts of the work."""

    briefs: list[dict[str, str]]


class Verdict(BaseModel):
    """Whether the result may be used."""

    accepted: bool
    confidence: float
    problems: list[str]


class MapReduceState(TypedDict, total=False):
    """The channels of the map-reduce: LangGraph's how-to has the same, for jokes."""

    task: str
    briefs: list[dict[str, str]]
    results: Annotated[list[str], operator.add]
    result: str
    accepted: bool


def bare_map_reduce(
    saver: BaseCheckpointSaver[Any], lead: BaseChatModel, model: BaseChatModel, worker: Any = None
) -> Any:
    """Build a map-reduce with `Send`: plan, a node for each part, reduce, judge.

    A part is done by the model, or by a graph where there is one.
    """
    planner = lead.with_structured_output(Plan)
    judge = lead.with_structured_output(Verdict)

    async def plan(state: MapReduceState) -> MapReduceState:
        planned: Any = await planner.ainvoke(f"Plan the work: {state['task']}")
        return {"briefs": planned.briefs}

    async def work(brief: dict[str, str]) -> MapReduceState:
        if worker is None:
            return {"results": [str((await model.ainvoke(brief["task"])).text)]}
        messages = await worker.ainvoke({"messages": [("user", brief["task"])]})
        return {"results": [str(messages["messages"][-1].text)]}

    async def reduce(state: MapReduceState) -> MapReduceState:
        return {"result": str((await lead.ainvoke("\n\n".join(state["results"]))).text)}

    async def validate(state: MapReduceState) -> MapReduceState:
        judged: Any = await judge.ainvoke(f"Judge this: {state['result']}")
        return {"accepted": judged.accepted}

    graph = StateGraph(MapReduceState)
    for node in (plan, reduce, validate):
        graph.add_node(node.__name__, node)
    graph.add_node("work", work)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda s: [Send("work", b) for b in s["briefs"]], ["work"])
    graph.add_edge("work", "reduce")
    graph.add_edge("reduce", "validate")
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
