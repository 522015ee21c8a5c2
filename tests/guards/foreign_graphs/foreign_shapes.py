"""Graphs of others in many shapes: each asks its model, and runs the tools that the model calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import BaseTool
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Send
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agentgraph.testing import ScriptedModel, call

Make = Callable[[Any, BaseTool], Any]


class Shape(NamedTuple):
    """A graph of a model and a tool; `is_found` tells whether guards find its model's node."""

    make: Make
    is_found: bool = True


def loop(think: Any, act: Any, schema: Any = MessagesState, key: str = "messages") -> Any:
    """Return a graph with nodes of names of its own."""

    def route(state: Any) -> str:
        messages = state[key] if isinstance(state, dict) else getattr(state, key)
        return "act" if messages[-1].tool_calls else END

    graph: Any = StateGraph(schema)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", route, ["act", END])
    graph.add_edge("act", "think")
    return graph.compile(name="office")


def single(work: Any) -> Any:
    """Return a graph of one node."""
    graph: Any = StateGraph(MessagesState)
    return graph.add_node("work", work).add_edge(START, "work").compile(name="office")


def said(messages: Any) -> dict[str, Any]:
    return {"messages": [messages]}


def thinking(model: Any) -> Any:
    return lambda state: said(model.invoke(state["messages"]))


# Graphs of libraries.


class Passing(AgentMiddleware[Any, Any]):
    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


def clerk(model: Any, tool: BaseTool) -> Any:
    return create_agent(model, [tool], name="clerk")


def supervisor(model: Any, tool: BaseTool) -> Any:
    boss = ScriptedModel([call("transfer_to_clerk"), "All done."])
    return create_supervisor([clerk(model, tool)], model=boss).compile(name="office")


def supervisors(model: Any, tool: BaseTool) -> Any:
    low = ScriptedModel([call("transfer_to_clerk"), "All done."])
    team = create_supervisor([clerk(model, tool)], model=low, supervisor_name="middle")
    top = ScriptedModel([call("transfer_to_team"), "All done."])
    return create_supervisor([team.compile(name="team")], model=top).compile(name="office")


def swarm(model: Any, tool: BaseTool) -> Any:
    tools: Any = [create_handoff_tool(agent_name="clerk")]
    first = create_agent(ScriptedModel([call("transfer_to_clerk")]), tools, name="first")
    agents: Any = [first, clerk(model, tool)]
    return create_swarm(agents, default_active_agent="first").compile(name="office")


# Nodes that ask a model.


class Mind:
    def __init__(self, model: Any) -> None:
        self.model = model

    def think(self, state: MessagesState) -> Any:
        return said(self.model.invoke(state["messages"]))

    def __call__(self, state: MessagesState) -> Any:
        return self.think(state)


def by_name(model: Any, tool: BaseTool) -> Any:
    models = {"it": model}
    return loop(lambda state: said(models["it"].invoke(state["messages"])), ToolNode([tool]))


def by_keyword(model: Any, tool: BaseTool) -> Any:
    def think(state: Any, mind: Any) -> Any:
        return said(mind.invoke(state["messages"]))

    return loop(partial(think, mind=model), ToolNode([tool]))


def chain(model: Any, tool: BaseTool) -> Any:
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("messages")])
    return loop(prompt | model | said, ToolNode([tool]))


def streaming(model: Any, tool: BaseTool) -> Any:
    def think(state: Any) -> Any:
        whole: Any = None
        for chunk in model.stream(state["messages"]):
            get_stream_writer()(chunk.text)
            whole = chunk if whole is None else whole + chunk
        return said(AIMessage(whole.content, tool_calls=whole.tool_calls))

    return loop(think, ToolNode([tool]))


# Nodes that run tools.


def calling(model: Any, tool: BaseTool) -> Any:
    def act(state: Any) -> Any:
        return {"messages": [tool.invoke(c) for c in state["messages"][-1].tool_calls]}

    return loop(thinking(model), act)


def calling_functions(model: Any, tool: Any) -> Any:
    def act(state: Any) -> Any:
        calls = state["messages"][-1].tool_calls
        return {
            "messages": [ToolMessage(tool.func(**c["args"]), tool_call_id=c["id"]) for c in calls]
        }

    return loop(thinking(model), act)


