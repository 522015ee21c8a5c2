"""A hub that has lost a session writes nothing more, and none is busy with what it cannot drive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Team, sequence
from agentgraph.errors import StaleOwner
from agentgraph.running import Ownership, inside_ownership
from agentgraph.sessions import EV_PACKET, Hub, MemoryLog, Session
from agentgraph.storage import open_saver
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.kills import checkpoint_rows
from tests.sessions.talk import PATIENCE_S, agent, hub_of, of_type, settled, until


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the test's own, that outlives its hubs."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue("postgres").url)


class Held:
    """A model whose answer the test gives: until then it is inside a round."""

    def __init__(self) -> None:
        self.began, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def turn(self, messages: Sequence[BaseMessage]) -> Any:
        self.began.set()
        await self.may_go_on.wait()
        return call("ask") if not any(m.type == "tool" for m in messages) else "done"


def ask() -> str:
    """Ask."""
    return str(interrupt("May I?"))


def team_of(model: Held, durability: Any) -> Team:
    a = agent("a", tools=[ask]).replace(model=ScriptedModel(model.turn))
    return Team([a], sequence(["a"]), durability=durability)


async def taken_over(session: Session) -> int | None:
    """Give a session another owner, as a hub does whose clock says that the lease has ended."""
    log = hub_of(session).log
    return await log.claim(session.id, "another hub", hub_of(session).lease._until, force=True)


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_an_owner_that_was_taken_over_writes_no_checkpoint(url: str, durability: str) -> None:
    model = Held()
    team = team_of(model, durability)
    async with await Hub.open(url, serve=[team], clock=FakeClock(1_700_000_000)) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        async with asyncio.timeout(PATIENCE_S):
            await model.began.wait()
        assert await taken_over(session)
        before = checkpoint_rows(url, session.id), len(await session.history())
        model.may_go_on.set()
        driver = hub.drivers.get(session.id)
        assert driver is not None
        await until(lambda: driver.is_resting)
        assert hub.drivers.owned_session(session.id) is None
        assert (checkpoint_rows(url, session.id), len(await session.history())) == before


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_checkpoint_of_the_new_owner_is_not_deleted_by_the_former(
    url: str, durability: str
) -> None:
    first, second = Held(), Held()
    second.may_go_on.set()
    team = team_of(first, durability)
    clock = FakeClock(1_700_000_000)
    async with await Hub.open(url, serve=[team], clock=clock) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        async with asyncio.timeout(PATIENCE_S):
            await first.began.wait()
        hub.lease.owner = "frozen"  # so that the other hub of this process is another owner
        async with await Hub.open(url, serve=[team_of(second, durability)], clock=clock) as other:
            assert await other.log.claim(session.id, other.lease.owner, clock.wall(), force=True)
            here = await other.get(session.id)
            state = await settled(here)
            assert state.status == "waiting_decision"
            asked = checkpoint_rows(url, session.id)
            assert asked
            first.may_go_on.set()
            driver = hub.drivers.get(session.id)
            assert driver is not None
            await until(lambda: driver.is_resting)
            assert checkpoint_rows(url, session.id) == asked
            (question,) = state.interrupts
            await here.decide(question, "yes")
            assert (await settled(here)).status == "closed"
            assert len(await of_type(here, EV_PACKET)) == 1


async def test_the_store_checks_the_epoch_in_the_transaction_that_writes(url: str) -> None:
    team = Team([agent("a")], sequence(["a"]))
    async with await Hub.open(url, serve=[team]) as hub:
        session = await hub.session(team, id="s ü")
        epoch = await hub.log.claim(session.id, "owner", 0.0)
        assert epoch is not None
        ownership = hub.ownership(session.id, epoch)
        assert ownership is not None
        saver = open_saver(url)
        config: Any = {"configurable": {"thread_id": session.id, "checkpoint_ns": ""}}
        with inside_ownership(ownership):
            stored = await saver.aput(config, empty_checkpoint(), {}, {})
            await saver.aput_writes(stored, [("messages", "a")], "task")
        kept = checkpoint_rows(url, session.id)
        assert kept == 2

        await hub.log.claim(session.id, "another", 0.0, force=True)
        with inside_ownership(ownership):
            for write in (
                lambda: saver.aput(config, empty_checkpoint(), {}, {}),
                lambda: saver.aput_writes(stored, [("messages", "b")], "other task"),
                lambda: saver.adelete_thread(session.id),
            ):
                with pytest.raises(StaleOwner):
                    await write()
            other: Any = {"configurable": {"thread_id": "a thread", "checkpoint_ns": ""}}
            await saver.aput(other, empty_checkpoint(), {}, {})  # is no thread of the session
        assert checkpoint_rows(url, session.id) == kept
        assert checkpoint_rows(url, "a thread") == 1
        with inside_ownership(Ownership(session.id, ownership.session_key, epoch + 1)):
            await saver.adelete_thread(session.id)
        assert checkpoint_rows(url, session.id) == 0


class CountingLog(MemoryLog):
    """Counts how often a hub looks for work, and loads a session."""

    looks = loads = 0

    async def unfinished_sessions(self, now: float) -> list[str]:
        self.looks += 1
        return await super().unfinished_sessions(now)

    async def load(self, session_id: str) -> Any:
        self.loads += 1
        return await super().load(session_id)


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait


async def test_a_hub_that_lacks_the_team_of_an_overdue_session_looks_once_a_second() -> None:
    log, clock = CountingLog(), FakeClock(1_700_000_000)
    team = Team([agent("a")], sequence(["a"]))
    first = Hub(log, InMemorySaver(), [team], 30.0)
    await first.start(clock)
    await first.session(team, ttl=None)  # it waits for its creator, whose turn is limited
    await first.session(team, ttl=5)
    await first.aclose()
    clock.advance(60)

    hub = Hub(log, InMemorySaver(), [], 30.0)
    await hub.start(clock)
    try:
        await turns_of_the_loop(200)
        log.looks = log.loads = 0
        for _ in range(10):
            clock.advance(1)
            await turns_of_the_loop(200)
        assert 9 <= log.looks <= 11
        assert log.loads <= 4 * log.looks
        await turns_of_the_loop(500)
        assert log.looks <= 11  # time stands still, and nobody looks
    finally:
        await hub.aclose()


async def test_a_timer_is_looked_at_in_time_beside_an_overdue_session() -> None:
    log, clock = CountingLog(), FakeClock(1_700_000_000)
    team, other = Team([agent("a")], sequence(["a"])), Team([agent("b")], sequence(["b"]), name="b")
    first = Hub(log, InMemorySaver(), [team], 30.0)
    await first.start(clock)
    await first.session(team, ttl=5)
    await first.aclose()
    clock.advance(60)

    hub = Hub(log, InMemorySaver(), [other], 30.0)
    await hub.start(clock)
    try:
        session = await hub.session(other, ttl=0.25)
        await turns_of_the_loop(50)
        clock.advance(0.25)
        await until(lambda: session.state.is_ended)
        assert session.state.status == "expired"
    finally:
        await hub.aclose()
