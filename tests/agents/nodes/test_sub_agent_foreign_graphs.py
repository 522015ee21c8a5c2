from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import Agent, Reply
from agentgraph.stream import AIMessageEvent, TokenEvent
from agentgraph.testing import ScriptedModel, Turn, call


def lookup() -> str:
    """Look something up."""
    return "looked up"


def foreign(*turns: Any) -> Any:
    return create_agent(ScriptedModel(turns), tools=[lookup], name="clerk")


def types(reply: Reply) -> list[str]:
    return [message.type for message in reply.messages]


def each_call_is_answered_once(reply: Reply) -> bool:
    spoken = [m for m in reply.messages if isinstance(m, AIMessage)]
    called = [str(one["id"]) for m in spoken for one in m.tool_calls]
    answered = [m.tool_call_id for m in reply.messages if isinstance(m, ToolMessage)]
    return sorted(called) == sorted(answered)


async def test_a_foreign_graph_takes_over_the_conversation_and_brings_its_tool_messages() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    clerk = foreign(call("lookup"), "I have looked it up.")
    reply = await Agent("desk", model=desk, agents=[clerk]).ainvoke("look it up")
    assert (reply.text, reply.agent) == ("I have looked it up.", "desk/clerk")
    assert types(reply) == ["ai", "tool", "ai", "tool", "ai"]
    assert [m.text for m in reply.messages if m.type == "tool"][1] == "looked up"
    assert each_call_is_answered_once(reply)


async def test_a_foreign_graph_keeps_the_conversation_and_its_messages_are_stored_once() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    model = ScriptedModel([call("lookup"), "First.", "Second."])
    clerk = create_agent(model, tools=[lookup], name="clerk")
    agent = Agent("desk", model=desk, agents=[clerk])
    await agent.ainvoke("one", thread_id="1")
    reply = await agent.ainvoke("two", thread_id="1")
    history = await agent.ahistory("1")
    assert (reply.text, reply.agent, types(reply)) == ("Second.", "desk/clerk", ["ai"])
    assert len({m.id for m in history}) == len(history) == 8
    assert [m.text for m in model.requests[2].messages[-2:]] == ["First.", "two"]


async def test_a_foreign_graph_answers_as_a_delegate() -> None:
    desk = ScriptedModel([call("transfer_to_clerk"), "The clerk knows."])
    clerk = foreign(call("lookup"), "I have looked it up.")
    agent = Agent("desk", model=desk, agents=[clerk], handoff="delegate")
    reply = await agent.ainvoke("look it up", thread_id="1")
    assert (reply.text, reply.agent) == ("The clerk knows.", "desk")
    assert [m.text for m in reply.messages] == ["", "I have looked it up.", "The clerk knows."]


@pytest.mark.parametrize("mode", ["sticky", "delegate"])
async def test_a_foreign_graph_is_told_reason_and_summary(mode: Any) -> None:
    transfer = call("transfer_to_clerk", reason="digging", summary="the garden")
    desk, model = ScriptedModel([transfer, "All done."]), ScriptedModel(["Done."])
    clerk = create_agent(model, name="clerk")
    await Agent("desk", model=desk, agents=[clerk], handoff=mode).ainvoke("work")
    told = "Conversation transferred to clerk\nReason: digging\nSummary: the garden"
    assert [m.text for m in model.requests[0].messages] == ["work", "", told]


async def test_two_foreign_delegates_of_one_message_both_answer() -> None:
    desk = ScriptedModel([[call("transfer_to_red"), call("transfer_to_blue")], "Both."])
    agents = [create_agent(ScriptedModel([f"{n}."]), name=n) for n in ("red", "blue")]
    reply = await Agent("desk", model=desk, agents=agents, handoff="delegate").ainvoke("go")
    assert sorted(m.text for m in reply.messages if m.type == "tool") == ["blue.", "red."]
    assert reply.text == "Both."
    assert each_call_is_answered_once(reply)


async def test_nothing_is_invented_when_a_foreign_graph_is_given_an_open_call() -> None:
    async def echo(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}

    graph = StateGraph(MessagesState).add_node("echo", echo).add_edge(START, "echo")
    agent = Agent("desk", model=ScriptedModel([]), agents=[graph.compile(name="clerk")])
    asked = AIMessage("", tool_calls=[{**call("lookup"), "id": "open"}])
    reply = await agent.ainvoke([asked, HumanMessage("@clerk hello")])
    assert reply.text == "3 messages"
    assert types(reply) == ["ai"]


