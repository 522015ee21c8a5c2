from __future__ import annotations

import re

import pytest
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage

from agentgraph import Agent, Intent
from agentgraph.errors import ConfigurationError
from agentgraph.stream import AIMessageEvent, RoutingEvent, ToolResponseEvent, ToolUsageEvent
from agentgraph.testing import ScriptedModel, call


def opening_hours() -> str:
    """Tell when the shop is open."""
    return "9 to 5"


def refund(reason: str, amount: int = 0) -> str:
    """Refund."""
    return f"refunded {reason} {amount}"


def asking(*intents: Intent, model: ScriptedModel | None = None) -> Agent:
    return Agent(
        "Root",
        model=model or ScriptedModel([]),
        intents=intents,
        tools=[opening_hours],
        agents=[Agent("Sub", model=ScriptedModel(["sub answers", "sub again"]))],
    )


RAW = Intent("good morning", "raw", "Good morning to you.")
TO_SUB = Intent("I want my money back", "agent", "Sub")
TO_TOOL = Intent("when are you open", "tool", "opening_hours")


@pytest.mark.parametrize("text", ["good morning", "Good Morning!", "  good,   MORNING ... "])
async def test_raw_intent_answers_without_a_model(text: str) -> None:
    model = ScriptedModel([])

    reply = await asking(RAW, model=model).ainvoke(text)

    assert (reply.text, reply.agent) == ("Good morning to you.", "Root")
    assert model.requests == []


@pytest.mark.parametrize("text", ["good morning all", "morning good", "good", "👍"])
async def test_another_phrase_goes_to_the_model(text: str) -> None:
    reply = await asking(RAW, model=ScriptedModel(["model answers"])).ainvoke(text)

    assert reply.text == "model answers"


async def test_agent_intent_enters_the_sub_agent_which_keeps_the_conversation() -> None:
    agent = asking(TO_SUB)

    first = await agent.ainvoke("i want my money back!", thread_id="t")
    second = await agent.ainvoke("today", thread_id="t")

    assert [(r.text, r.agent) for r in (first, second)] == [
        ("sub answers", "Root/Sub"),
        ("sub again", "Root/Sub"),
    ]


async def test_agent_intent_is_told_as_a_transfer() -> None:
    events = [e async for e in asking(TO_SUB).astream("I want my money back")]

    routed = [(e.kind, e.source, e.target) for e in events if isinstance(e, RoutingEvent)]
    assert routed == [("transfer", "Root", "Sub")]


async def test_tool_intent_calls_the_tool_and_the_model_puts_it_into_words() -> None:
    model = ScriptedModel(["From 9 to 5."])

    reply = await asking(TO_TOOL, model=model).ainvoke("When are you open?")

    assert reply.text == "From 9 to 5."
    asked, answered = model.requests[0].messages[-2:]
    assert isinstance(asked, AIMessage)
    assert [c["name"] for c in asked.tool_calls] == ["opening_hours"]
    assert answered.text == "9 to 5"


async def test_tool_intent_is_told_like_any_tool_call() -> None:
    agent = asking(TO_TOOL, model=ScriptedModel(["From 9 to 5."]))

    events = [e async for e in agent.astream("When are you open?")]

    told = [e for e in events if isinstance(e, ToolUsageEvent | ToolResponseEvent)]
    assert [(type(e), e.tool) for e in told] == [
        (ToolUsageEvent, "opening_hours"),
        (ToolResponseEvent, "opening_hours"),
    ]
    assert told[0].call_id == told[1].call_id != ""


async def test_raw_intent_is_told_once_as_a_message() -> None:
    events = [e async for e in asking(RAW).astream("good morning")]

    texts = [e.text for e in events if isinstance(e, AIMessageEvent)]
    assert texts == ["Good morning to you."]


async def test_raw_answer_is_part_of_the_history() -> None:
    model = ScriptedModel(["model answers"])
    agent = asking(RAW, model=model)

    await agent.ainvoke("good morning", thread_id="t")
    await agent.ainvoke("and now?", thread_id="t")

    texts = [m.text for m in model.requests[0].messages[1:]]
    assert texts == ["good morning", "Good morning to you.", "and now?"]


async def test_own_matcher_replaces_the_comparison_of_words() -> None:
    seen: list[tuple[str, str]] = []

    def matches(message: str, phrase: str) -> bool:
        seen.append((message, phrase))
        return re.search(phrase, message) is not None

    intent = Intent(r"order \d+", "raw", "It is on its way.", matcher=matches)

    reply = await asking(intent).ainvoke("where is order 17?")

    assert reply.text == "It is on its way."
    assert seen == [("where is order 17?", r"order \d+")]


async def test_first_intent_that_matches_is_followed() -> None:
    second = Intent("good morning", "raw", "never said")

    reply = await asking(RAW, second).ainvoke("good morning")

    assert reply.text == "Good morning to you."


async def test_intent_is_read_from_content_blocks() -> None:
    message = HumanMessage([{"type": "text", "text": "Good morning!"}])

    reply = await asking(RAW).ainvoke(message)

    assert reply.text == "Good morning to you."


async def test_intents_of_the_active_agent_hold_and_not_those_above() -> None:
    own = Intent("good morning", "raw", "Morning from below.")
    sub = Agent("Sub", model=ScriptedModel(["sub answers"]), intents=[own])
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub], intents=[RAW])

    await agent.ainvoke("@Sub hi", thread_id="t")
    reply = await agent.ainvoke("good morning", thread_id="t")

    assert (reply.text, reply.agent) == ("Morning from below.", "Root/Sub")


async def test_intent_already_answered_is_not_followed_again_after_a_help_request() -> None:
    sub = Agent("Sub", model=ScriptedModel([call("request_help")]))
    model = ScriptedModel(["root helps"])
    agent = Agent("Root", model=model, agents=[sub], intents=[TO_SUB])

    reply = await agent.ainvoke("I want my money back")

    assert (reply.text, reply.agent) == ("root helps", "Root")


def test_intent_of_a_tool_that_needs_arguments_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs arguments that only a model fills"):
        Agent(
            "Root",
            model=ScriptedModel([]),
            tools=[refund],
            intents=[Intent("refund me", "tool", "refund")],
        )


async def test_arguments_with_defaults_and_injected_ones_need_no_model() -> None:
    def hours(runtime: ToolRuntime, day: str = "Monday") -> str:
        """Tell when the shop is open on a day."""
        return f"{day}: 9 to 5"

    model = ScriptedModel(["From 9 to 5."])
    intent = Intent("hours", "tool", "hours")

    await Agent("Root", model=model, tools=[hours], intents=[intent]).ainvoke("hours")

    assert model.requests[0].messages[-1].text == "Monday: 9 to 5"


async def test_intent_may_call_a_default_tool() -> None:
    model = ScriptedModel(["These are my tools."])
    agent = asking(Intent("list tools", "tool", "list_tools_available"), model=model)

    await agent.ainvoke("List tools.")

    assert "`opening_hours`" in model.requests[0].messages[-1].text


def test_every_wrong_intent_is_named() -> None:
    wrong = [
        Intent("one", "agent", "Nobody"),
        Intent("two", "tool", "nothing"),
        Intent("three", "song", "la"),  # type: ignore[arg-type]  # what the test is about
    ]

    with pytest.raises(ConfigurationError) as caught:
        asking(*wrong)

    assert [fault.split("'")[1] for fault in caught.value.faults] == ["one", "two", "three"]
