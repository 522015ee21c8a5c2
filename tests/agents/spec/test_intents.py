from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage

from agentgraph import Agent, Intent
from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError, ModelError
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    FinalStateEvent,
    RoutingEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
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


async def test_matcher_may_be_async() -> None:
    async def is_like(message: str, phrase: str) -> bool:
        await clock().sleep(0)
        return phrase in message

    intent = Intent("order", "raw", "It is on its way.", matcher=is_like)
    agent = asking(intent, model=ScriptedModel(["model answers"]))

    assert (await agent.ainvoke("where is my order?")).text == "It is on its way."
    assert (await agent.ainvoke("good morning")).text == "model answers"


@pytest.mark.parametrize("is_async", [False, True])
async def test_matcher_that_raises_counts_as_no_match_and_is_told(is_async: bool) -> None:
    def fails(message: str, phrase: str) -> bool:
        raise ValueError("the secret is 42")

    async def fails_later(message: str, phrase: str) -> bool:
        return fails(message, phrase)

    broken = Intent("broken phrase", "raw", "never", matcher=fails_later if is_async else fails)

    events = [e async for e in asking(broken, RAW).astream("good morning")]

    errors = [e for e in events if isinstance(e, ErrorEvent)]
    assert [e.code for e in errors] == ["intent_failed"]
    assert "'broken phrase'" in errors[0].message
    assert "ValueError" in errors[0].message
    assert "secret" not in errors[0].message
    assert [e.text for e in events if isinstance(e, FinalStateEvent)] == ["Good morning to you."]


def deep(*intents: Intent, **below: Any) -> Agent:
    """Return an agent with a sub-agent at the second and one at the third level."""
    leaf = Agent("Leaf", model=ScriptedModel(["leaf answers", "leaf again"]), **below)
    mid = Agent("Mid", model=ScriptedModel(["mid answers"]), agents=[leaf])
    other = Agent("Other", model=ScriptedModel(["other answers"]))
    root = ScriptedModel(["root answers", "root again"])
    return Agent(
        "Root", model=root, agents=[mid, other], intents=intents, tools=[opening_hours, refund]
    )


@pytest.mark.parametrize("target", ["Leaf", "leaf", "Mid/Leaf", "root/mid/leaf"])
async def test_agent_intent_reaches_any_depth_by_name_or_path(target: str) -> None:
    agent = deep(Intent("deeper", "agent", target))

    first = await agent.ainvoke("deeper", thread_id="t")
    second = await agent.ainvoke("and now?", thread_id="t")

    assert [(r.text, r.agent) for r in (first, second)] == [
        ("leaf answers", "Root/Mid/Leaf"),
        ("leaf again", "Root/Mid/Leaf"),
    ]


async def test_agent_intent_of_the_root_holds_while_a_sub_agent_is_active() -> None:
    agent = deep(Intent("talk to a human", "agent", "Other"), Intent("front", "agent", "Root"))

    await agent.ainvoke("@Leaf hi", thread_id="t")
    moved = await agent.ainvoke("Talk to a human!", thread_id="t")
    await agent.ainvoke("@Leaf hi", thread_id="t")
    back = await agent.ainvoke("front", thread_id="t")

    assert (moved.text, moved.agent) == ("other answers", "Root/Other")
    assert (back.text, back.agent) == ("root answers", "Root")


async def test_raw_intent_of_the_root_leaves_the_conversation_where_it_is() -> None:
    agent = deep(RAW)

    await agent.ainvoke("@Leaf hi", thread_id="t")
    reply = await agent.ainvoke("good morning", thread_id="t")
    after = await agent.ainvoke("and now?", thread_id="t")

    assert reply.text == "Good morning to you."
    assert (after.text, after.agent) == ("leaf again", "Root/Mid/Leaf")


async def test_tool_intent_of_the_root_is_answered_by_the_root_which_keeps_it() -> None:
    agent = deep(TO_TOOL)

    await agent.ainvoke("@Leaf hi", thread_id="t")
    reply = await agent.ainvoke("When are you open?", thread_id="t")
    after = await agent.ainvoke("thanks", thread_id="t")

    assert [(r.text, r.agent) for r in (reply, after)] == [
        ("root answers", "Root"),
        ("root again", "Root"),
    ]


async def test_intent_of_an_agent_in_the_middle_holds_for_those_below_it() -> None:
    leaf = Agent("Leaf", model=ScriptedModel(["leaf answers"]))
    mid_model = ScriptedModel(["From 9 to 5."])
    mid = Agent("Mid", model=mid_model, agents=[leaf], tools=[opening_hours], intents=[TO_TOOL])
    agent = Agent("Root", model=ScriptedModel([]), agents=[mid])

    await agent.ainvoke("@Leaf hi", thread_id="t")
    reply = await agent.ainvoke("when are you open", thread_id="t")

    assert (reply.text, reply.agent) == ("From 9 to 5.", "Root/Mid")


