"""An outage on the wire: one layer alone tries again, and that a little."""

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
from agentgraph.guards import CircuitBreaker
from agentgraph.models import resolve_model
from agentgraph.routing import sequence
from tests.guards.guarded_agents import Hurried, solo, watched
from tests.wire import Wire, chat_openai, fail, rate_limit, serve, text

RUNS = 50
MOST = 1.2


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
