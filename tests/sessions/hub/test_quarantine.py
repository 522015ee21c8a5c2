"""A damaged record stops its own session and no other, until the record is whole again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from agentgraph import Team
from agentgraph.errors import Quarantined, SessionClosed
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionGraph,
    default_registry,
    register_condition,
)
from agentgraph.sessions import (
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    EV_SESSION_LEFT,
    FullTranscript,
    Hub,
    Session,
)
from agentgraph.sessions.state import state as states
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import FakeClock
from tests.sessions.talk import after, agent, of_type, settled, talk, until

ANSWERS = TransitionGraph("a", (Transition(FromSpeaker("user"), "a"),), HumanTarget())


@dataclass(frozen=True)
class Rows:
    """The rows of a session, which a test damages and restores."""

    url: str

    async def run(self, query: str, *values: object) -> list[Any]:
        """Run a statement in a thread: a lock that it waits for may be the hub's own."""
        return await asyncio.to_thread(self._run, query, values)

    def _run(self, query: str, values: Sequence[object]) -> list[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=20)) as file:
                rows = file.execute(query, values).fetchall()
                file.commit()
                return rows
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.replace("?", "%s").encode(), values)
            return cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def damaged(self, session_id: str, sequence: int, kind: str) -> AsyncIterator[None]:
        """Damage an envelope, and restore it afterwards."""
        where = "FROM agentgraph_envelopes WHERE session_id = ? AND sequence = ?"
        columns = "session_id, sequence, envelope_id, said, data"
        (row,) = await self.run(f"SELECT {columns} {where}", session_id, sequence)
        await self.run(f"DELETE {where}", session_id, sequence)
        insert = f"INSERT INTO agentgraph_envelopes ({columns}) VALUES (?, ?, ?, ?, ?)"
        if kind == "torn":
            await self.run(insert, *row[:-1], row[-1][: len(row[-1]) // 2])
        if kind == "altered":
            altered = row[-1].replace('"sender_id":"', '"sender_id":"x')
            assert altered != row[-1]
            await self.run(insert, *row[:-1], altered)
        yield
        await self.run(f"DELETE {where}", session_id, sequence)
        await self.run(insert, *row)

    @asynccontextmanager
    async def column(
        self, name: str, session_id: str, change: Callable[[str], str]
    ) -> AsyncIterator[None]:
        """Damage a column of the session's own row, and restore it afterwards."""
        query = f"SELECT {name} FROM agentgraph_sessions WHERE session_id = ?"
        update = f"UPDATE agentgraph_sessions SET {name} = ? WHERE session_id = ?"
        ((text,),) = await self.run(query, session_id)
        await self.run(update, change(text), session_id)
        yield
        await self.run(update, text, session_id)


@pytest.fixture(autouse=True)
def _milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short sessions have milestones, which must hide no damage."""
    monkeypatch.setattr(states, "MILESTONE_EVERY", 3)


@pytest.fixture(params=["sqlite", "postgres"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Rows:
    if request.param == "sqlite":
        return Rows(f"sqlite:///{tmp_path / 'sessions.db'}")
    return Rows(str(request.getfixturevalue("postgres").url))


def team_of(name: str = "team") -> Team:
    return Team([agent("a")], ANSWERS, name=name, view=FullTranscript())


async def whole(session: Session) -> None:
    """Check that a session's log is whole, and folds to its state."""
    history = await session.history()
    assert [one.sequence for one in history] == [*range(1, len(history) + 1)]
    refolded = fold_all(SessionState.initial(session.record), history)
    assert refolded == await session.refresh()
    assert not [one for one in history if one.event_type == EV_ROUND_FAILED]


@pytest.mark.parametrize("kind", ["torn", "altered", "missing"])
async def test_each_row_in_turn_stops_its_session_until_it_is_restored(
    rows: Rows, kind: str
) -> None:
    team = team_of()
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session, other = await hub.session(team), await hub.session(team)
        for one in (session, other):
            await after(one, "user", "first", "second")
        count = session.state.sequence
        turns = session.state.turn_count
        for sequence in range(1, count + 1):
            async with rows.damaged(session.id, sequence, kind):
                for ask in (session.history, session.history):
                    with pytest.raises(Quarantined, match=f"sequence {sequence} "):
                        await ask()
                assert "cannot be read" in str(session.quarantine)
                with pytest.raises(Quarantined, match=f"sequence {sequence} "):
                    await session.send("user", "unheard")
                with pytest.raises(Quarantined, match=f"sequence {sequence} "):
                    await settled(session)
                await after(other, "user", "more")
            await after(session, "user", f"third {sequence}")
            assert session.quarantine is None
        assert session.state.turn_count > turns
        assert "unheard" not in dict(await talk(session)).values()
        await whole(session)
        await whole(other)


@pytest.mark.parametrize("kind", ["torn", "altered", "missing"])
async def test_each_row_in_turn_is_found_by_a_hub_that_takes_the_session(
    rows: Rows, kind: str
) -> None:
    team = team_of()
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session_id = (session := await hub.session(team)).id
        await after(session, "user", "first")
        count = session.state.sequence
    for sequence in range(1, count + 1):
        async with await Hub.open(rows.url, serve=[team], clock=FakeClock(1_700_000_000)) as hub:
            async with rows.damaged(session_id, sequence, kind):
                session = await hub.get(session_id)
                with pytest.raises(Quarantined, match=f"sequence {sequence} "):
                    await settled(session)
            assert (await settled(session)).status == "waiting_human"
            await whole(session)


async def test_a_damaged_row_under_a_round_fails_no_round(rows: Rows) -> None:
    team = team_of()
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session = await hub.session(team)
        await after(session, "user", "first")
        async with rows.damaged(session.id, 2, "torn"):
            await session.send("user", "second")  # nobody has met the damage yet
            with pytest.raises(Quarantined, match="sequence 2 "):
                await settled(session)
            assert (await session.refresh()).status == "active"
        assert (await settled(session)).status == "waiting_human"
        assert [text for _, text in await talk(session)][-2:] == ["second", "a speaks"]
        await whole(session)


async def test_it_goes_on_by_itself_once_the_row_is_restored(rows: Rows) -> None:
    team, clock = team_of(), FakeClock(1_700_000_000)
    async with await Hub.open(rows.url, serve=[team], clock=clock) as hub:
        session = await hub.session(team, ttl=None, expectations=[])
        await after(session, "user", "first")
        async with rows.damaged(session.id, 2, "torn"):
            await session.send("user", "second")
            with pytest.raises(Quarantined):
                await settled(session)

        async def is_answered() -> bool:
            if session.quarantine is not None:  # then no round runs, whose deadline could end
                clock.advance(1)
            return (await session.refresh()).status == "waiting_human"

        await until(is_answered)
        await until(lambda: session.quarantine is None)
        await whole(session)


@pytest.mark.parametrize("kind", ["torn", "altered", "missing"])
@pytest.mark.parametrize("place", ["first", "last"])
async def test_it_can_be_closed_left_and_forked_before_the_damage(
    rows: Rows, kind: str, place: str
) -> None:
    team = Team([agent("a")], ANSWERS, humans=["guest"], view=FullTranscript())
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session = await hub.session(team)
        await session.join("guest")
        await after(session, "user", "first")
        last = session.state.sequence
        sequence = 3 if place == "first" else last
        async with rows.damaged(session.id, sequence, kind):
            with pytest.raises(Quarantined):
                await session.history()
            await session.leave("guest")
            assert "guest" not in (await session.refresh()).participant_order
            fork = await session.fork(sequence - 1)
            assert len(await fork.history()) >= sequence - 1
            with pytest.raises(Quarantined, match=f"sequence {sequence} "):
                await session.fork(sequence)
            await session.close("operator")
            assert (await session.refresh()).pending_close_reason == "operator"
            with pytest.raises(SessionClosed):
                await session.send("user", "too late")

            async def is_released() -> bool:
                return session.id not in await hub.log.unfinished_sessions(0.0)

            await until(is_released)
        await whole(session)
        ends = await of_type(session, EV_SESSION_LEFT, EV_SESSION_CLOSED)
        assert [one.event_type for one in ends] == [EV_SESSION_LEFT, EV_SESSION_CLOSED]


async def test_it_expires_in_its_time(rows: Rows) -> None:
    team, clock = team_of(), FakeClock(1_700_000_000)
    async with await Hub.open(rows.url, serve=[team], clock=clock) as hub:
        session = await hub.session(team, ttl=100)
        await after(session, "user", "first")
        async with rows.damaged(session.id, 2, "missing"):
            with pytest.raises(Quarantined):
                await session.history()

            async def is_ended() -> bool:
                clock.advance(10)
                return (await session.refresh()).is_ended

            await until(is_ended)
        assert await of_type(session, EV_SESSION_EXPIRED)
        await whole(session)


@pytest.mark.parametrize("name", ["record", "snapshot"])
async def test_its_own_row_is_checked_too(rows: Rows, name: str) -> None:
    team = team_of()
    changes = [lambda text: text[:40], lambda text: text.replace('"a"', '"b"', 1)]
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session = await hub.session(team)
        await after(session, "user", "first")
        state = session.state
    for change in changes:
        async with await Hub.open(rows.url, serve=[team]) as hub:
            async with rows.column(name, session.id, change):
                here = await hub.get(session.id)
                if name == "snapshot":  # the log has all of it
                    assert (await here.refresh()) == state
                else:
                    with pytest.raises(Quarantined, match="its record"):
                        await settled(here)
                    with pytest.raises(Quarantined, match="its record"):
                        await here.send("user", "unheard")
            assert (await settled(here)) == state
            await whole(here)


OF_A_FORK: dict[str, Any] = {"session_id": "", "last_envelope_id": "", "updated_at": ""}
"""What each fork has of its own."""


@pytest.mark.parametrize("kind", ["torn", "altered", "missing"])
async def test_a_damaged_milestone_changes_nothing_that_users_see(rows: Rows, kind: str) -> None:
    changes = {
        "torn": "snapshot = substr(snapshot, 1, 99)",
        "altered": """snapshot = replace(snapshot, '"creator_id":"user"', '"creator_id":"a"')""",
    }
    team = team_of()
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session = await hub.session(team)
        for text in ("first", "second", "third"):
            await after(session, "user", text)
        state, history = session.state, await session.history()
        explanations = [str(await session.explain(one.sequence)) for one in history]
        prefixes = [(await session.fork(one.sequence)).state for one in history]
    stored = await rows.run(
        "SELECT sequence FROM agentgraph_milestones WHERE session_id = ?", session.id
    )
    assert len(stored) > 1
    for (sequence,) in stored:
        where = "agentgraph_milestones WHERE session_id = ? AND sequence = ?"
        ((text,),) = await rows.run(f"SELECT snapshot FROM {where}", session.id, sequence)
        query = where.replace(" ", f" SET {changes[kind]} ", 1) if kind in changes else where
        await rows.run(
            f"{'UPDATE' if kind in changes else 'DELETE FROM'} {query}", session.id, sequence
        )
        assert await rows.run(f"SELECT snapshot FROM {where}", session.id, sequence) != [(text,)]
        async with (
            await Hub.open(rows.url, serve=[team]) as hub,
            rows.column("snapshot", session.id, lambda text: text[:40]),
        ):
            here = await hub.get(session.id)
            assert here.state == state and await here.history() == history
            for one, explanation, prefix in zip(history, explanations, prefixes, strict=True):
                assert str(await here.explain(one.sequence)) == explanation
                fork = (await here.fork(one.sequence)).state
                assert replace(fork, **OF_A_FORK) == replace(prefix, **OF_A_FORK)
            assert await settled(here) == state
    async with await Hub.open(rows.url, serve=[team]) as hub:
        here = await hub.get(session.id)
        await here.rewind(stored[0][0] + 1)
        await after(here, "user", "fourth")
        await whole(here)


async def test_a_session_whose_own_record_is_damaged_can_be_closed(rows: Rows) -> None:
    team = team_of()
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session = await hub.session(team)
        await after(session, "user", "first")
    async with await Hub.open(rows.url, serve=[team]) as hub:
        async with rows.column("record", session.id, lambda text: text[:40]):
            here = await hub.get(session.id)
            await here.close("operator")
            assert (await here.refresh()).is_ended
        await whole(await hub.get(session.id))


@dataclass(frozen=True)
class OnTuesdays:
    """A condition that a process may lack."""

    name: ClassVar[str] = "on_tuesdays"

    def evaluate(self, state: Any, envelope: Any) -> bool:
        return bool(envelope.sender_id == "user")


async def test_an_old_handle_goes_on_once_a_condition_is_registered(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dict(default_registry().conditions)
    monkeypatch.setattr(default_registry(), "_conditions", known)
    register_condition(OnTuesdays)
    rules = TransitionGraph("a", (Transition(OnTuesdays(), "a"),), HumanTarget())
    first = Team([agent("a")], rules, name="team")
    async with await Hub.open(rows.url, serve=[first]) as hub:
        session_id = (session := await hub.session(first)).id
        await after(session, "user", "first")
    del known["on_tuesdays"]
    async with await Hub.open(rows.url, serve=[team_of()]) as hub:
        session = await hub.get(session_id)
        for refused in (session.send("user", "unheard"), settled(session)):
            with pytest.raises(Quarantined, match="on_tuesdays"):
                await refused
        fork = await session.fork(1)
        assert fork.state.sequence == 1
        register_condition(OnTuesdays)
        assert session.quarantine is None
        state = await after(session, "user", "second")
        assert state.turn_count == 3
        del known["on_tuesdays"]
        fork_id = fork.id
    async with await Hub.open(rows.url, serve=[team_of()]) as hub:
        fork = await hub.get(fork_id)
        await fork.close("operator")
        assert (await fork.refresh()).pending_close_reason == "operator"


async def test_a_store_of_before_has_no_checksums_and_opens(rows: Rows) -> None:
    team = team_of()
    async with await Hub.open(rows.url, serve=[team]) as hub:
        session = await hub.session(team)
        await after(session, "user", "first")
        state = session.state

    def without(text: str) -> str:
        return "{" + text.partition(",")[2] if text.startswith('{"checksum"') else text

    for table, column in (
        ("envelopes", "data"),
        ("sessions", "record"),
        ("sessions", "snapshot"),
    ):
        found = await rows.run(f"SELECT {column} FROM agentgraph_{table}")
        assert found
        for (text,) in found:
            assert without(text) != text
            query = f"UPDATE agentgraph_{table} SET {column} = ? WHERE {column} = ?"
            await rows.run(query, without(text), text)
    async with await Hub.open(rows.url, serve=[team]) as hub:
        here = await hub.get(session.id)
        assert here.state == state
        await after(here, "user", "second")
        await whole(here)
