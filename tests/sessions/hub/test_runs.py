"""Runs: what becomes of an input, and how one run is ended and no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agentgraph import Agent, FromSpeaker, Hub, HumanTarget, Session, Team, Transition
from agentgraph.errors import SessionError
from agentgraph.routing import TransitionGraph
from agentgraph.sessions.envelopes.envelope import EV_WITHDRAWN
from agentgraph.sessions.hub.run import Run, RunStatus
from agentgraph.testing import Fault, ScriptedModel, call
from tests.postgres import Database
from tests.sessions.talk import PATIENCE_S, until

Two = tuple[Hub, Hub]


class Gate:
    """A tool that holds a run up."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def wait(self) -> str:
        """Wait."""
        self.begun.set()
        await self.go.wait()
        return "waited"


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(params=["sqlite", "postgres"])
async def two(request: pytest.FixtureRequest, tmp_path: Path, gate: Gate) -> AsyncIterator[Two]:
    """Open two hubs on one store: the first one drives."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/a.db"
    else:
        database: Database = request.getfixturevalue("postgres")
        url = database.url
    async with AsyncExitStack() as stack:
        hubs = [
            await stack.enter_async_context(await Hub.open(url, serve=[solo(gate)]))
            for _ in range(2)
        ]
        yield hubs[0], hubs[1]


def solo(gate: Gate) -> Agent:
    def turn(messages: object) -> object:
        text = str(messages[-1].text)  # type: ignore[index]
        if text == "fail":
            return Fault.server_error()
        return call("wait") if text.endswith("wait") else f"answer to {text}"

    model = ScriptedModel(turn)  # type: ignore[arg-type]
    return Agent("a", model=model, tools=[gate.wait], default_tools=False, guards=None)


async def statuses(session: Session, *ids: str) -> list[RunStatus]:
    return [(await session.run(id)).status for id in ids]


async def ended(session: Session, id: str) -> Run:
    async def has_ended() -> bool:
        return (await session.run(id)).has_ended

    await until(has_ended)
    return await session.run(id)


async def test_a_queued_run_is_pending_then_runs_on_every_hub(two: Two, gate: Gate) -> None:
    session = await two[0].session("a")
    there = await two[1].get(session.id)
    first = (await session.send("user", "wait")).id
    async with asyncio.timeout(PATIENCE_S):
        await gate.begun.wait()
        second = (await there.send("user", "second")).id
        for handle in (session, there):
            assert await statuses(handle, first, second) == ["running", "pending"]
            assert [run.id for run in await handle.runs()] == [second, first]
        assert (await there.run(second)).ended_at is None
        gate.go.set()
        run = await ended(there, second)
        assert (run.status, run.ended_at is not None) == ("success", True)
        assert await statuses(there, first) == ["success"]
        assert (await there.answer(second)).text == "answer to second"


async def test_what_waits_is_withdrawn_and_nothing_else(two: Two, gate: Gate) -> None:
    session = await two[0].session("a")
    there = await two[1].get(session.id)
    first = (await session.send("user", "wait")).id
    async with asyncio.timeout(PATIENCE_S):
        await gate.begun.wait()
        second = (await session.send("user", "second")).id
        third = (await session.send("user", "third")).id
        waiting = asyncio.create_task(session.answer(second))
        run = await there.cancel_run(second, "not that")
        assert (run.status, run.ended_at is not None) == ("cancelled", True)
        assert await statuses(there, first, third) == ["running", "pending"]
        lost = await waiting
        assert (lost.text, lost.close_reason) == ("", "cancelled")
        gate.go.set()
        assert (await session.answer(third)).text == "answer to third"
    assert await statuses(session, first, second, third) == ["success", "cancelled", "success"]
    (note,) = [e for e in await session.history() if e.event_type == EV_WITHDRAWN]
    assert (note.envelope_id, note.event_data["reason"]) == (second, "not that")
    assert [run.status for run in await there.runs()] == ["success", "cancelled", "success"]


async def test_a_run_under_way_is_cancelled_and_the_next_one_goes_on(two: Two, gate: Gate) -> None:
    session = await two[0].session("a")
    there = await two[1].get(session.id)
    first = (await session.send("user", "wait")).id
    async with asyncio.timeout(PATIENCE_S):
        await gate.begun.wait()
        second = (await session.send("user", "second")).id
        assert (await there.cancel_run(first)).status == "cancelled"
        assert (await there.answer(second)).text == "answer to second"
        # It has ended: to cancel it again hits nobody.
        gate.begun.clear()
        third = (await session.send("user", "wait")).id
        await gate.begun.wait()
        assert (await there.cancel_run(first)).status == "cancelled"
        assert (await there.cancel_run(second)).status == "success"
        assert await statuses(there, third) == ["running"]


async def test_either_the_run_or_its_withdrawal_wins(two: Two, gate: Gate) -> None:
    gate.go.set()
    session = await two[0].session("a")
    there = await two[1].get(session.id)
    async with asyncio.timeout(PATIENCE_S):
        for n in range(12):
            first = await session.send("user", f"first {n}")
            second = await there.send("user", f"second {n}")
            run = await there.cancel_run(second.id)
            answer = await there.answer(second.id)
            assert (await session.answer(first.id)).text == f"answer to first {n}"
            if run.status == "success":
                assert answer.text == f"answer to second {n}"
            else:
                assert (run.status, answer.close_reason) == ("cancelled", "cancelled")


async def test_a_failed_run_says_why_to_those_who_may_see_it(two: Two) -> None:
    session = await two[0].session("a")
    id = (await session.send("user", "fail")).id
    async with asyncio.timeout(PATIENCE_S):
        run = await ended(await two[1].get(session.id), id)
    assert run.status == "error"
    assert run.error is not None and run.error.code == "model"
    assert run.ended_at is not None


async def test_an_interjection_is_no_run_to_cancel(gate: Gate) -> None:
    agent = solo(gate)
    rules = TransitionGraph("a", [Transition(FromSpeaker("human"), "a")], HumanTarget())
    team = Team([agent], rules, humans=["ann"], name="t")
    async with await Hub.open(serve=[team]) as hub, asyncio.timeout(PATIENCE_S):
        session = await hub.session(team)
        await session.join("ann")
        first = (await session.send("user", "wait")).id
        await gate.begun.wait()
        aside = (await session.send("ann", "hm")).id
        run = await session.cancel_run(aside)
        assert run.status == "cancelled"
        assert await statuses(session, first) == ["running"]
        with pytest.raises(SessionError) as failure:
            await session.cancel_run("nobody's")
        assert failure.value.code == "unknown_run"


async def test_what_waits_as_the_session_closes_is_cancelled(gate: Gate) -> None:
    async with await Hub.open(serve=[solo(gate)]) as hub, asyncio.timeout(PATIENCE_S):
        session = await hub.session("a")
        first = (await session.send("user", "wait")).id
        await gate.begun.wait()
        second = (await session.send("user", "second")).id
        await session.close()
        assert (await statuses(session, second)) == ["cancelled"]
        assert (await session.run(first)).has_ended
