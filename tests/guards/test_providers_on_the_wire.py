"""Agents on `ChatOpenAI`, over TCP: how many requests a provider in trouble is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from llmock.scenarios import Plan

from agentgraph import Agent, Team
from agentgraph.errors import ModelError
from agentgraph.guards import CircuitBreaker, Deadlines
from agentgraph.models import resolve_model
from agentgraph.routing import sequence
from agentgraph.stream import TokenEvent
from tests.guards.working import Hurried, answers, decided, is_legal, solo, streamed, watched
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

RUNS = 50
MOST = 1.2
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


def down(wire: Wire, plan: Plan | None = None, times: int = 600) -> None:
    wire.script(*[plan or fail(500)] * times)


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
    wire.script(*[call("look", what="it")] * 4, text("Here again."))
    agent = solo(chat_openai(wire))
    assert (await agent.ainvoke("go", thread_id="t")).close_reason == "loop_detector"
    assert (await agent.ainvoke("and now?", thread_id="t")).text == "Here again."
    messages = wire.requests[-1]["messages"]
    ids = [made["id"] for message in messages for made in message.get("tool_calls") or ()]
    assert ids == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(set(ids)) == 4


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


async def test_a_stalled_answer_is_cut_off_at_the_step_s_deadline(wire: Wire) -> None:
    wire.script(stalled(text(WORDS), seconds=20), text("Here I am."))
    guards = watched(deadlines=Deadlines(0.3, 30, 60))
    async with asyncio.timeout(10):
        reply = await solo(chat_openai(wire, streaming=True), guards=guards).ainvoke("hello")
    assert reply.text == "Here I am."


@pytest.mark.parametrize("fault", [disconnected, stalled], ids=["disconnected", "stalled"])
async def test_a_stream_that_was_heard_is_not_asked_for_again(wire: Wire, fault: Any) -> None:
    wire.script(fault(text(WORDS), after_chunks=4), text("never"))
    agent = solo(chat_openai(wire), guards=watched(deadlines=Deadlines(1, 30, 60)))
    told: list[str] = []
    with pytest.raises(ModelError):
        async for event in agent.astream("hello"):
            told += [event.text] if isinstance(event, TokenEvent) else []
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


# One layer


async def failed(agent: Agent | Team, runs: int, *, at_once: bool) -> None:
    """Run an agent in an outage; whatever that comes to."""

    async def run() -> None:
        try:
            await (agent.ainvoke("hello") if isinstance(agent, Agent) else agent.arun("hello"))
        except ModelError:
            return

    if at_once:
        await asyncio.gather(*(run() for _ in range(runs)))
    else:
        for _ in range(runs):
            await run()


@pytest.mark.parametrize("retries", [None, 2, 5])
async def test_the_client_s_own_retries_do_not_multiply_the_guards_(
    wire: Wire, clock: Hurried, retries: int | None
) -> None:
    down(wire)
    await failed(solo(chat_openai(wire, max_retries=retries)), 1, at_once=False)
    assert sent(wire) == 3


async def test_a_fallback_s_own_retries_do_not_multiply_either(
    wire: Wire, other: Wire, clock: Hurried
) -> None:
    down(wire)
    down(other)
    cheap = chat_openai(other, model="gpt-4o-mini", max_retries=4)
    guards = watched(breaker=CircuitBreaker(fallback=cheap))
    await failed(solo(chat_openai(wire), guards=guards), 1, at_once=False)
    assert (sent(wire), sent(other)) == (3, 1)


async def test_where_the_guards_do_not_try_again_the_client_may(wire: Wire) -> None:
    down(wire)
    model = chat_openai(wire, max_retries=1)
    await failed(solo(model, guards=watched(retry=None)), 1, at_once=False)
    assert sent(wire) == 2
    await failed(solo(model, guards=None), 1, at_once=False)
    assert sent(wire) == 4


async def test_the_model_that_was_given_keeps_its_retries(wire: Wire, clock: Hurried) -> None:
    down(wire)
    model = chat_openai(wire, max_retries=1)
    await failed(solo(model), 1, at_once=False)
    before = sent(wire)
    with pytest.raises(openai.InternalServerError):
        await model.ainvoke("hello")
    assert (model.max_retries, sent(wire) - before) == (1, 2)


async def test_a_model_that_a_middleware_swaps_in_does_not_multiply_either(
    wire: Wire, clock: Hurried
) -> None:
    from langchain.agents.middleware import wrap_model_call

    swapped_in = chat_openai(wire, max_retries=3)

    @wrap_model_call
    async def swap(request: Any, handler: Any) -> Any:
        return await handler(request.override(model=swapped_in))

    down(wire)
    first = FakeListChatModel(responses=["never"])
    await failed(solo(first, middleware=[swap], tools=[]), 1, at_once=False)
    assert sent(wire) == 3


def test_a_model_that_is_named_leaves_it_to_the_guards_to_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    model = resolve_model("openai:gpt-4o")
    assert isinstance(model, ChatOpenAI)
    assert (model.max_retries, model.root_async_client.max_retries) == (0, 0)


def test_a_client_that_cannot_be_kept_from_it_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(FakeListChatModel):
        max_retries: int = 6

    with caplog.at_level(logging.WARNING, "agentgraph"):
        for _ in range(2):
            assert solo(Stubborn(responses=["hello"])).invoke("hello").text == "hello"
    told = [record.message for record in caplog.records]
    assert told == [
        "Stubborn tries again by itself, up to 6 times for each of the guards' attempts: "
        "give it max_retries=0, or Guards(retry=None)"
    ]


# An outage

FAULTS: Sequence[Plan] = (fail(500), fail(503), rate_limit(1))


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize("breaker", [True, False], ids=["breaker", "budget alone"])
async def test_an_outage_is_met_with_at_most_a_fifth_more_requests(
    wire: Wire, clock: Hurried, at_once: bool, breaker: bool
) -> None:
    down(wire)
    guards = watched() if breaker else watched(breaker=None)
    by_default = chat_openai(wire, max_retries=None)  # its client would try three times
    await failed(solo(by_default, guards=guards), RUNS, at_once=at_once)
    assert sent(wire) / RUNS <= MOST


@pytest.mark.parametrize("tier", ["interactive", "batch", "regulated"])
async def test_it_is_so_in_every_tier(wire: Wire, clock: Hurried, tier: str) -> None:
    wire.script(*[FAULTS[n % len(FAULTS)] for n in range(600)])
    guards = watched(tier=tier, breaker=None)
    await failed(solo(chat_openai(wire), guards=guards), RUNS, at_once=False)
    assert sent(wire) / RUNS <= MOST


async def test_agents_that_share_a_policy_share_its_budget_for_retries(
    wire: Wire, clock: Hurried
) -> None:
    down(wire)
    guards = watched(breaker=None)
    agents = [solo(chat_openai(wire), name=f"a{n}", guards=guards) for n in range(RUNS)]
    await asyncio.gather(*(failed(agent, 1, at_once=False) for agent in agents))
    assert sent(wire) / RUNS <= MOST


async def test_a_fallback_in_an_outage_is_not_asked_more_often_than_there_are_runs(
    wire: Wire, other: Wire, clock: Hurried
) -> None:
    down(wire)
    other.script(*[text("The cheap one.")] * RUNS)
    cheap = chat_openai(other, model="gpt-4o-mini")
    guards = watched(breaker=CircuitBreaker(fallback=cheap))
    await failed(solo(chat_openai(wire), guards=guards), RUNS, at_once=True)
    assert (sent(wire) / RUNS <= MOST, sent(other)) == (True, RUNS)


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
async def test_teams_in_an_outage_stay_within_it_too(wire: Wire, at_once: bool) -> None:
    down(wire)
    team = Team([solo(chat_openai(wire))], sequence(["a"]), guards=watched())
    await failed(team, RUNS, at_once=at_once)
    assert sent(wire) / RUNS <= MOST


async def test_a_static_answer_costs_nothing_in_an_outage(wire: Wire, clock: Hurried) -> None:
    down(wire)
    guards = watched(breaker=CircuitBreaker(fallback=AIMessage("Come back later.")))
    agent = solo(chat_openai(wire), guards=guards)
    replies = [await agent.ainvoke("hello") for _ in range(RUNS)]
    assert {reply.text for reply in replies} == {"Come back later."}
    assert sent(wire) == 5
