from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from agentgraph import Agent, Handoff, Reply
from agentgraph.stream import RoutingEvent, ToolResponseEvent
from agentgraph.testing import ScriptedModel, call


def lookup() -> str:
    """Look something up."""
    return "looked up"


class Price(BaseModel):
    """A price."""

    amount: int


def worker(name: str, *turns: Any, **fields: Any) -> Agent:
    return Agent(name, model=ScriptedModel(turns or [f"{name} is done."]), **fields)


def meeting(*names: str) -> list[Agent]:
    barrier = asyncio.Barrier(len(names))

    def model_of(name: str) -> ScriptedModel:
        async def answer(_: list[BaseMessage]) -> str:
            async with asyncio.timeout(5):
                await barrier.wait()
            return f"{name} has met the others."

        return ScriptedModel(answer)

    return [Agent(name, model=model_of(name)) for name in names]


def answers(reply: Reply) -> dict[str, str]:
    return {m.name or "": str(m.text) for m in reply.messages if isinstance(m, ToolMessage)}


def each_call_is_answered_once(reply: Reply) -> bool:
    spoken = [m for m in reply.messages if isinstance(m, AIMessage)]
    called = [str(one["id"]) for m in spoken for one in m.tool_calls]
    answered = [m.tool_call_id for m in reply.messages if isinstance(m, ToolMessage)]
    return sorted(called) == sorted(answered)


async def test_a_delegates_answer_comes_back_as_the_answer_to_the_transfer() -> None:
    boss = ScriptedModel([call("transfer_to_worker"), "All done."])
    agent = Agent("boss", model=boss, agents=[worker("worker")], handoff="delegate")
    reply = await agent.ainvoke("work")
    assert (reply.text, reply.agent) == ("All done.", "boss")
    assert answers(reply) == {"transfer_to_worker": "worker is done."}
    assert boss.requests[1].messages[-1].text == "worker is done."


async def test_a_delegates_own_messages_do_not_enter_the_parents_history() -> None:
    agents = [worker("worker", call("lookup"), "worker is done.", tools=[lookup])]
    boss = ScriptedModel([call("transfer_to_worker"), "All done."])
    agent = Agent("boss", model=boss, agents=agents, handoff="delegate")
    await agent.ainvoke("work", thread_id="1")
    history = await agent.ahistory("1")
    assert [m.type for m in history] == ["human", "ai", "tool", "ai"]
    assert [m.text for m in history] == ["work", "", "worker is done.", "All done."]


async def test_a_delegate_sees_the_conversation_with_reason_and_summary() -> None:
    model = ScriptedModel(["Done."])
    transfer = call("transfer_to_worker", reason="digging", summary="the garden")
    boss = ScriptedModel([transfer, "All done."])
    agents = [Agent("worker", model=model)]
    await Agent("boss", model=boss, agents=agents, handoff="delegate").ainvoke("work")
    told = "Conversation transferred to worker\nReason: digging\nSummary: the garden"
    assert [m.text for m in model.requests[0].messages[1:]] == ["work", "", told]


async def test_the_conversation_does_not_stay_with_a_delegate() -> None:
    boss = ScriptedModel([call("transfer_to_worker"), "All done.", "Me again."])
    agent = Agent("boss", model=boss, agents=[worker("worker")], handoff="delegate")
    await agent.ainvoke("work", thread_id="1")
    reply = await agent.ainvoke("and now?", thread_id="1")
    assert (reply.text, reply.agent) == ("Me again.", "boss")


async def test_three_delegates_of_one_message_overlap() -> None:
    names = ("red", "green", "blue")
    boss = ScriptedModel([[call(f"transfer_to_{name}") for name in names], "All met."])
    agent = Agent("boss", model=boss, agents=meeting(*names), handoff="delegate")
    reply = await agent.ainvoke("meet")
    assert answers(reply) == {f"transfer_to_{n}": f"{n} has met the others." for n in names}
    assert reply.text == "All met."
    assert len(boss.requests) == 2
    assert each_call_is_answered_once(reply)


async def test_delegates_of_one_message_do_not_see_each_others_tasks_open() -> None:
    models = {name: ScriptedModel(["Done."]) for name in ("red", "green")}
    boss = ScriptedModel([[call("transfer_to_red"), call("transfer_to_green")], "All done."])
    agents = [Agent(name, model=model) for name, model in models.items()]
    await Agent("boss", model=boss, agents=agents, handoff="delegate").ainvoke("work")
    seen = [m.text for m in models["red"].requests[0].messages if isinstance(m, ToolMessage)]
    assert seen == ["Conversation transferred to red", "Others work on this."]


