from __future__ import annotations

from itertools import permutations

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from agentgraph import Agent, Reply
from agentgraph.stream import RoutingEvent
from agentgraph.testing import ScriptedModel, call


def agent_saying(name: str, *turns: str, description: str = "") -> Agent:
    return Agent(name, description, model=ScriptedModel(turns or [f"I am the {name}."]))


def refund(reason: str) -> str:
    """Refund a customer."""
    return f"refunded: {reason}"


def lookup() -> str:
    """Look something up."""
    return "looked up"


def answers(reply: Reply) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for message in reply.messages:
        if isinstance(message, ToolMessage):
            told.setdefault(message.name or "", []).append(str(message.text))
    return told


def each_call_is_answered_once(reply: Reply) -> bool:
    spoken = [m for m in reply.messages if isinstance(m, AIMessage)]
    called = [str(one["id"]) for m in spoken for one in m.tool_calls]
    answered = [m.tool_call_id for m in reply.messages if isinstance(m, ToolMessage)]
    return sorted(called) == sorted(answered)


async def test_a_transfer_lets_the_sub_agent_answer_in_the_same_turn() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    reply = await Agent("desk", model=desk, agents=[agent_saying("clerk")]).ainvoke("hello")
    assert (reply.text, reply.agent) == ("I am the clerk.", "desk/clerk")
    assert answers(reply) == {"transfer_to_clerk": ["Conversation transferred to clerk"]}


async def test_reason_and_summary_reach_the_sub_agent_in_the_answer_to_the_transfer() -> None:
    transfer = call("transfer_to_clerk", reason="billing", summary="was charged twice")
    clerk = ScriptedModel(["I see."])
    agents = [Agent("clerk", model=clerk)]
    await Agent("desk", model=ScriptedModel([transfer]), agents=agents).ainvoke("hello")
    told = clerk.requests[0].messages[-1]
    assert isinstance(told, ToolMessage)
    assert told.text == (
        "Conversation transferred to clerk\nReason: billing\nSummary: was charged twice"
    )


async def test_the_transfer_tool_carries_the_description_of_the_sub_agent() -> None:
    desk = ScriptedModel(["Hello."])
    clerk = agent_saying("clerk", description="Answers billing questions")
    await Agent("desk", model=desk, agents=[clerk]).ainvoke("hello")
    specs = [spec["function"] for spec in desk.requests[0].specs]
    (shown,) = [s for s in specs if isinstance(s, dict) and s["name"] == "transfer_to_clerk"]
    assert "Answers billing questions" in shown["description"]
    assert set(shown["parameters"]["properties"]) == {"reason", "summary"}


async def test_the_sub_agent_keeps_the_conversation_in_the_next_turn() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    clerk = ScriptedModel(["First.", "Second."])
    agent = Agent("desk", model=desk, agents=[Agent("clerk", model=clerk)])
    await agent.ainvoke("one", thread_id="1")
    reply = await agent.ainvoke("two", thread_id="1")
    assert (reply.text, reply.agent) == ("Second.", "desk/clerk")
    assert len(desk.requests) == 1
    assert [m.text for m in clerk.requests[1].messages[-2:]] == ["First.", "two"]


async def test_threads_do_not_share_who_has_the_conversation() -> None:
    desk = ScriptedModel([call("transfer_to_clerk"), "I am the desk."])
    agent = Agent("desk", model=desk, agents=[agent_saying("clerk")])
    await agent.ainvoke("one", thread_id="1")
    assert (await agent.ainvoke("two", thread_id="2")).agent == "desk"


async def test_a_transfer_two_levels_down_is_kept_in_the_next_turn() -> None:
    leaf = ScriptedModel(["First.", "Second."])
    mid = Agent(
        "mid",
        model=ScriptedModel([call("transfer_to_leaf")]),
        agents=[Agent("leaf", model=leaf)],
    )
    agent = Agent("desk", model=ScriptedModel([call("transfer_to_mid")]), agents=[mid])
    first = await agent.ainvoke("one", thread_id="1")
    second = await agent.ainvoke("two", thread_id="1")
    assert (first.text, first.agent) == ("First.", "desk/mid/leaf")
    assert (second.text, second.agent) == ("Second.", "desk/mid/leaf")
    assert each_call_is_answered_once(first)


