"""Providers that fail while agents are at work: retries, the breaker, what stands in for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import ModelError
from agentgraph.guards import (
    CircuitBreaker,
    Gate,
    Guards,
    MemorySink,
    Subject,
)
from agentgraph.stream import ErrorEvent, Event, FinalStateEvent
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import (
    Hurried,
    Provider,
    answers,
    audited,
    decided,
    for_ever,
    is_legal,
    recorded,
    solo,
    streamed,
    watched,
    words_of,
)

COOLDOWN_S = 30.0
TRIPS_AT = 5
SORRY = AIMessage("We are out of order.")


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


def two_providers() -> tuple[Provider, Provider]:
    """Return one that is down, and a cheaper one that is well."""
    dear, cheap = Provider("dear"), Provider("cheap")
    cheap.mend()
    return dear, cheap


def falling_back(fallback: object, sink: MemorySink | None = None) -> Guards:
    return watched(sink, breaker=CircuitBreaker(fallback=fallback))


async def tripped(agent: Agent, provider: Provider) -> int:
    """Run an agent until the breaker of its provider is open; return how often that was asked."""
    for _ in range(TRIPS_AT):
        before = provider.requests
        await agent.ainvoke("hello")
        if provider.requests == before:
            return before
    raise AssertionError("the breaker has not opened")


# What fails again and again


async def test_a_dead_provider_trips_the_breaker_and_another_model_answers(
    clock: Hurried,
) -> None:
    dear, cheap = two_providers()
    sink = MemorySink()
    agent = solo(dear.model, guards=falling_back(cheap.model, sink))
    first = await streamed(agent, "one")
    assert decided(first) == [("a", "backoff", "deny"), ("a", "retry", "fallback")]
    assert isinstance(first[-1], FinalStateEvent)
    assert (first[-1].text, dear.requests, cheap.requests) == ("cheap speaks", 3, 1)
    await streamed(agent, "two")
    assert dear.requests == TRIPS_AT
    third = await streamed(agent, "three")
    assert decided(third) == [("a", "circuit_breaker", "fallback")]
    assert (dear.requests, cheap.requests) == (TRIPS_AT, 3)
    assert audited(sink)[-1] == ("a", "circuit_breaker", "fallback")
    history = await agent.ahistory("t")
    assert [m.text for m in history if isinstance(m, AIMessage)] == ["cheap speaks"] * 3
    assert is_legal(history)


async def test_a_fallback_is_bound_to_the_agent_s_tools(clock: Hurried) -> None:
    dear, cheap = two_providers()
    cheap.model = for_ever(call("look", what="it"), "Seen.", name="cheap")
    reply = await solo(dear.model, guards=falling_back(cheap.model)).ainvoke("go")
    assert (reply.text, cheap.model.requests[0].tools) == ("Seen.", ("look",))


async def test_while_it_is_open_no_request_reaches_the_provider(clock: Hurried) -> None:
    dear, cheap = two_providers()
    agent = solo(dear.model, guards=falling_back(cheap.model))
    asked = await tripped(agent, dear)
    clock.advance(COOLDOWN_S - 1)
    replies = await asyncio.gather(*(agent.ainvoke("hello") for _ in range(10)))
    assert {reply.text for reply in replies} == {"cheap speaks"}
    assert dear.requests == asked == TRIPS_AT


async def test_after_the_cooldown_exactly_one_probe_is_let_through(clock: Hurried) -> None:
    dear, cheap = two_providers()
    agent = solo(dear.model, guards=falling_back(cheap.model))
    asked = await tripped(agent, dear)
    clock.advance(COOLDOWN_S)
    dear.mend()
    let_go = dear.hold()
    probe = asyncio.ensure_future(agent.ainvoke("hello"))
    await dear.asked.wait()
    others = await asyncio.gather(*(agent.ainvoke("hello") for _ in range(20)))
    assert {reply.text for reply in others} == {"cheap speaks"}
    assert dear.requests == asked + 1
    let_go.set()
    assert (await probe).text == "dear speaks"
    assert (await agent.ainvoke("hello")).text == "dear speaks"


async def test_a_probe_that_fails_doubles_the_cooldown(clock: Hurried) -> None:
    dear, cheap = two_providers()
    agent = solo(dear.model, guards=falling_back(cheap.model))
    asked = await tripped(agent, dear)
    clock.advance(COOLDOWN_S)
    await agent.ainvoke("hello")
    assert dear.requests == asked + 1
    clock.advance(COOLDOWN_S)
    await agent.ainvoke("hello")
    assert dear.requests == asked + 1
    clock.advance(COOLDOWN_S)
    await agent.ainvoke("hello")
    assert dear.requests == asked + 2


async def test_an_answer_may_stand_in_for_a_dead_provider(clock: Hurried) -> None:
    dear, _ = two_providers()
    agent = solo(dear.model, guards=falling_back(SORRY))
    for said in ("one", "two", "three"):
        reply = await agent.ainvoke(said, thread_id="t")
        assert (reply.text, reply.close_reason) == (SORRY.text, None)
    assert dear.requests == TRIPS_AT
    history = await agent.ahistory("t")
    assert len({m.id for m in history}) == len(history) == 6


async def test_agents_of_one_tree_share_what_is_known_of_a_provider(clock: Hurried) -> None:
    dear, cheap = two_providers()
    asks = [call("sub", request="one"), call("sub", request="two")]
    boss = for_ever(asks, "All done.", name="boss")
    sub = solo(dear.model, name="sub")
    agent = Agent("boss", model=boss, agents=[sub.as_tool()], guards=falling_back(cheap.model))
    reply = await agent.ainvoke("go", thread_id="t")
    assert answers(await agent.ahistory("t")) == ["cheap speaks"] * 2
    assert (reply.text, dear.requests) == ("All done.", TRIPS_AT)


async def test_another_model_of_the_same_agent_tree_is_still_asked(clock: Hurried) -> None:
    """One that is sick says nothing of the others."""
    dear, cheap = two_providers()
    well = Provider("well")
    well.mend()
    guards = falling_back(cheap.model)
    await tripped(solo(dear.model, guards=guards), dear)
    assert (await solo(well.model, guards=guards).ainvoke("hello")).text == "well speaks"


async def test_a_policy_of_its_own_has_breakers_of_its_own(clock: Hurried) -> None:
    dear, cheap = two_providers()
    await tripped(solo(dear.model, guards=falling_back(cheap.model)), dear)
    dear.mend()
    other = solo(dear.model, guards=falling_back(cheap.model))
    assert (await other.ainvoke("hello")).text == "dear speaks"


async def test_without_a_fallback_an_interactive_run_fails_at_once(clock: Hurried) -> None:
    dear, _ = two_providers()
    sink = MemorySink()
    agent = solo(dear.model, guards=watched(sink))
    for _ in range(2):
        with pytest.raises(ModelError):
            await agent.ainvoke("hello", thread_id="t")
    seen: list[Event] = []
    with pytest.raises(ModelError) as failed:
        async for event in agent.astream("hello", thread_id="t"):
            seen.append(event)  # noqa: PERF401  # a comprehension would lose them in the raise
    assert failed.value.code == "circuit_open"
    assert "the breaker of model:dear is open" in str(failed.value)
    assert [event.code for event in seen if isinstance(event, ErrorEvent)] == ["circuit_open"]
    assert decided(seen) == [("a", "circuit_breaker", "abort")]
    assert audited(sink)[-1] == ("a", "circuit_breaker", "abort")
    assert dear.requests == TRIPS_AT


async def test_a_fallback_answers_a_batch_run_too(clock: Hurried) -> None:
    dear, cheap = two_providers()
    guards = watched(tier="batch", breaker=CircuitBreaker(fallback=cheap.model))
    sink: Any = guards.audit.sink if guards.audit is not None else None
    reply = await solo(dear.model, guards=guards).ainvoke("hello")
    assert (reply.text, dear.requests, cheap.requests) == ("cheap speaks", 3, 1)
    assert audited(sink)[-1] == ("a", "retry", "fallback")


async def test_a_batch_run_without_a_fallback_fails(clock: Hurried) -> None:
    dear, cheap = two_providers()
    guards = watched(tier="batch")
    sink: Any = guards.audit.sink if guards.audit is not None else None
    with pytest.raises(ModelError):
        await solo(dear.model, guards=guards).ainvoke("hello")
    assert cheap.requests == 0
    assert audited(sink)[-1] == ("a", "retry", "abort")
    assert recorded(sink, "decision")[-1].decision["evidence"]["alert"] is True  # type: ignore[index]


async def test_a_regulated_run_asks_a_human(clock: Hurried) -> None:
    dear, cheap = two_providers()
    guards = watched(tier="regulated")
    agent = solo(dear.model, guards=guards)
    reply = await agent.ainvoke("hello", thread_id="t")
    (question,) = reply.interrupts
    assert question.payload["failure_class"] == "provider_error"
    assert (dear.requests, cheap.requests) == (3, 0)
    dear.mend()
    reply = await agent.aresume("t", {question.id: "approve"})
    assert (reply.text, cheap.requests) == ("dear speaks", 0)
    assert is_legal(await agent.ahistory("t"))


async def test_a_regulated_run_that_a_human_ends_says_so(clock: Hurried) -> None:
    dear, _ = two_providers()
    agent = solo(dear.model, guards=watched(tier="regulated"))
    (question,) = (await agent.ainvoke("hello", thread_id="t")).interrupts
    reply = await agent.aresume("t", {question.id: "reject"})
    assert (words_of(reply), reply.close_reason) == ("", "retry")


async def test_a_client_s_own_fault_is_neither_tried_again_nor_counted(clock: Hurried) -> None:
    dear = Provider("dear", fault=ValueError("no such thing"))
    agent = solo(dear.model)
    for _ in range(2 * TRIPS_AT):
        with pytest.raises(ModelError):
            await agent.ainvoke("hello")
    assert (dear.requests, clock.slept) == (2 * TRIPS_AT, [])
    dear.mend()
    assert (await agent.ainvoke("hello")).text == "dear speaks"


# What is no failure


async def test_runs_that_are_cancelled_do_not_open_a_breaker(clock: Hurried) -> None:
    dear, _ = two_providers()
    dear.mend()
    agent = solo(dear.model)
    for _ in range(2 * TRIPS_AT):
        dear.hold()
        running = asyncio.ensure_future(agent.ainvoke("hello"))
        await dear.asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    dear.lets_go = None
    assert (await agent.ainvoke("hello")).text == "dear speaks"


async def test_a_probe_that_is_cancelled_leaves_its_place_to_the_next(clock: Hurried) -> None:
    dear, cheap = two_providers()
    agent = solo(dear.model, guards=falling_back(cheap.model))
    await tripped(agent, dear)
    clock.advance(COOLDOWN_S)
    dear.mend()
    dear.hold()
    probe = asyncio.ensure_future(agent.ainvoke("hello"))
    await dear.asked.wait()
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    dear.lets_go = None
    assert (await agent.ainvoke("hello")).text == "dear speaks"


async def test_a_probe_whose_answer_is_cut_off_at_a_gate_leaves_its_place_to_the_next(
    clock: Hurried,
) -> None:
    dear, cheap = two_providers()
    looking, is_slow = asyncio.Event(), [True]

    async def look_at(subject: Subject) -> bool:
        if subject.text == "dear speaks" and is_slow and is_slow.pop():
            looking.set()
            await asyncio.Event().wait()
        return True

    gate = Gate(invariants=(look_at,))
    guards = watched(breaker=CircuitBreaker(fallback=cheap.model), gates=gate)
    agent = solo(dear.model, guards=guards)
    await tripped(agent, dear)
    clock.advance(COOLDOWN_S)
    dear.mend()
    probe = asyncio.ensure_future(agent.ainvoke("hello"))
    await looking.wait()
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert (await agent.ainvoke("hello")).text == "dear speaks"


async def test_a_probe_that_waits_for_a_human_leaves_its_place_to_the_next(
    clock: Hurried,
) -> None:
    dear, cheap = two_providers()
    asks = [True]

    async def turn(messages: Any) -> Any:
        if dear.fault is None and asks and asks.pop():
            interrupt("may I?")
        return dear.fault or "dear speaks"

    model = ScriptedModel(turn, model_name="dear")
    agent = solo(model, guards=falling_back(cheap.model))
    for _ in range(3):
        await agent.ainvoke("hello")
    clock.advance(COOLDOWN_S)
    dear.mend()
    reply = await agent.ainvoke("hello", thread_id="t")
    assert [question.payload for question in reply.interrupts] == ["may I?"]
    assert (await agent.ainvoke("hello")).text == "dear speaks"


async def test_a_tool_that_asks_a_human_has_not_failed(clock: Hurried) -> None:
    def ask(number: int) -> str:
        """Ask a human."""
        return str(interrupt(number))

    turns = [call("ask", number=number) for number in range(4)]
    agent = solo(ScriptedModel([*turns, "Thanks."]), ask)
    reply = await agent.ainvoke("go", thread_id="t")
    for _ in range(4):
        (question,) = reply.interrupts
        reply = await agent.aresume("t", {question.id: "yes"})
    assert (reply.text, reply.close_reason) == ("Thanks.", None)