async def test_the_same_delegate_is_asked_twice_in_one_message() -> None:
    transfers = [call("transfer_to_worker", summary=s) for s in ("left", "right")]
    model = ScriptedModel(["One.", "Two."])
    boss = ScriptedModel([transfers, "All done."])
    agent = Agent("boss", model=boss, agents=[Agent("worker", model=model)], handoff="delegate")
    reply = await agent.ainvoke("work")
    assert sorted(m.text for m in reply.messages if m.type == "tool") == ["One.", "Two."]
    assert each_call_is_answered_once(reply)


async def test_a_delegate_delegates_in_its_turn() -> None:
    c = worker("c", "c is done.")
    b = worker("b", call("transfer_to_c"), "b heard from c.", agents=[c], handoff="delegate")
    a = worker("a", call("transfer_to_b"), "a heard from b.", agents=[b], handoff="delegate")
    reply = await a.ainvoke("work")
    assert reply.text == "a heard from b."
    assert answers(reply) == {"transfer_to_b": "b heard from c."}


async def test_a_delegate_hands_over_and_the_receivers_answer_comes_back() -> None:
    b = worker("b", call("transfer_to_c"), agents=[worker("c", "c is done.")])
    a = worker("a", call("transfer_to_b"), "a heard.", "a again.", agents=[b], handoff="delegate")
    reply = await a.ainvoke("work", thread_id="1")
    assert answers(reply) == {"transfer_to_b": "c is done."}
    assert (await a.ainvoke("more", thread_id="1")).text == "a again."


async def test_tools_run_beside_delegates_and_all_are_answered() -> None:
    boss = ScriptedModel(
        [[call("transfer_to_red"), call("lookup"), call("transfer_to_green")], "All done."]
    )
    agents = [worker("red"), worker("green")]
    agent = Agent("boss", model=boss, tools=[lookup], agents=agents, handoff="delegate")
    reply = await agent.ainvoke("work")
    assert answers(reply) == {
        "transfer_to_red": "red is done.",
        "transfer_to_green": "green is done.",
        "lookup": "looked up",
    }
    assert reply.text == "All done."
    assert each_call_is_answered_once(reply)


async def test_a_returned_handoff_is_delegated_too() -> None:
    @tool
    def escalate() -> Handoff:
        """Pass it on."""
        return Handoff("worker", summary="the garden")

    boss = ScriptedModel([call("escalate"), "All done."])
    agents = [worker("worker")]
    agent = Agent("boss", model=boss, tools=[escalate], agents=agents, handoff="delegate")
    reply = await agent.ainvoke("work")
    assert (reply.text, reply.agent) == ("All done.", "boss")
    assert answers(reply) == {"escalate": "worker is done."}


async def test_a_returned_handoff_is_delegated_beside_a_transfer() -> None:
    @tool
    def escalate() -> Handoff:
        """Pass it on."""
        return Handoff("red")

    boss = ScriptedModel([[call("escalate"), call("transfer_to_green")], "All met."])
    agents = meeting("red", "green")
    agent = Agent("boss", model=boss, tools=[escalate], agents=agents, handoff="delegate")
    reply = await agent.ainvoke("meet")
    assert answers(reply) == {
        "escalate": "red has met the others.",
        "transfer_to_green": "green has met the others.",
    }
    assert each_call_is_answered_once(reply)


async def test_a_delegate_that_asks_for_help_says_so_in_its_answer() -> None:
    agents = [worker("worker", call("request_help", reason="no spade"))]
    boss = ScriptedModel([call("transfer_to_worker"), "I dig myself."])
    reply = await Agent("boss", model=boss, agents=agents, handoff="delegate").ainvoke("dig")
    assert "worker asks for help: no spade" in answers(reply)["transfer_to_worker"]
    assert reply.text == "I dig myself."


async def test_a_delegation_is_told_and_its_answer_too() -> None:
    boss = ScriptedModel([call("transfer_to_worker", reason="digging"), "All done."])
    agent = Agent("boss", model=boss, agents=[worker("worker")], handoff="delegate")
    events = [event async for event in agent.astream("work")]
    (routed,) = [e for e in events if isinstance(e, RoutingEvent)]
    (told,) = [e for e in events if isinstance(e, ToolResponseEvent)]
    assert (routed.kind, routed.target, routed.reason) == ("delegate", "worker", "digging")
    assert (told.tool, told.content) == ("transfer_to_worker", "worker is done.")


async def test_the_structured_answer_of_a_delegate_comes_back() -> None:
    agents = [worker("worker", call("Price", amount=3), response_format=Price)]
    boss = ScriptedModel([call("transfer_to_worker"), "It costs 3."])
    reply = await Agent("boss", model=boss, agents=agents, handoff="delegate").ainvoke("price?")
    assert answers(reply) == {"transfer_to_worker": '{"amount":3}'}
    assert reply.output is None


