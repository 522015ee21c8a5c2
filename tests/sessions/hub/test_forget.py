"""A session that is forgotten: nothing is left of it, and nothing of it is written after."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from typing import Any, TypeAlias

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Team
from agentgraph.errors import InsideRound, SessionError, StaleOwner
from agentgraph.guards import StepLimit
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph, sequence
from agentgraph.sessions import Draft, Hub, MemoryLog, Session, current_session
from agentgraph.sessions.drivers.subscribers import Subscribers
from agentgraph.sessions.single.team import teams_of
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.hub.test_quarantine import Rows
from tests.sessions.talk import PATIENCE_S, after, agent, settled, talk, until

OpenHub: TypeAlias = Callable[..., Awaitable[Hub]]


@pytest.fixture
async def opened(log_url: str) -> AsyncIterator[OpenHub]:
    """Open hubs on one store, whose clock stands still."""
    log, saver, clock = MemoryLog(), InMemorySaver(), FakeClock(1_700_000_000)
    async with AsyncExitStack() as stack:

        async def opened(*served: Team | Agent) -> Hub:
            if log_url != "memory":
                hub = await Hub.open(log_url, serve=served, clock=clock)
            else:
                hub = Hub(log, saver, teams_of(served), 30.0)
                await hub.start(clock)
            return await stack.enter_async_context(hub)

        yield opened


def stored_rows(url: str) -> dict[str, int]:
    """Return how many rows each table has that has rows of sessions or checkpoints."""
    tables = ["sessions", "envelopes", "keys", "inbox", "labels", "blobs"]
    names = [*(f"agentgraph_{table}" for table in tables), "checkpoints"]
    names.append("writes" if url.startswith("sqlite") else "checkpoint_writes")
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            counts = {
                name: file.execute(f"SELECT count(*) FROM {name}").fetchone() for name in names
            }
            return {name: count for name, (count,) in counts.items()}
    names.append("checkpoint_blobs")
    with psycopg.connect(url) as connection:
        queries = {name: f"SELECT count(*) FROM {name}".encode() for name in names}
        counts = {name: connection.execute(query).fetchone() for name, query in queries.items()}
    return {name: count[0] for name, count in counts.items() if count is not None}


async def check_nothing_is_left(hub: Hub, url: str, key: str = "s") -> None:
    assert await hub.log.load(key) is None
    config: Any = {"configurable": {"thread_id": key}}
    assert [item async for item in hub.saver.alist(config)] == []
    if url != "memory":
        assert not any(stored_rows(url).values())


async def refused(asked: Awaitable[object]) -> None:
    """Check that something is refused, as there is no such session."""
    with pytest.raises(SessionError) as error:
        await asked
    assert error.value.code == "unknown_session"


def desk(*turns: Any, **fields: Any) -> Team:
    answers = [Transition(FromSpeaker("user"), "a")]
    rules = TransitionGraph("a", answers, HumanTarget())
    return Team([agent("a", *turns, **fields)], rules, name="desk")


class Gate:
    """A tool that waits until it is let go, or cancelled."""

    def __init__(self) -> None:
        self.begun, self.opened = asyncio.Event(), asyncio.Event()
        self.ended = False

    def team(self) -> Team:
        gate = self

        async def wait() -> str:
            """Wait."""
            gate.begun.set()
            try:
                await gate.opened.wait()
            finally:
                gate.ended = True
            return "waited"

        return desk(call("wait"), "done", tools=[wait])

    async def reached(self) -> None:
        """Wait until the tool runs."""
        async with asyncio.timeout(PATIENCE_S):
            await self.begun.wait()


def ask(what: str) -> str:
    """Ask a human for a decision."""
    return f"decided: {interrupt({'question': what})}"


async def check_handle(session: Session) -> None:
    """Check that a handle says of all that there is no such session."""
    await refused(session.history())
    await refused(session.send("user", "hello"))
    await refused(session.send("user", "hello", idempotency_key="k", admitted=True))
    await refused(session.settled())
    await refused(session.refresh())
    await refused(session.set_context("a", 1))
    await refused(session.close())
    await refused(session.fork(1))
    await refused(_all(session))
    with pytest.raises(SessionError):
        _ = session.state
    assert "forgotten" in repr(session)


async def test_nothing_is_left_of_a_session_that_waits_for_a_decision(
    log_url: str, opened: OpenHub
) -> None:
    hub = await opened(desk(call("ask", what="may I?"), tools=[ask]))
    session = await hub.session("desk", id="s", metadata={"kind": "chat"})
    await after(session, "user", "go", idempotency_key="k")
    assert session.state.status == "waiting_decision"

    await hub.forget("s")

    await check_nothing_is_left(hub, log_url)
    await refused(hub.get("s"))
    await refused(hub.forget("s"))
    assert await hub.sessions() == []
    await check_handle(session)


async def test_a_closed_session_is_forgotten_too(log_url: str, opened: OpenHub) -> None:
    hub = await opened(desk())
    session = await hub.session("desk", id="s")
    await after(session, "user", "go")
    await session.close()
    await hub.forget("s")
    await check_nothing_is_left(hub, log_url)
    await check_handle(session)


async def test_nothing_is_left_of_a_session_of_one(log_url: str, opened: OpenHub) -> None:
    model = ScriptedModel(["large " * 20_000])
    hub = await opened(Agent("alone", model=model))
    session = await hub.session("alone", id="s")
    await after(session, "user", "go")
    assert log_url == "memory" or stored_rows(log_url)["agentgraph_blobs"]

    await hub.forget("s")

    await check_nothing_is_left(hub, log_url)
    await check_handle(session)
    await refused(session.messages())


async def test_what_is_driven_here_is_stopped_first(log_url: str, opened: OpenHub) -> None:
    gate = Gate()
    hub = await opened(gate.team())
    session = await hub.session("desk", id="s")
    await session.send("user", "go")
    await gate.reached()

    await hub.forget("s")

    assert gate.ended
    gate.opened.set()
    await check_nothing_is_left(hub, log_url)


async def test_what_is_driven_by_another_hub_is_stopped(log_url: str, opened: OpenHub) -> None:
    gate = Gate()
    driver, hub = await opened(gate.team()), await opened(desk())
    session = await driver.session("desk", id="s")
    await session.send("user", "go")
    await gate.reached()
    owned = driver.drivers.owned_session("s")
    assert owned is not None

    await hub.forget("s")

    with pytest.raises(SessionError):
        await owned.note(Draft("late.note", {}))
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: gate.ended)  # nobody has let it go
    await until(lambda: driver.drivers.get("s") is None)
    await check_nothing_is_left(hub, log_url)
    await refused(session.settled())
    await check_handle(session)


async def test_a_former_owner_writes_nothing_to_a_later_session(
    log_url: str, opened: OpenHub
) -> None:
    gate = Gate()
    driver, hub = await opened(gate.team()), await opened(desk())
    await (await driver.session("desk", id="s")).send("user", "go")
    await gate.reached()
    owned = driver.drivers.owned_session("s")
    assert owned is not None

    await hub.forget("s")
    later = await hub.session("desk", id="s")
    await after(later, "user", "hello")

    with pytest.raises(StaleOwner):
        await owned.note(Draft("late.note", {}))
    # Either hub may have driven it, and nothing of the session before is in it.
    assert [sender for sender, _ in await talk(later)] == ["user", "a"]
    assert "late.note" not in [envelope.event_type for envelope in await later.history()]


async def test_watchers_and_waiters_end_in_every_hub(log_url: str, opened: OpenHub) -> None:
    gate = Gate()
    hubs = [await opened(gate.team()), await opened(gate.team())]
    session = await hubs[0].session("desk", id="s")
    handles = [session, await hubs[1].get("s")]
    watched: list[list[str]] = []

    async def watch(handle: Session) -> None:
        seen: list[str] = []
        watched.append(seen)
        async for item in handle.watch():
            seen += [item.event_type]

    async def stream(handle: Session) -> None:
        async for _ in handle.stream():
            pass

    tasks = [asyncio.ensure_future(read(handle)) for handle in handles for read in (watch, stream)]
    await session.send("user", "go")
    await gate.reached()
    await until(lambda: all(len(seen) == 2 for seen in watched) and len(watched) == 2)
    waiters = [asyncio.ensure_future(handle.settled()) for handle in handles]

    await hubs[0].forget("s")
    await hubs[0].session("desk", id="other")

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks)
        for waiter in waiters:
            await refused(waiter)


async def test_a_watcher_here_does_not_see_a_later_session_of_the_id(opened: OpenHub) -> None:
    hub = await opened(desk())
    session = await hub.session("desk", id="s")
    task = asyncio.ensure_future(_all(session))
    await after(session, "user", "hello")
    await hub.forget("s")
    later = await hub.session("desk", id="s")
    await after(later, "user", "again")
    async with asyncio.timeout(PATIENCE_S):
        assert "again" not in await task
    assert later is not session
    assert await hub.get("s") is later
    await check_handle(session)


async def test_who_waits_is_told_though_a_later_session_has_the_id() -> None:
    async def never() -> bool:
        return False

    subscribers = Subscribers()
    waiter = asyncio.ensure_future(subscribers.wait_until("s", never))
    other = asyncio.ensure_future(subscribers.wait_until("t", never))
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait
    subscribers.forget("s")
    subscribers.notify("t")
    await refused(waiter)
    assert not other.done()
    other.cancel()


async def _all(session: Session) -> list[str]:
    return [item.text async for item in session.watch()]


async def test_inner_sessions_go_too_and_forks_stay(log_url: str, opened: OpenHub) -> None:
    innermost = Team([agent("y", call("ask", what="?"), tools=[ask])], sequence(["y"]), name="most")
    inner = Team([agent("x"), innermost], sequence(["x", "most"]), name="inner")
    outer = Team([agent("a"), inner], sequence(["a", "inner"]), name="outer")
    hub = await opened(outer)
    session = await hub.session(outer, id="s")
    await after(session, "user", "hello")
    assert session.state.status == "waiting_decision"
    fork = await session.fork(2)
    below = [
        summary for summary in await hub.log.sessions() if summary.session_id.startswith("ag.")
    ]
    assert len(below) == 2
    with pytest.raises(SessionError) as error:
        await hub.forget(below[0].session_id)
    assert error.value.code == "inner_session"

    await hub.forget("s")

    assert [summary.session_id for summary in await hub.log.sessions()] == [fork.id]
    assert len(await fork.history()) == 2
    await hub.forget(fork.id)
    await check_nothing_is_left(hub, log_url)


async def test_one_tenant_keeps_what_another_forgets(log_url: str, opened: OpenHub) -> None:
    hub = await opened(desk())
    for tenant in ("acme", "default"):
        await after(await hub.session("desk", id="s", tenant=tenant), "user", tenant)
    await hub.forget("s", tenant="acme")
    assert await talk(await hub.get("s")) == [("user", "default"), ("a", "a speaks")]
    await refused(hub.get("s", tenant="acme"))


async def test_a_round_cannot_forget_its_own_session(opened: OpenHub) -> None:
    hubs: list[Hub] = []

    async def forget() -> str:
        """Forget the session that this runs in."""
        with pytest.raises(InsideRound):
            await hubs[0].forget(current_session().id)
        return "no"

    hub = await opened(desk(call("forget"), "It stays.", tools=[forget]))
    hubs.append(hub)
    session = await hub.session("desk")
    await after(session, "user", "go")
    assert (await talk(session))[-1] == ("a", "It stays.")


async def test_what_was_spent_is_forgotten_too(opened: OpenHub) -> None:
    model = ScriptedModel(lambda messages: "spent")
    guards = Guards.interactive(steps=StepLimit(1))
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    hub = await opened(Team([Agent("a", model=model)], rules, name="desk", guards=guards))
    for _ in range(3):
        session = await hub.session("desk", id="s")
        await after(session, "user", "go")
        assert (await talk(session))[-1] == ("a", "spent")
        await hub.forget("s")


@pytest.mark.parametrize("step", ["log", "saver", "inner"])
async def test_what_was_half_forgotten_is_forgotten_again(
    log_url: str, opened: OpenHub, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Team([agent("x")], sequence(["x"]), name="inner")
    outer = Team([agent("a"), inner], sequence(["a", "inner"]), name="outer")
    hub = await opened(outer)
    session = await hub.session(outer, id="s")
    await after(session, "user", "hello")
    forget = hub.log.forget

    async def fail(*_: object) -> None:
        raise ConnectionError

    async def fail_for_the_outer_one(key: str, epoch: int) -> None:
        if key == "s":
            raise ConnectionError
        await forget(key, epoch)

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        if step == "saver":
            patch.setattr(hub.saver, "adelete_thread", fail)
        else:
            patch.setattr(hub.log, "forget", fail if step == "inner" else fail_for_the_outer_one)
        await hub.forget("s")
    assert ("inner", "x speaks") in await talk(session)
    assert (await hub.get("s")) is session

    await hub.forget("s")

    await check_nothing_is_left(hub, log_url)


async def test_a_session_goes_on_that_could_not_be_forgotten(
    opened: OpenHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise ConnectionError

    gate = Gate()
    hub = await opened(gate.team())
    session = await hub.session("desk")
    await session.send("user", "go")
    await gate.reached()
    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(hub.log, "forget", fail)
        await hub.forget(session.id)
    await settled(session)
    assert (await talk(session))[-1] == ("a", "done")


@pytest.mark.parametrize("log_url", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("damage", ["envelope", "record", "code"])
async def test_a_session_in_quarantine_is_forgotten(
    log_url: str, opened: OpenHub, damage: str
) -> None:
    async with await Hub.open(log_url, serve=[team := desk()]) as hub:
        await after(await hub.session(team, id="s"), "user", "go")
    if damage == "record":
        await Rows(log_url).run("UPDATE agentgraph_sessions SET record = '{'")
    if damage == "envelope":
        await Rows(log_url).run("DELETE FROM agentgraph_envelopes WHERE sequence = 2")
    hub = await opened(*([] if damage == "code" else [team]))
    session = await hub.get("s")
    await hub.forget("s")
    await check_nothing_is_left(hub, log_url)
    await check_handle(session)