def running_node(model: Any, tool: BaseTool) -> Any:
    node = ToolNode([tool])

    async def act(state: Any) -> Any:
        return await node.ainvoke(state)

    return loop(thinking(model), act)


def all_in_one(model: Any, tool: BaseTool) -> Any:
    def work(state: Any) -> Any:
        messages = list(state["messages"])
        while True:
            messages.append(answer := model.invoke(messages))
            if not answer.tool_calls:
                return {"messages": messages}
            messages += [tool.invoke(c) for c in answer.tool_calls]

    return single(work)


def sending(model: Any, tool: BaseTool) -> Any:
    def route(state: Any) -> Any:
        return [Send("act", [c]) for c in state["messages"][-1].tool_calls] or END

    graph: Any = StateGraph(MessagesState)
    graph.add_node("think", thinking(model))
    graph.add_node("act", ToolNode([tool]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", route, ["act", END])
    graph.add_edge("act", "think")
    return graph.compile(name="office")


# Graphs in graphs.


def within(place: Callable[[Any], Callable[[Any], Any]]) -> Make:
    def make(model: Any, tool: BaseTool) -> Any:
        return single(place(clerk(model, tool)))

    return make


def in_closure(inner: Any) -> Any:
    async def enter(state: Any) -> Any:
        return await inner.ainvoke({"messages": state["messages"]})

    return enter


def in_list(inner: Any) -> Any:
    graphs = [inner]

    async def enter(state: Any) -> Any:
        return await graphs[0].ainvoke({"messages": state["messages"]})

    return enter


def functional(model: Any, tool: BaseTool) -> Any:
    @entrypoint()  # type: ignore[call-overload,untyped-decorator,unused-ignore]  # a context
    def office(state: Any) -> Any:
        answer = model.invoke(state["messages"])
        return {"messages": [answer, *(tool.invoke(c) for c in answer.tool_calls)]}

    office.name = "office"
    return office


def functional_within(model: Any, tool: BaseTool) -> Any:
    return single(in_closure(functional(model, tool)))


# States.


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = Field(default_factory=list)


@dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class Two(TypedDict):
    history: Annotated[list[AnyMessage], add_messages]
    messages: Annotated[list[AnyMessage], add_messages]


def in_state(schema: Any) -> Make:
    def make(model: Any, tool: BaseTool) -> Any:
        return loop(lambda state: said(model.invoke(state.messages)), ToolNode([tool]), schema)

    return make


def in_another_channel(model: Any, tool: BaseTool) -> Any:
    def think(state: Any) -> Any:
        return {"history": [model.invoke(state["history"] or state["messages"])]}

    return loop(think, ToolNode([tool], messages_key="history"), Two, "history")


SHAPES = {
    "langchain": Shape(lambda model, tool: create_agent(model, [tool], name="office")),
    "middleware": Shape(
        lambda model, tool: create_agent(model, [tool], name="office", middleware=[Passing()])
    ),
    "supervisor": Shape(supervisor),
    "supervisors": Shape(supervisors),
    "swarm": Shape(swarm),
    "closure": Shape(lambda model, tool: loop(thinking(model), ToolNode([tool]))),
    "method": Shape(lambda model, tool: loop(Mind(model).think, ToolNode([tool])), False),
    "object": Shape(lambda model, tool: loop(Mind(model), ToolNode([tool])), False),
    "dict": Shape(by_name, False),
    "keyword": Shape(by_keyword, False),
    "chain": Shape(chain),
    "custom stream": Shape(streaming),
    "tools called": Shape(calling),
    "functions called": Shape(calling_functions),
    "tools node called": Shape(running_node),
    "all in one": Shape(all_in_one),
    "send": Shape(sending),
    "graph in a closure": Shape(within(in_closure)),
    "graph in a list": Shape(within(in_list), False),
    "graph as a node": Shape(within(lambda inner: inner)),
    "functional within": Shape(functional_within, False),
    "pydantic": Shape(in_state(Model)),
    "dataclass": Shape(in_state(Data)),
    "another channel": Shape(in_another_channel),
}