async def test_an_agent_as_a_tool_gets_the_request_and_nothing_else() -> None:
    model = ScriptedModel(["The well is dry."])
    boss = ScriptedModel([call("worker", request="look into the well"), "Dry."])
    agent = Agent("boss", model=boss, agents=[Agent("worker", model=model).as_tool()])
    reply = await agent.ainvoke("is there water?")
    asked = model.requests[0].messages[1:]
    assert [(type(m), m.text) for m in asked] == [(HumanMessage, "look into the well")]
    assert (reply.text, reply.agent) == ("Dry.", "boss")
    assert answers(reply) == {"worker": "The well is dry."}


@pytest.mark.parametrize("where", ["agents", "tools"])
async def test_an_agent_as_a_tool_is_shown_with_its_description(where: str) -> None:
    boss = ScriptedModel(["Hello."])
    tools = [Agent("worker", "Digs", model=ScriptedModel([])).as_tool()]
    place: dict[str, Any] = {where: tools}
    agent = Agent("boss", model=boss, default_tools=False, **place)
    await agent.ainvoke("hi")
    assert boss.requests[0].tools == ("worker",)
    assert "Digs" in str(boss.requests[0].specs[0])


async def test_several_agents_as_tools_overlap() -> None:
    names = ("red", "green", "blue")
    boss = ScriptedModel([[call(name, request="meet") for name in names], "All met."])
    agent = Agent("boss", model=boss, agents=[one.as_tool() for one in meeting(*names)])
    reply = await agent.ainvoke("meet")
    assert answers(reply) == {name: f"{name} has met the others." for name in names}
    assert reply.text == "All met."
    assert each_call_is_answered_once(reply)


async def test_one_agent_as_a_tool_answers_several_requests_apart() -> None:
    model = ScriptedModel(lambda messages: f"done: {messages[-1].text}")
    requests = [call("worker", request=request) for request in ("left", "right")]
    boss = ScriptedModel([requests, "Both done."])
    agent = Agent("boss", model=boss, agents=[Agent("worker", model=model).as_tool()])
    reply = await agent.ainvoke("work")
    told = sorted(m.text for m in reply.messages if m.type == "tool")
    assert told == ["done: left", "done: right"]
    assert each_call_is_answered_once(reply)


async def test_agents_as_tools_run_beside_plain_tools_and_a_transfer() -> None:
    calls = [call("transfer_to_clerk"), call("worker", request="dig"), call("lookup")]
    clerk, model = worker("clerk", "I am the clerk."), ScriptedModel([calls])
    agents: list[Any] = [worker("worker").as_tool(), clerk]
    agent = Agent("boss", model=model, tools=[lookup], agents=agents)
    reply = await agent.ainvoke("work")
    assert (reply.text, reply.agent) == ("I am the clerk.", "boss/clerk")
    assert answers(reply)["worker"] == "worker is done."
    assert answers(reply)["lookup"] == "looked up"
    assert each_call_is_answered_once(reply)


async def test_the_structured_answer_of_an_agent_as_a_tool_comes_back() -> None:
    agents = [worker("worker", call("Price", amount=3), response_format=Price).as_tool()]
    boss = ScriptedModel([call("worker", request="price?"), "It costs 3."])
    reply = await Agent("boss", model=boss, agents=agents).ainvoke("price?")
    assert answers(reply) == {"worker": '{"amount":3}'}


async def test_an_agent_as_a_tool_of_a_delegate_answers_it() -> None:
    child = worker("child", "child is done.").as_tool()
    b = worker("b", call("child", request="x"), "b heard.", agents=[child])
    a = worker("a", call("transfer_to_b"), "a heard.", agents=[b], handoff="delegate")
    assert answers(await a.ainvoke("work")) == {"transfer_to_b": "b heard."}


async def test_a_failing_delegate_does_not_hide_what_others_did() -> None:
    boss = ScriptedModel([[call("transfer_to_red"), call("transfer_to_green")], "Sorry."])
    # It fails in its second step, when the other one has finished.
    red = worker("red", call("lookup"), RuntimeError("no key"), tools=[lookup])
    agent = Agent("boss", model=boss, agents=[red, worker("green")], handoff="delegate")
    with pytest.raises(Exception, match="red"):
        await agent.ainvoke("work", thread_id="1")
    reply = await agent.ainvoke("go on", thread_id="1")
    told = sorted(m.text for m in await agent.ahistory("1") if isinstance(m, ToolMessage))
    assert len(told) == 2
    assert told[0].startswith("Outcome unknown")
    assert told[1] == "green is done."
    assert reply.text == "Sorry."
