"""Agents on `ChatOpenAI`, over TCP: how many requests a provider in trouble is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from llmock.scenarios import Plan

from agentgraph.errors import ModelError
from agentgraph.guards import CircuitBreaker
from agentgraph.stream import TokenEvent
from tests.guards.guarded_agents import Hurried, answers, decided, is_legal, solo, streamed, watched
from tests.wire import (
    Wire,
    call,
    chat_openai,
    disconnected,
    fail,
    rate_limit,
    serve,
    stalled,
    text,
)

WORDS = "one two three four five six"


@pytest.fixture
def wire() -> Iterator[Wire]:
    with serve() as served:
        yield served


@pytest.fixture
def other() -> Iterator[Wire]:
    with serve() as served:
        yield served


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


def sent(wire: Wire) -> int:
    return len(wire.requests)


def down(wire: Wire) -> None:
    wire.script(*[fail(500)] * 600)


async def test_a_correction_is_sent_in_the_one_system_message(wire: Wire) -> None:
    wire.script(*[call("look", what="it")] * 3, text("I give up."))
    agent = solo(chat_openai(wire), system_prompt="Find it.")
    reply = await agent.ainvoke("go")
    roles = [message["role"] for message in wire.requests[-1]["messages"]]
    head = wire.requests[-1]["messages"][0]["content"]
    assert (reply.text, roles.count("system"), roles[0]) == ("I give up.", 1, "system")
    assert head.startswith("Find it.")
    assert "`look` was called 3 times with the same arguments and result" in head


async def test_a_stopped_loop_leaves_a_history_that_the_provider_takes(wire: Wire) -> None:
    wire.script(*[call("look", what="it")] * 7, text("Here again."))
    agent = solo(chat_openai(wire))
    assert (await agent.ainvoke("go", thread_id="t")).close_reason == "loop_detector"
    assert (await agent.ainvoke("and now?", thread_id="t")).text == "Here again."
    messages = wire.requests[-1]["messages"]
    ids = [made["id"] for message in messages for made in message.get("tool_calls") or ()]
    assert ids == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(ids)) == 7


@pytest.mark.parametrize(
    "fault",
    [fail(500), fail(503), rate_limit(0), disconnected(text(WORDS))],
    ids=["500", "503", "429", "disconnected"],
)
async def test_a_fault_that_passes_is_tried_again(wire: Wire, clock: Hurried, fault: Plan) -> None:
    wire.script(fault, text(WORDS))
    reply = await solo(chat_openai(wire, streaming=True)).ainvoke("hello")
    assert (reply.text, sent(wire)) == (WORDS, 2)
    assert len(clock.slept) == 1


async def test_retry_after_is_honoured(wire: Wire, clock: Hurried) -> None:
    wire.script(rate_limit(7), text("Here I am."))
    assert (await solo(chat_openai(wire)).ainvoke("hello")).text == "Here I am."
    assert clock.slept == [7.0]


class Heard(AsyncCallbackHandler):
    """Says when a model has begun to speak."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.begun.set()


async def test_a_stalled_answer_is_cut_off_at_the_step_s_deadline(
    wire: Wire, clock: Hurried
) -> None:
    wire.script(stalled(text(WORDS), seconds=20), text("Here I am."))
    heard = Heard()
    agent = solo(chat_openai(wire, streaming=True, callbacks=[heard]))
    running = asyncio.ensure_future(agent.ainvoke("hello"))
    await heard.begun.wait()
    clock.advance(60)
    assert (await running).text == "Here I am."


@pytest.mark.parametrize("fault", [disconnected, stalled], ids=["disconnected", "stalled"])
async def test_a_stream_that_was_heard_is_not_asked_for_again(
    wire: Wire, clock: Hurried, fault: Any
) -> None:
    wire.script(fault(text(WORDS), after_chunks=4), text("never"))
    told: list[str] = []
    with pytest.raises(ModelError):
        async for event in solo(chat_openai(wire)).astream("hello"):
            told += [event.text] if isinstance(event, TokenEvent) else []
            if told and fault is stalled:
                clock.advance(60)
    assert "".join(told)
    assert WORDS.startswith("".join(told))
    assert wire.left == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refused_request_is_neither_tried_again_nor_counted(
    wire: Wire, clock: Hurried, status: int
) -> None:
    wire.script(*[fail(status)] * 12, text("Here I am."))
    agent = solo(chat_openai(wire))
    for _ in range(12):
        with pytest.raises(ModelError) as failed:
            await agent.ainvoke("hello")
        assert isinstance(failed.value.__cause__, openai.APIStatusError)
    assert (await agent.ainvoke("hello")).text == "Here I am."
    assert (sent(wire), clock.slept) == (13, [])


async def test_while_the_breaker_is_open_a_cheaper_model_answers_alone(
    wire: Wire, other: Wire, clock: Hurried
) -> None:
    down(wire)
    other.script(*[text("The cheap one.")] * 40)
    cheap = chat_openai(other, model="gpt-4o-mini")
    agent = solo(chat_openai(wire), guards=watched(breaker=CircuitBreaker(fallback=cheap)))
    for _ in range(2):
        assert (await agent.ainvoke("hello")).text == "The cheap one."
    assert sent(wire) == 5
    replies = await asyncio.gather(*(agent.ainvoke("hello") for _ in range(20)))
    assert {reply.text for reply in replies} == {"The cheap one."}
    assert (sent(wire), sent(other)) == (5, 22)
    assert {request["model"] for request in other.requests} == {"gpt-4o-mini"}


async def test_after_the_cooldown_one_probe_reaches_the_provider(
    wire: Wire, other: Wire, clock: Hurried
) -> None:
    wire.script(*[fail(500)] * 5, fail(500), text("Back."), text("Back again."))
    other.script(*[text("The cheap one.")] * 60)
    cheap = chat_openai(other, model="gpt-4o-mini")
    agent = solo(chat_openai(wire), guards=watched(breaker=CircuitBreaker(fallback=cheap)))
    for _ in range(2):
        await agent.ainvoke("hello")
    clock.advance(30)
    await asyncio.gather(*(agent.ainvoke("hello") for _ in range(20)))
    assert sent(wire) == 6
    clock.advance(60)
    said = [(await agent.ainvoke("hello")).text for _ in range(2)]
    assert (said, sent(wire)) == (["Back.", "Back again."], 8)


async def test_the_same_model_elsewhere_may_stand_in(
    wire: Wire, other: Wire, clock: Hurried
) -> None:
    """What fails at one endpoint says nothing of the same model at another."""
    down(wire)
    other.script(*[text("From elsewhere.")] * 5)
    guards = watched(breaker=CircuitBreaker(fallback=chat_openai(other)))
    agent = solo(chat_openai(wire), guards=guards)
    said = {(await agent.ainvoke("hello")).text for _ in range(5)}
    assert (said, sent(wire), sent(other)) == ({"From elsewhere."}, 5, 5)


async def test_a_fallback_goes_on_with_the_tools_and_the_history(
    wire: Wire, other: Wire, clock: Hurried
) -> None:
    wire.script(call("look", what="it"), *[fail(500)] * 3)
    other.script(text("It is nothing."))
    cheap = chat_openai(other, model="gpt-4o-mini")
    agent = solo(chat_openai(wire), guards=watched(breaker=CircuitBreaker(fallback=cheap)))
    events = await streamed(agent)
    assert decided(events)[-1] == ("a", "retry", "fallback")
    (request,) = other.requests
    assert [m["role"] for m in request["messages"]][-3:] == ["user", "assistant", "tool"]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["look"]
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert answers(history) == ["nothing of it"]
