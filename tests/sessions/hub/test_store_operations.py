"""The owner of a session remembers its last envelopes: a turn asks the store for little."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Hub, Team
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions.log import MemoryLog
from tests.sessions.talk import agent

OPERATIONS = ("append", "read", "tail", "find", "inbox", "enqueue", "load", "claim", "attempt")


class CountingLog(MemoryLog):
    """Counts what a hub asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in OPERATIONS:
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
