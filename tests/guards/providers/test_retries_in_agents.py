"""Model calls that fail once: they are tried again, but for what has been heard already."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agentgraph import Agent
from agentgraph.errors import ModelError
from agentgraph.guards import (
    Backoff,
    CircuitBreaker,
    Deadlines,
    Guards,
    MemorySink,
    RetryBudget,
)
from agentgraph.stream import ErrorEvent, Event, FinalStateEvent, TokenEvent
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.guarded_agents import (
    Hurried,
    Provider,
    answers,
    decided,
    is_legal,
    look,
    recorded,
    solo,
    streamed,
    watched,
)


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


async def test_a_failure_that_passes_is_tried_again_and_nothing_is_told(clock: Hurried) -> None:
    model = ScriptedModel([Fault.server_error(), Fault.rate_limit(), "Here I am."])
    events = await streamed(solo(model))
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert (final.text, len(model.requests), decided(events)) == ("Here I am.", 3, [])
    assert not [event for event in events if isinstance(event, ErrorEvent)]
    assert len(clock.slept) == 2
    assert clock.slept[0] <= 0.5
    assert clock.slept[1] <= 1.0


async def test_each_attempt_and_each_retry_stands_in_the_trail(clock: Hurried) -> None:
    sink = MemorySink()
    model = ScriptedModel([Fault.server_error(), "Here I am."])
    await solo(model, guards=watched(sink)).ainvoke("hello")
    kinds = [record.kind for record in recorded(sink)]
    attempt = ["model", "settled"]
    assert kinds == ["input", *attempt, "decision", *attempt, "end"]
    retry = recorded(sink, "decision")[0]
    assert retry.data["retry"] == 1
    assert retry.decision is not None
    assert (retry.decision["guard"], retry.decision["action"]) == ("retry", "allow")
    assert retry.decision["cause"] == "the provider failed: InternalServerError 500"
    assert retry.decision["failure_class"] == "provider_error"


async def test_an_agent_tries_three_times_and_then_fails_with_a_typed_error(
    clock: Hurried,
) -> None:
    model = ScriptedModel([Fault.server_error()] * 9)
    with pytest.raises(ModelError) as failed:
        await solo(model).ainvoke("hello")
    assert len(model.requests) == 3
    assert (
        str(failed.value)
        == "the model of agent 'a' failed: InternalServerError 500: Scripted answer 500"
    )
    assert type(failed.value.__cause__).__name__ == "InternalServerError"


async def test_the_turn_after_a_failed_one_works(clock: Hurried) -> None:
    model = ScriptedModel([call("look", what="it"), *[Fault.server_error()] * 3, "Here again."])
    agent = solo(model)
    with pytest.raises(ModelError):
        await agent.ainvoke("hello", thread_id="t")
    reply = await agent.ainvoke("and now?", thread_id="t")
    assert reply.text == "Here again."
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert answers(history) == ["nothing of it"]


async def test_what_the_provider_asks_to_wait_is_waited(clock: Hurried) -> None:
    model = ScriptedModel([Fault.rate_limit(12.5), "Here I am."])
    assert (await solo(model).ainvoke("hello")).text == "Here I am."
    assert clock.slept == [12.5]


async def test_a_wait_past_the_deadline_is_not_begun(clock: Hurried) -> None:
    model = ScriptedModel([Fault.rate_limit(700), "never"])
    with pytest.raises(ModelError):
        await solo(model).ainvoke("hello")
    assert (clock.slept, len(model.requests)) == ([], 1)


@pytest.mark.parametrize("retry", [None, RetryBudget(reserve=0)], ids=["none", "spent"])
async def test_without_a_budget_for_it_nothing_is_tried_again(
    clock: Hurried, retry: RetryBudget | None
) -> None:
    model = ScriptedModel([Fault.server_error(), "never"])
    with pytest.raises(ModelError):
        await solo(model, guards=watched(retry=retry)).ainvoke("hello")
    assert len(model.requests) == 1


async def test_what_has_been_told_is_never_said_again(clock: Hurried) -> None:
    model = ScriptedModel([Fault.cut("one two three four"), "never"])
    seen: list[Event] = []
    with pytest.raises(ModelError):
        async for event in solo(model).astream("go"):
            seen.append(event)  # noqa: PERF401  # a comprehension would lose them in the raise
    told = "".join(event.text for event in seen if isinstance(event, TokenEvent))
    assert (told, len(model.requests)) == ("one two", 1)


async def test_what_has_been_told_is_not_given_to_a_fallback_either(clock: Hurried) -> None:
    cheap = Provider("cheap")
    model = ScriptedModel([Fault.cut("one two three four")])
    with pytest.raises(ModelError):
        await streamed(solo(model, guards=watched(breaker=CircuitBreaker(fallback=cheap.model))))
    assert cheap.requests == 0


async def test_what_nobody_has_heard_is_asked_again(clock: Hurried) -> None:
    model = ScriptedModel([Fault.cut("one two three four"), "one two three four"])
    assert (await solo(model).ainvoke("go")).text == "one two three four"


async def test_a_sub_agent_that_was_heard_is_not_asked_again(clock: Hurried) -> None:
    model = ScriptedModel([Fault.cut("one two three four"), "never"])
    boss = ScriptedModel([call("transfer_to_sub")])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub")])
    with pytest.raises(ModelError):
        await streamed(agent)
    assert len(model.requests) == 1


async def test_one_visit_is_asked_again_whatever_was_heard_of_another_one(clock: Hurried) -> None:
    """A delegate is asked by two calls of one message; one of its visits fails unheard."""
    heard, failed = asyncio.Event(), asyncio.Event()

    async def turn(messages: Any) -> Any:
        if len(model.requests) == 1:
            await heard.wait()
            failed.set()
            return Fault.server_error()
        return "One of two."

    model = ScriptedModel(turn)
    calls = [call("transfer_to_sub", reason=reason) for reason in ("one", "two")]
    boss = solo(
        ScriptedModel([calls, "Done."]),
        name="boss",
        agents=[solo(model, name="sub")],
        handoff="delegate",
    )
    events = []
    async for event in boss.astream("go"):
        events.append(event)
        if isinstance(event, TokenEvent) and event.agent == "boss/sub":
            heard.set()
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert (final.text, len(model.requests)) == ("Done.", 3)
    assert failed.is_set()


@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_regulated_run_that_is_cut_asks_a_human_whoever_has_heard_of_it(
    clock: Hurried, is_heard: bool
) -> None:
    sink = MemorySink()
    model = ScriptedModel([*[Fault.cut("one two three four")] * (1 if is_heard else 3), "Whole."])
    agent = solo(model, guards=watched(sink, "regulated"))
    if is_heard:
        await streamed(agent)
    else:
        await agent.ainvoke("go", thread_id="t")
    [question] = await agent.ainterrupts("t")
    assert question.payload["failure_class"] == "provider_error"
    assert len(model.requests) == (1 if is_heard else 3)
    reply = await agent.aresume("t", {question.id: "approve"})
    assert reply.text == "Whole."


async def test_a_stalled_model_is_cut_off_and_asked_again(clock: Hurried) -> None:
    entered = asyncio.Event()

    async def turn(messages: Any) -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return "Here I am."

    model = ScriptedModel(turn)
    running = asyncio.ensure_future(solo(model).ainvoke("hello"))
    await entered.wait()
    clock.advance(60)
    assert (await running).text == "Here I am."
    assert len(model.requests) == 2


async def test_stages_of_a_tree_may_have_other_limits(clock: Hurried) -> None:
    model = ScriptedModel([Fault.server_error(), "never"])
    boss = ScriptedModel([Fault.server_error(), call("transfer_to_sub")], model_name="boss")
    once = Guards("interactive", backoff=Backoff(attempts=1), deadlines=Deadlines(5, 5, 5))
    guards = watched(stages={"sub": once})
    agent = Agent("boss", model=boss, agents=[solo(model, look, name="sub")], guards=guards)
    with pytest.raises(ModelError):
        await agent.ainvoke("go")
    assert (len(boss.requests), len(model.requests)) == (2, 1)