@pytest.mark.parametrize("text", ["@Leaf good morning", "@mid/leaf, good morning"])
async def test_intent_does_not_hold_for_a_message_that_mentions_an_agent_below(text: str) -> None:
    below = Intent("good morning", "raw", "Morning from below.")

    assert (await deep(RAW).ainvoke(text)).text == "leaf answers"
    assert (await deep(RAW, intents=[below]).ainvoke(text)).text == "Morning from below."


@pytest.mark.parametrize("text", ["@Root good morning", "@supervisor: good morning"])
async def test_intent_of_an_agent_holds_for_a_message_that_mentions_it(text: str) -> None:
    agent = deep(RAW)

    await agent.ainvoke("@Leaf hi", thread_id="t")
    reply = await agent.ainvoke(text, thread_id="t")

    assert (reply.text, reply.agent) == ("Good morning to you.", "Root")


async def test_intent_does_not_hold_for_a_message_with_an_unknown_mention() -> None:
    assert (await deep(RAW).ainvoke("@nobody good morning")).text == "root answers"


async def test_matcher_is_asked_once_for_a_message() -> None:
    seen: list[str] = []

    def matches(message: str, phrase: str) -> bool:
        seen.append(phrase)
        return False

    agent = deep(
        Intent("one", "raw", "", matcher=matches),
        intents=[Intent("two", "raw", "", matcher=matches)],
    )

    await agent.ainvoke("@Leaf hi", thread_id="t")
    seen.clear()
    await agent.ainvoke("and now?", thread_id="t")

    assert seen == ["one", "two"]


async def test_first_intent_that_matches_is_followed() -> None:
    second = Intent("good morning", "raw", "never said")

    reply = await asking(RAW, second).ainvoke("good morning")

    assert reply.text == "Good morning to you."


async def test_intent_is_read_from_content_blocks() -> None:
    message = HumanMessage([{"type": "text", "text": "Good morning!"}])

    reply = await asking(RAW).ainvoke(message)

    assert reply.text == "Good morning to you."


async def test_intent_of_the_active_agent_replaces_one_above_with_the_same_phrase() -> None:
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


TO_REFUND = Intent("refund me", "tool", "refund")


async def test_tool_that_needs_arguments_is_called_by_the_model_which_is_made_to() -> None:
    model = ScriptedModel([call("refund", reason="twice"), "Done.", "You are welcome."])
    agent = Agent("Root", model=model, tools=[refund], intents=[TO_REFUND])

    reply = await agent.ainvoke("Refund me!", thread_id="t")
    await agent.ainvoke("thanks", thread_id="t")

    assert (reply.text, reply.messages[-2].text) == ("Done.", "refunded twice 0")
    assert [request.tool_choice for request in model.requests] == ["refund", None, None]
    assert len({request.system for request in model.requests}) == 1


async def test_model_is_made_to_call_the_tool_inside_of_middleware_too() -> None:
    class Nothing(AgentMiddleware[Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    model = ScriptedModel([call("refund", reason="twice"), "Done."])
    agent = Agent("Root", model=model, tools=[refund], intents=[TO_REFUND], middleware=[Nothing()])

    await agent.ainvoke("refund me")

    assert [request.tool_choice for request in model.requests] == ["refund", None]


async def test_model_that_cannot_be_made_to_call_a_tool_gets_a_hint_once() -> None:
    class Unforced(ScriptedModel):
        def __init__(self, turns: Sequence[Any]) -> None:
            super().__init__(turns)

        def bind_tools(self, tools: Sequence[Any], **options: Any) -> ScriptedModel:
            if options:
                raise TypeError(f"unexpected arguments {options}")
            return super().bind_tools(tools)

    model = Unforced([call("refund", reason="twice"), "Done."])
    agent = Agent("Root", model=model, tools=[refund], intents=[TO_REFUND])

    reply = await agent.ainvoke("refund me")

    assert reply.text == "Done."
    assert "`refund`" in model.requests[0].system
    assert "`refund`" not in model.requests[1].system


async def test_intent_may_ask_an_agent_that_answers_like_a_tool() -> None:
    model = ScriptedModel([call("Clerk", request="the order"), "It is there."])
    clerk = Agent("Clerk", model=ScriptedModel(["found"])).as_tool()
    intent = Intent("where is it", "tool", "Clerk")

    reply = await Agent("Root", model=model, agents=[clerk], intents=[intent]).ainvoke(
        "Where is it?"
    )

    assert reply.text == "It is there."
    assert [request.tool_choice for request in model.requests] == ["Clerk", None]


async def test_forced_tool_of_a_turn_that_failed_is_not_forced_in_the_next() -> None:
    model = ScriptedModel([ValueError("down"), "Hello."])
    agent = Agent("Root", model=model, tools=[refund], intents=[TO_REFUND], guards=None)

    with pytest.raises(ModelError):
        await agent.ainvoke("refund me", thread_id="t")
    await agent.ainvoke("hello", thread_id="t")

    assert [request.tool_choice for request in model.requests] == ["refund", None]


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
