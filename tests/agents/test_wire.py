"""Agents on `ChatOpenAI`, over TCP, against a server that speaks the OpenAI API and its faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from llmock.scenarios import Fail, Plan
from pydantic import BaseModel

from agentgraph import Agent, Guards
from agentgraph.errors import ModelError
from agentgraph.guards import Backoff
from agentgraph.stream import ErrorEvent, TokenEvent, ToolUsageEvent
from agentgraph.testing import FakeClock
from tests.wire import (
    Wire,
    call,
    chat_openai,
    disconnected,
    fail,
    malformed,
    rate_limit,
    serve,
    stalled,
    text,
)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serve() as served:
        yield served


def refund(reason: str) -> str:
    """Refund a charge."""
    return f"refunded: {reason}"


def desk(wire: Wire, **options: object) -> Agent:
    model = chat_openai(wire, **options)
    billing = Agent("billing", "Answers billing questions", model=model, tools=[refund])
    return Agent("support", "Front desk", model=model, agents=[billing])


async def test_streamed_chunks_become_a_transfer_a_tool_turn_and_tokens(wire: Wire) -> None:
    wire.script(
        call("transfer_to_billing", reason="money"),
        call("refund", reason="charged twice"),
        text("It is on its way."),
    )
    events = [event async for event in desk(wire).astream("I was charged twice")]

    usages = [event for event in events if isinstance(event, ToolUsageEvent)]
    tokens = "".join(event.text for event in events if isinstance(event, TokenEvent))
    assert [(usage.tool, dict(usage.args)) for usage in usages] == [
        ("refund", {"reason": "charged twice"})
    ]
    assert tokens == "It is on its way."
    assert events[-1].agent == "support/billing"
    assert wire.left == 0


async def test_the_provider_is_sent_a_legal_history_with_names(wire: Wire) -> None:
    wire.script(call("transfer_to_billing"), call("refund", reason="r"), text("Done."))
    await desk(wire).ainvoke("I was charged twice")

    sent = wire.requests[-1]["messages"]

    assert [message["role"] for message in sent] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    ids = [made["id"] for message in sent for made in message.get("tool_calls", ())]
    assert ids == [m["tool_call_id"] for m in sent if m["role"] == "tool"]
    assert [m.get("name") for m in sent if m["role"] == "assistant"] == ["support", "billing"]


async def test_malformed_arguments_are_answered_and_tried_again(wire: Wire) -> None:
    wire.script(malformed("refund"), call("refund", reason="r"), text("Done."))
    agent = Agent("billing", model=chat_openai(wire), tools=[refund])

    reply = await agent.ainvoke("refund me")

    answers = [m for m in reply.messages if isinstance(m, ToolMessage)]
    assert [answer.status for answer in answers] == ["error", "success"]
    assert reply.text == "Done."


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_malformed_arguments_are_whole_in_every_later_request(
    wire: Wire, is_streamed: bool, is_guarded: bool
) -> None:
    wire.script(malformed("refund"), call("refund", reason="r"), text("Done."), text("Yes."))
    model = chat_openai(wire, streaming=is_streamed)
    guards = Guards.interactive() if is_guarded else None
    agent = Agent("billing", model=model, tools=[refund], guards=guards)

    await agent.ainvoke("refund me", thread_id="t")
    await agent.ainvoke("really?", thread_id="t")

    for body in wire.requests[1:]:
        made = [c for m in body["messages"] for c in m.get("tool_calls") or ()]
        assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in made)
        answered = [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
        assert answered == [c["id"] for c in made]
    stored = [m for m in await agent.ahistory("t") if isinstance(m, AIMessage)]
    assert str(stored[0].invalid_tool_calls[0]["args"]).startswith("[")


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (rate_limit(), openai.RateLimitError),
        (fail(500), openai.InternalServerError),
        (stalled(text("one two three four five six")), Exception),
        (disconnected(text("one two three four five six")), Exception),
    ],
    ids=["429", "500", "stalled", "disconnected"],
)
async def test_a_fault_is_a_model_error_and_the_next_turn_goes_on(
    wire: Wire, fault: object, cause: type[Exception]
) -> None:
    wire.script(call("refund", reason="r"), fault, text("Here again."))  # type: ignore[arg-type]
    guards = Guards.interactive(retry=None)
    agent = Agent("billing", model=chat_openai(wire, timeout=3), tools=[refund], guards=guards)
    seen: list[object] = []

    with pytest.raises(ModelError) as failed:
        async for event in agent.astream("refund me", thread_id="t"):
            seen.append(event)  # noqa: PERF401  # a comprehension would lose them in the raise
    reply = await agent.ainvoke("and now?", thread_id="t")

    assert isinstance(failed.value.__cause__, cause)
    assert [event.code for event in seen if isinstance(event, ErrorEvent)] == ["model"]
    assert reply.text == "Here again."
    history = await agent.ahistory("t")
    assert [m.text for m in history if isinstance(m, ToolMessage)] == ["refunded: r"]
    assert [m.text for m in history if isinstance(m, AIMessage) and m.text] == ["Here again."]


async def test_a_rate_limit_is_waited_out_as_long_as_the_provider_asks(wire: Wire) -> None:
    wire.script(rate_limit(7), text("Here."))
    agent = Agent("a", model=chat_openai(wire))

    with FakeClock().installed() as clock:
        asking = asyncio.create_task(agent.ainvoke("hello"))
        await clock.asleep()
        clock.advance(6.9)
        assert clock.sleepers == 1
        clock.advance(0.1)
        reply = await asking

    assert (reply.text, wire.left) == ("Here.", 0)


async def test_a_model_error_says_the_provider_s_error_in_words(wire: Wire) -> None:
    wire.script(*[fail(500)] * 3)
    at_once = Guards.interactive(backoff=Backoff(base_s=0))

    with pytest.raises(ModelError) as failed:
        await Agent("a", model=chat_openai(wire), guards=at_once).ainvoke("hello")

    assert str(failed.value).startswith("the model of agent 'a' failed: OpenAIAPIError 500: ")


async def test_a_model_error_says_no_key_that_the_provider_repeats(wire: Wire) -> None:
    refused = Plan(fail=Fail(401, message="Incorrect API key provided: wire-secret."))
    wire.script(refused)
    model = chat_openai(wire, api_key="wire-secret")

    with pytest.raises(ModelError) as failed:
        await Agent("a", model=model).ainvoke("hello")

    assert "401: Incorrect API key provided: ***" in str(failed.value)


class Price(BaseModel):
    """A price."""

    amount: int


@pytest.mark.parametrize("strategy", [ProviderStrategy, ToolStrategy])
async def test_the_provider_is_asked_for_a_form_and_once_more(wire: Wire, strategy: Any) -> None:
    wire.script(call("refund", reason="a"), text("Three."), text('{"amount": 3}'))
    model = chat_openai(wire)
    agent = Agent("desk", model=model, tools=[refund], response_format=strategy(Price))
    reply = await agent.ainvoke("how much?")

    assert reply.output == Price(amount=3)
    assert [body["messages"][-1]["role"] for body in wire.requests] == ["user", "tool", "user"]
    for body in wire.requests:
        names = [tool["function"]["name"] for tool in body["tools"]]
        form = body.get("response_format", {}).get("json_schema", {}).get("name")
        by_tool = strategy is ToolStrategy
        assert ("Price" in names, body.get("tool_choice") == "required") == (by_tool, by_tool)
        assert form == (None if by_tool else "Price")