async def test_tokens_and_messages_of_a_foreign_graph_are_told_once() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    agent = Agent("desk", model=desk, agents=[foreign("Looked it up.")])
    events = [event async for event in agent.astream("look it up")]
    told = [e for e in events if isinstance(e, TokenEvent)]
    assert "".join(e.text for e in told) == "Looked it up."
    assert {e.agent for e in told} == {"desk/clerk"}
    assert [e.text for e in events if isinstance(e, AIMessageEvent)] == ["Looked it up."]


async def test_the_usage_of_a_foreign_graph_is_counted_for_it() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    used: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    clerk = foreign(Turn(calls=[call("lookup")], usage=used), Turn("Done.", usage=used))
    reply = await Agent("desk", model=desk, agents=[clerk]).ainvoke("work")
    assert reply.usage.by_agent["desk/clerk"].total_tokens == 30


def test_an_agent_is_a_tool_of_a_synchronous_foreign_agent() -> None:
    helper = Agent("helper", "Helps", model=ScriptedModel(["Helped."])).as_tool()
    model = ScriptedModel([call("helper", request="help"), "Done."])
    result = create_agent(model, tools=[helper]).invoke({"messages": [HumanMessage("go")]})
    assert [m.text for m in result["messages"]] == ["go", "", "Helped.", "Done."]


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
async def test_several_calls_of_an_agent_as_a_tool_in_a_foreign_agent(saver: Any) -> None:
    scripted = ScriptedModel(lambda m: f"{m[-1].text}!" if m[-1].type == "human" else "?")
    helper = Agent("helper", "Helps", model=scripted).as_tool()
    calls = [call("helper", request=request) for request in ("one", "two")]
    model = ScriptedModel([calls, call("helper", request="three"), "Done."])
    agent = create_agent(model, tools=[helper], checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    result = await agent.ainvoke({"messages": [HumanMessage("go")]}, config)
    told = [m.text for m in result["messages"] if isinstance(m, ToolMessage)]
    assert told == ["one!", "two!", "three!"]


async def test_the_structured_answer_of_an_agent_is_what_a_foreign_agent_gets() -> None:
    schema = {"title": "Price", "type": "object", "properties": {"amount": {"type": "integer"}}}
    scripted = ScriptedModel([call("Price", amount=3)])
    helper = Agent("helper", "Helps", model=scripted, response_format=schema).as_tool()
    model = ScriptedModel([call("helper", request="price?"), "Done."])
    result = await create_agent(model, tools=[helper]).ainvoke({"messages": [HumanMessage("go")]})
    assert result["messages"][2].text == '{"amount":3}'


class Marked(MessagesState, total=False):
    guarded: bool


@entrypoint()
async def sure(_: str) -> str:
    return str(interrupt("Sure?"))


async def ask_by_entrypoint(state: Marked) -> dict[str, Any]:
    return {"messages": [AIMessage(str(await sure.ainvoke("it")))]}


async def ask(state: Marked) -> dict[str, Any]:
    return {"messages": [AIMessage(str(interrupt("Sure?")))]}


@pytest.mark.parametrize("node", [ask, ask_by_entrypoint])
@pytest.mark.parametrize("handoff", ["sticky", "delegate"])
async def test_new_input_is_taken_though_a_graph_waits_whose_state_is_like_none_of_ours(
    node: Any, handoff: Any
) -> None:
    graph = StateGraph(Marked).add_node("mark", lambda _: {"guarded": True}).add_node("ask", node)
    graph = graph.add_edge(START, "mark").add_edge("mark", "ask")
    desk = Agent(
        "desk",
        model=ScriptedModel([call("transfer_to_clerk"), "Hello!"]),
        agents=[graph.compile(name="clerk")],
        handoff=handoff,
    )
    assert len((await desk.ainvoke("go", thread_id="t")).interrupts) == 1
    reply = await desk.ainvoke("@desk Are you there?", thread_id="t")
    assert (reply.text, reply.interrupts) == ("Hello!", ())