async def test_second_transfer_of_a_message_is_answered_not_executed() -> None:
    desk = ScriptedModel([[call("transfer_to_clerk"), call("transfer_to_boss")]])
    agents = [agent_saying("boss"), agent_saying("clerk")]
    reply = await Agent("desk", model=desk, agents=agents).ainvoke("hello")
    assert (reply.text, reply.agent) == ("I am the clerk.", "desk/clerk")
    assert answers(reply) == {
        "transfer_to_clerk": ["Conversation transferred to clerk"],
        "transfer_to_boss": ["Not executed: the conversation was transferred to clerk"],
    }


async def test_the_same_transfer_twice_is_made_once() -> None:
    desk = ScriptedModel([[call("transfer_to_clerk"), call("transfer_to_clerk")]])
    reply = await Agent("desk", model=desk, agents=[agent_saying("clerk")]).ainvoke("hello")
    assert reply.agent == "desk/clerk"
    assert each_call_is_answered_once(reply)


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_tools_run_before_the_transfer_in_whatever_order_they_are_called(
    order: tuple[int, ...],
) -> None:
    calls = [call("transfer_to_clerk"), call("refund", reason="twice"), call("lookup")]
    desk, clerk = ScriptedModel([[calls[i] for i in order]]), ScriptedModel(["I see."])
    agent = Agent("desk", model=desk, tools=[refund, lookup], agents=[Agent("clerk", model=clerk)])
    reply = await agent.ainvoke("hello")
    seen = {m.text for m in clerk.requests[0].messages if isinstance(m, ToolMessage)}
    assert seen == {"Conversation transferred to clerk", "refunded: twice", "looked up"}
    assert reply.agent == "desk/clerk"
    assert each_call_is_answered_once(reply)


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_two_transfers_and_a_tool_are_each_answered_once(order: tuple[int, ...]) -> None:
    calls = [call("transfer_to_clerk"), call("transfer_to_boss"), call("lookup")]
    first = next(calls[i]["name"] for i in order if i < 2).removeprefix("transfer_to_")
    desk = ScriptedModel([[calls[i] for i in order]])
    agents = [agent_saying("boss"), agent_saying("clerk")]
    reply = await Agent("desk", model=desk, tools=[lookup], agents=agents).ainvoke("hello")
    assert reply.agent == f"desk/{first}"
    assert answers(reply)["lookup"] == ["looked up"]
    assert each_call_is_answered_once(reply)


async def test_a_failed_tool_does_not_hold_up_the_transfer_beside_it() -> None:
    desk = ScriptedModel([[call("refund"), call("transfer_to_clerk")]])
    agent = Agent("desk", model=desk, tools=[refund], agents=[agent_saying("clerk")])
    reply = await agent.ainvoke("hello")
    assert reply.agent == "desk/clerk"
    assert each_call_is_answered_once(reply)


async def test_the_text_beside_a_transfer_is_said_and_the_answer_is_the_sub_agents() -> None:
    first = AIMessage("One moment.", tool_calls=[{**call("transfer_to_clerk"), "id": "t1"}])
    agents = [agent_saying("clerk")]
    reply = await Agent("desk", model=ScriptedModel([first]), agents=agents).ainvoke("hello")
    assert [m.text for m in reply.messages if m.type == "ai"] == ["One moment.", "I am the clerk."]
    assert reply.text == "I am the clerk."


async def test_a_transfer_is_told_with_its_reason() -> None:
    desk = ScriptedModel([call("transfer_to_clerk", reason="billing")])
    agent = Agent("desk", model=desk, agents=[agent_saying("clerk")])
    (told,) = [e async for e in agent.astream("hello") if isinstance(e, RoutingEvent)]
    assert (told.kind, told.source, told.target, told.reason) == (
        "transfer",
        "desk",
        "clerk",
        "billing",
    )
