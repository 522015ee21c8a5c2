from __future__ import annotations

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from agentgraph import Agent, Handoff, Reply
from agentgraph.stream import AIMessageEvent, FinalStateEvent
from agentgraph.testing import ScriptedModel, bad_call, call


@tool(return_direct=True)
def price(item: str) -> str:
    """Tell a price."""
    if item == "moon":
        raise ValueError("not for sale")
    return f"{item} costs 3"


@tool
def refund(reason: str) -> str:
    """Refund a customer."""
    return f"refunded: {reason}"


def each_call_is_answered_once(reply: Reply) -> bool:
    spoken = [m for m in reply.messages if isinstance(m, AIMessage)]
    called = [one["id"] for m in spoken for one in [*m.tool_calls, *m.invalid_tool_calls]]
    answered = [m.tool_call_id for m in reply.messages if isinstance(m, ToolMessage)]
    return sorted(map(str, called)) == sorted(answered)


async def test_a_direct_result_is_the_answer_and_the_model_is_not_asked_again() -> None:
    model = ScriptedModel([call("price", item="tea")])
    reply = await Agent("shop", model=model, tools=[price]).ainvoke("tea?")
    assert reply.text == "tea costs 3"
    assert reply.messages[-1].type == "ai"
    assert len(model.requests) == 1


async def test_a_direct_answer_is_history_in_the_next_turn() -> None:
    model = ScriptedModel([call("price", item="tea"), "It is cheap."])
    agent = Agent("shop", model=model, tools=[price])
    await agent.ainvoke("tea?", thread_id="1")
    assert (await agent.ainvoke("cheap?", thread_id="1")).text == "It is cheap."
    assert "tea costs 3" in [str(m.text) for m in model.requests[1].messages if m.type == "ai"]


async def test_a_direct_answer_is_told_once() -> None:
    model = ScriptedModel([call("price", item="tea")])
    agent = Agent("shop", model=model, tools=[price])
    events = [event async for event in agent.astream("tea?")]
    assert [e.text for e in events if isinstance(e, AIMessageEvent)] == ["tea costs 3"]
    assert [e.text for e in events if isinstance(e, FinalStateEvent)] == ["tea costs 3"]


async def test_two_direct_results_are_both_in_the_answer() -> None:
    model = ScriptedModel([[call("price", item="tea"), call("price", item="milk")]])
    reply = await Agent("shop", model=model, tools=[price]).ainvoke("both?")
    assert reply.text == "tea costs 3\n\nmilk costs 3"
    assert len(model.requests) == 1


async def test_an_ordinary_tool_beside_a_direct_one_returns_to_the_model() -> None:
    model = ScriptedModel([[call("price", item="tea"), call("refund", reason="a")], "Both done."])
    reply = await Agent("shop", model=model, tools=[price, refund]).ainvoke("go")
    assert reply.text == "Both done."
    assert each_call_is_answered_once(reply)


async def test_a_failed_direct_tool_returns_to_the_model() -> None:
    model = ScriptedModel([call("price", item="moon"), "It is not for sale."])
    reply = await Agent("shop", model=model, tools=[price]).ainvoke("the moon?")
    assert reply.text == "It is not for sale."


async def test_one_failed_direct_tool_of_two_returns_to_the_model() -> None:
    model = ScriptedModel([[call("price", item="tea"), call("price", item="moon")], "Only tea."])
    reply = await Agent("shop", model=model, tools=[price]).ainvoke("both?")
    assert reply.text == "Only tea."
    assert each_call_is_answered_once(reply)


async def test_a_malformed_call_beside_a_direct_one_returns_to_the_model() -> None:
    model = ScriptedModel([[call("price", item="tea"), bad_call("price")], "Only tea."])
    reply = await Agent("shop", model=model, tools=[price]).ainvoke("both?")
    assert reply.text == "Only tea."
    assert each_call_is_answered_once(reply)


async def test_a_transfer_wins_over_a_direct_result() -> None:
    model = ScriptedModel([[call("price", item="tea"), call("transfer_to_clerk")]])
    clerk = ScriptedModel(["I am the clerk."])
    agent = Agent("shop", model=model, tools=[price], agents=[Agent("clerk", model=clerk)])
    reply = await agent.ainvoke("tea, and the clerk")
    assert (reply.text, reply.agent) == ("I am the clerk.", "shop/clerk")
    assert "tea costs 3" in [m.text for m in clerk.requests[0].messages]
    assert each_call_is_answered_once(reply)


async def test_a_handoff_wins_over_the_direct_tool_that_returns_it() -> None:
    @tool(return_direct=True)
    def escalate() -> Handoff:
        """Pass it on."""
        return Handoff("clerk")

    model = ScriptedModel([[call("escalate"), call("price", item="tea")]])
    clerk = Agent("clerk", model=ScriptedModel(["I am the clerk."]))
    agent = Agent("shop", model=model, tools=[escalate, price], agents=[clerk])
    reply = await agent.ainvoke("go")
    assert (reply.text, reply.agent) == ("I am the clerk.", "shop/clerk")
    assert each_call_is_answered_once(reply)


async def test_a_direct_tool_of_a_sub_agent_ends_the_turn() -> None:
    clerk = Agent("clerk", model=ScriptedModel([call("price", item="tea")]), tools=[price])
    model = ScriptedModel([call("transfer_to_clerk")])
    reply = await Agent("shop", model=model, agents=[clerk]).ainvoke("tea?")
    assert (reply.text, reply.agent) == ("tea costs 3", "shop/clerk")
