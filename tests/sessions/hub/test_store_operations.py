"""The owner of a session remembers its last envelopes: a turn asks the store for little."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, Hub, Team
from agentgraph.clock import clock as system_clock
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.single.team import teams_of
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import agent

OPERATIONS = ("append", "read", "tail", "find", "inbox", "enqueue", "load", "claim", "attempt")
LOOKS = ("unfinished_sessions",)


class CountingLog(MemoryLog):
    """Counts what a hub asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in (*OPERATIONS, *LOOKS):
            self.asked[name] += 1
        return super().__getattribute__(name)


def pair() -> Team:
    """Return a team in which two agents answer each message."""
    rules = [Transition(FromSpeaker("user"), "a"), Transition(FromSpeaker("a"), "b")]
    graph = TransitionGraph("a", [*rules, Transition(FromSpeaker("b"), HumanTarget())])
    return Team([agent("a"), agent("b")], graph, name="pair")


@asynccontextmanager
async def hub_on(log: MemoryLog, team: Team) -> AsyncIterator[Hub]:
    hub = Hub(log, InMemorySaver(), [team], 30.0)
    await hub.start(None)
    try:
        yield hub
    finally:
        await hub.aclose()


@pytest.mark.parametrize("turns", [1, 30])
async def test_a_turn_reads_nothing_of_the_log(turns: int) -> None:
    log, team = CountingLog(), pair()
    async with hub_on(log, team) as hub:
        session = await hub.session(team)
        for number in range(turns):
            await session.ask(f"word {number}")
        log.asked.clear()
        assert (await session.ask("and now?")).speaker == "b"
    assert log.asked == {"append": 3}  # the message and two packets


async def test_waiting_until_it_has_settled_looks_into_the_inbox_once() -> None:
    log, team = CountingLog(), pair()
    async with hub_on(log, team) as hub:
        session = await hub.session(team)
        await session.ask("hello")
        log.asked.clear()
        await session.send("user", "and now?")
        await session.settled()
    assert log.asked == {"append": 3, "inbox": 1}


async def test_a_sweep_does_not_look_into_the_inbox_of_a_session_at_work() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        """Work until it is let go."""
        begun.set()
        await go.wait()
        return "worked"

    worker = Agent("worker", model=ScriptedModel([call("work"), "done", "again"]), tools=[work])
    log = CountingLog()
    clock = FakeClock()
    hub = Hub(log, InMemorySaver(), teams_of([worker]), 30.0)
    await hub.start(clock)
    try:
        session = await hub.session("worker")
        await session.send("user", "hello")
        await begun.wait()
        log.asked.clear()
        while log.asked["unfinished_sessions"] < 5:
            clock.advance(0.5)
            await system_clock().sleep(0)
        assert (log.asked["unfinished_sessions"], log.asked["inbox"]) == (5, 0)
        await session.send("user", "and this", idempotency_key="k")
        go.set()
        await session.settled()
        assert log.asked["inbox"] > 0
    finally:
        await hub.aclose()


async def test_the_first_turn_in_another_hub_reads_the_last_envelopes_once() -> None:
    log, team = CountingLog(), pair()
    async with hub_on(log, team) as hub:
        session = await hub.session(team)
        await session.ask("hello")
    async with hub_on(log, team) as other:
        session = await other.get(session.id)
        log.asked.clear()
        assert (await session.ask("and now?")).speaker == "b"
    assert (log.asked["tail"], log.asked["read"]) == (0, 1)
