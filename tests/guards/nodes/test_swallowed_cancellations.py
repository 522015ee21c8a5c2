"""A call that catches its cancellation and goes on: the run goes on without it at the deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from agentgraph import patched
from agentgraph.clock import clock
from agentgraph.errors import ModelError
from agentgraph.guards import Backoff
from agentgraph.stream import ErrorEvent, emit
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.guarded_agents import answers, stopped_by
from tests.guards.metered_models import Driven, asked, told, worker
from tests.guards.timed_agents import FOREVER_S, guards


def go() -> dict[str, Any]:
    """Return an input: a message gets an id with its first run."""
    return {"messages": [HumanMessage("go")]}


@pytest.fixture
def time() -> Iterator[Driven]:
    with Driven().installed() as driven:
        yield driven


class Stubborn:
    """Work that goes on when it is cancelled; once it is let go it speaks, and fails."""

    def __init__(self) -> None:
        self.is_cancelled = 0
        self.is_over = asyncio.Event()
        self._may_end = False

    async def work(self, *_: object) -> str:
        while not self._may_end:
            try:
                await clock().sleep(FOREVER_S)
            except asyncio.CancelledError:
                self.is_cancelled += 1
                if self.is_cancelled > 1:  # at the end of a test that fails
                    raise
        await emit(ErrorEvent(code="late", message="too late"))
        self.is_over.set()
        raise RuntimeError("nobody waits for this")

    async def let_go(self, time: Driven) -> None:
        """Let it go on to its end."""
        self._may_end = True
        time.advance(FOREVER_S)
        await self.is_over.wait()


async def test_a_model_that_does_not_stop_is_left_behind_and_asked_again(time: Driven) -> None:
    stubborn = Stubborn()
    turns: list[Any] = [stubborn.work, lambda _: "At last."]
    model = ScriptedModel(lambda messages: turns.pop(0)(messages))
    agent = worker("a", [], guards=guards(step_s=60)).replace(model=model)
    (end, _), seconds = await time.lasting(told(agent, "go"))
    assert (end.text, seconds, len(model.requests)) == ("At last.", 60, 2)
    assert stubborn.is_cancelled
    await stubborn.let_go(time)


async def test_a_model_that_never_stops_fails_at_its_deadline(time: Driven) -> None:
    stubborn = [Stubborn(), Stubborn(), Stubborn()]
    left = iter(stubborn)
    model = ScriptedModel(lambda messages: next(left).work())
    agent = worker("a", [], guards=guards(step_s=60, backoff=Backoff(base_s=0, attempts=2)))
    began = time.monotonic()
    with pytest.raises(ModelError, match="cut off after 60 s by the deadline of the step"):
        await time.drive(agent.replace(model=model).ainvoke("go"))
    assert time.monotonic() - began == 120
    for one in stubborn[:2]:
        await one.let_go(time)


async def test_a_tool_that_does_not_stop_is_left_behind_and_writes_nothing(time: Driven) -> None:
    stubborn = Stubborn()

    async def look() -> str:
        """Look."""
        return await stubborn.work()

    agent = worker("a", [call("look"), "Never."], tools=[look], guards=guards(workflow_s=100))
    events: list[Any] = []

    async def run() -> None:
        events.extend([event async for event in agent.astream("go", thread_id="t")])

    _, seconds = await time.lasting(run())
    assert (events[-1].close_reason, seconds, asked(agent)) == ("deadline:workflow", 100, 1)
    history = await agent.ahistory("t")
    await stubborn.let_go(time)
    assert not any(isinstance(event, ErrorEvent) for event in events)
    assert await agent.ahistory("t") == history


async def test_a_tool_in_a_thread_is_left_behind() -> None:
    entered, lets_go = threading.Event(), threading.Event()

    def look() -> str:
        """Look."""
        entered.set()
        lets_go.wait(10)
        return "seen"

    agent = worker("a", [call("look"), "Never."], tools=[look], guards=guards(workflow_s=100))
    with FakeClock().installed() as time:
        running = asyncio.ensure_future(agent.ainvoke("go"))
        await asyncio.to_thread(entered.wait, 10)
        time.advance(100)
        reply = await running
    assert not lets_go.is_set()
    lets_go.set()
    assert (reply.close_reason, asked(agent)) == ("deadline:workflow", 1)


async def test_a_model_of_another_graph_is_left_behind(time: Driven) -> None:
    stubborn = Stubborn()
    turns: list[Callable[..., Any]] = [stubborn.work, lambda _: "At last."]
    model = ScriptedModel(lambda messages: turns.pop(0)(messages))
    graph = patched(create_agent(model, []), guards(step_s=60))
    result, seconds = await time.lasting(graph.ainvoke(go()))
    assert (result["messages"][-1].text, seconds) == ("At last.", 60)
    await stubborn.let_go(time)


async def test_a_tool_of_another_graph_is_left_behind(time: Driven) -> None:
    stubborn = Stubborn()

    async def look() -> str:
        """Look."""
        return await stubborn.work()

    model = ScriptedModel([call("look"), "Never."])
    graph = patched(create_agent(model, [look]), guards(workflow_s=100))
    result, seconds = await time.lasting(graph.ainvoke(go()))
    assert (stopped_by(result), seconds, len(model.requests)) == ("deadline:workflow", 100, 1)
    assert answers(result["messages"]) == [
        "Not executed: cut off after 100 s by the deadline of the workflow."
    ]
    await stubborn.let_go(time)


async def test_who_cancels_a_run_waits_until_its_calls_have_cleaned_up(time: Driven) -> None:
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        """Look."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(9):
                await time.sleep(0)
            cleaned.set()
        return "never"

    agent = worker("a", [call("look")], tools=[look], guards=guards(workflow_s=100))
    running: Awaitable[Any] = asyncio.ensure_future(agent.ainvoke("go"))
    await entered.wait()
    assert isinstance(running, asyncio.Future)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()
