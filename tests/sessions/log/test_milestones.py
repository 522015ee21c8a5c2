"""The states that a log stores every so often, from which those between them are folded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.errors import RoundConflict, StaleOwner
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions import Hub, Team
from agentgraph.sessions.envelopes.envelope import EV_CONTEXT_SET, Envelope
from agentgraph.sessions.log import Log, MemoryLog, StoredSession
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.postgres import connection as postgres_connection
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.log.sqlite import file as sqlite_file
from agentgraph.sessions.log.sqlite.file import SessionFile
from agentgraph.sessions.log.tables import POSTGRES, SQLITE
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.rounds.owned_session import load_state
from agentgraph.sessions.state import state as states
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.state import SessionState, is_milestone_due
from agentgraph.testing import FakeClock
from tests.sessions import talk
from tests.sessions.conftest import OpenLog
from tests.sessions.log.sessions_to_store import Writer, envelope, note, record
from tests.sessions.talk import agent

EVERY = 5
STORES = pytest.mark.parametrize("log_url", ["sqlite", "postgres"], indirect=True)
"""The stores whose rows can be altered, and that outlive a process."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MILESTONE_EVERY", EVERY)


class CountingLog(MemoryLog):
    """A log that counts the envelopes that are read, and can lose its snapshots."""

    count = 0
    has_snapshots = True

    async def load(self, session_id: str) -> StoredSession | None:
        stored = await super().load(session_id)
        if stored is None or self.has_snapshots:
            return stored
        return replace(stored, state=None)

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        envelopes = await super().read(session_id, after, limit)
        self.count += len(envelopes)
        return envelopes


def run(url: str, query: str, *values: object) -> list[Any]:
    """Run a statement in the store, past the log."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)) as file:
            rows = file.execute(query, values).fetchall()
            file.commit()
            return rows
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []


async def milestones(log: Log, head: int, session_id: str = "s") -> list[int]:
    """Return the sequences of a session's milestones."""
    states = [await log.milestone(session_id, at) for at in range(head + 1)]
    return sorted({state.sequence for state in states if state is not None})


def after(writer: Writer, sequence: int) -> SessionState:
    """Return what the envelopes up to a sequence fold to, from the first one on."""
    return fold_all(SessionState.initial(writer.record), writer.envelopes[:sequence])


async def write(log: Log, sizes: Sequence[int]) -> Writer:
    """Append so many envelopes at a time."""
    writer = await Writer(log).begin()
    for size in sizes:
        head = writer.head
        new = range(head + 1, head + size + 1)
        await writer.add(*(note(n) if n % 4 == 0 else envelope(n) for n in new))
    return writer


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1,) * 12, [5, 10]),
        ((3, 3, 3, 3, 3), [6, 12, 15]),
        ((4, 0, 0), []),
        ((4, 13, 2, 1), [17, 20]),  # several multiples, and one milestone
        ((5, 0, 5), [5, 10]),
    ],
)
async def test_append_that_reaches_a_multiple_stores_the_state_after_it(
    opened: OpenLog, sizes: Sequence[int], expected: list[int]
) -> None:
    writer = await write(await opened(), sizes)

    log = await opened()

    assert await milestones(log, writer.head + 9) == expected
    for sequence in expected:
        assert await log.milestone("s", sequence) == after(writer, sequence)
        assert await log.milestone("s", sequence + 1) == after(writer, sequence)
    assert await log.milestone("s", 0) is None
    assert await log.milestone("s", -1) is None


async def test_state_at_each_sequence_is_what_the_envelopes_up_to_it_fold_to(log: Log) -> None:
    writer = await write(log, (1, 2, 6, 1, 13, 4, 1))

    for sequence in range(writer.head + 1):
        assert await state_at(log, writer.record, sequence) == after(writer, sequence)


async def test_state_that_is_folded_from_stored_envelopes_is_frozen_all_the_way_down(
    log: Log,
) -> None:
    values = {"set": {"order": {"items": ["A17"]}}}
    said = replace(envelope(2), event_type=EV_CONTEXT_SET, event_data=values)
    writer = await Writer(log).begin(envelope(1), said)

    state = await state_at(log, writer.record, 2)

    context: Any = state.context_vars
    assert context["order"] == {"items": ["A17"]}
    with pytest.raises(TypeError, match="cannot be changed"):
        context["tier"] = "none"
    with pytest.raises(TypeError, match="cannot be changed"):
        context["order"]["items"] = []
    with pytest.raises(TypeError, match="cannot be changed"):
        context["order"]["items"].append("B4")


async def test_session_that_begins_with_many_envelopes_has_a_milestone(log: Log) -> None:
    writer = await Writer(log).begin(*(envelope(n) for n in range(1, 13)))
    await Writer(log, "t").begin(*(envelope(n, session_id="t") for n in range(1, 5)))

    assert await milestones(log, 20) == [12]
    assert await log.milestone("s", 12) == writer.state
    assert await milestones(log, 20, "t") == []


async def test_append_that_is_refused_stores_no_milestone(log: Log) -> None:
    writer = await write(log, (4,))
    former = await log.claim("s", "former", 0)
    await log.claim("s", "present", 0)

    with pytest.raises(RoundConflict):
        await log.append("s", [envelope(5)], 3, writer.state)
    with pytest.raises(StaleOwner):
        await writer.add(envelope(5), epoch=former)

    assert await milestones(log, 9) == []


async def test_forgotten_session_leaves_no_milestone_to_a_later_one_of_its_id(
    log: Log, log_url: str
) -> None:
    await write(log, (6,))
    await Writer(log, "t").begin(*(envelope(n, session_id="t") for n in range(1, 8)))

    await log.forget("s", 0)

    if log_url != "memory":
        rows = run(log_url, "SELECT session_id, sequence FROM agentgraph_milestones")
        assert rows == [("t", 7)]
    await write(log, (1, 1))
    assert await milestones(log, 9) == []
    assert await milestones(log, 9, "t") == [7]


def _torn(text: str) -> str:
    return text[: len(text) // 2]


def _altered(text: str) -> str:
    altered = text.replace('"creator_id":"user"', '"creator_id":"else"')
    assert altered != text
    return altered


def _of_another(text: str) -> str:
    return str(r.state_columns(SessionState.initial(record("t")), None)["snapshot"])


@STORES
@pytest.mark.parametrize(
    "change", [_torn, _altered, _of_another, lambda text: "ü", lambda text: ""]
)
async def test_damaged_milestone_is_passed_over(opened: OpenLog, log_url: str, change: Any) -> None:
    log = await opened()
    writer = await write(log, (1,) * 18)
    where = "WHERE session_id = 's' AND sequence = ?"
    for sequence, earlier in ((10, 5), (15, 5), (5, None)):
        ((text,),) = run(log_url, f"SELECT snapshot FROM agentgraph_milestones {where}", sequence)
        run(
            log_url,
            f"UPDATE agentgraph_milestones SET snapshot = ? {where}",
            change(text),
            sequence,
        )
        for reader in (log, await opened()):
            state = await reader.milestone("s", sequence)
            assert (state and state.sequence) == earlier
            for place in (sequence - 1, sequence, sequence + 1, 18):
                assert await state_at(reader, writer.record, place) == after(writer, place)


@STORES
async def test_damage_before_a_milestone_is_noticed_by_who_reads_it(log: Log, log_url: str) -> None:
    writer = await write(log, (1,) * 12)
    run(log_url, "UPDATE agentgraph_sessions SET snapshot = NULL")
    for sequence in range(1, 13):
        query = "UPDATE agentgraph_envelopes SET data = ? WHERE sequence = ?"
        text = r.envelope_rows([writer.envelopes[sequence - 1]], sequence - 1)[0].data
        run(log_url, query, text[:-9], sequence)
        stored = await log.load("s")
        assert stored is not None and stored.state is None
        with pytest.raises(DamagedSession) as caught:
            await log.read("s")
        assert caught.value.sequence == sequence
        if sequence <= 10:
            assert await load_state(log, stored) == writer.state
        else:
            with pytest.raises(DamagedSession):
                await load_state(log, stored)
        run(log_url, query, text, sequence)
    assert await log.read("s") == writer.envelopes


async def test_state_at_a_sequence_reads_no_more_than_what_follows_a_milestone() -> None:
    log = CountingLog()
    writer = await write(log, (1,) * 200)

    for sequence in (0, 4, 5, 6, 103, 199, 200):
        log.count = 0
        await state_at(log, writer.record, sequence)
        assert log.count == sequence % EVERY


async def test_who_asks_for_the_past_of_a_long_session_has_little_of_it_read() -> None:
    log, saver = CountingLog(), InMemorySaver()
    rules = TransitionGraph("a", (Transition(FromSpeaker("user"), "a"),), HumanTarget())
    team = Team([agent("a", *["yes"] * 150)], rules, name="team")
    async with Hub(log, saver, [team], 30.0) as hub:
        await hub.start(FakeClock())
        session = await hub.session("team", id="s")
        for _ in range(120):
            await talk.after(session, "user", "more")
        end = session.state.sequence
        assert end > 200
        for sequence in (3, 104, 105, 106, end):
            log.count = 0
            explanation = await session.explain(sequence)
            assert explanation.envelope.sequence == sequence
            assert log.count <= EVERY
        log.count = 0
        await session.rewind(end - 4)
        await talk.settled(session)
        assert log.count < 60  # with what follows it, and what the speaker is shown
    log.has_snapshots, log.count = False, 0
    async with Hub(log, saver, [team], 30.0) as hub:
        await hub.start(FakeClock())
        again = await hub.get("s")
        assert log.count < EVERY
        assert again.state == fold_all(SessionState.initial(again.record), await log.read("s"))


async def test_log_without_milestones_is_folded_from_its_first_envelope() -> None:
    class PlainLog(CountingLog):
        async def milestone(self, session_id: str, at: int) -> None:
            return None

    log = PlainLog()
    writer = await write(log, (1,) * 20)

    assert await state_at(log, writer.record, 13) == after(writer, 13)
    assert log.count == 13


@STORES
async def test_session_of_a_store_without_milestones_gets_them_as_it_goes_on(
    opened: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(states, "MILESTONE_EVERY", 10_000)
        for module, name, migrations in (
            (sqlite_file, "SQLITE", SQLITE),
            (postgres_connection, "POSTGRES", POSTGRES),
        ):
            before.setattr(module, name, migrations[:3])
        log = await opened()
        writer = await write(log, (12,))
        await log.close()

    log = await opened()

    assert await state_at(log, writer.record, 11) == after(writer, 11)
    assert await milestones(log, 12) == []
    writer.log = log
    await writer.say(3)
    assert await milestones(log, 20) == [15]
    assert await log.milestone("s", 15) == writer.state


def test_append_that_reaches_no_multiple_asks_nothing_of_milestones(tmp_path: Path) -> None:
    statements: list[str] = []
    file = SessionFile(str(tmp_path / "sessions.db"))
    file.connection.set_trace_callback(statements.append)
    made, said = record(), [envelope(n) for n in range(1, 11)]
    state = SessionState.initial(made)
    columns = {**r.record_columns(made), **r.state_columns(state, None)}
    file.create(columns, [], {}, (), None, None)
    for head in range(10):
        state = fold_all(state, said[head : head + 1])
        values = {"head": head, "count": 1, "said": 1, "epoch": None, "attempts": None}
        columns = {**r.state_columns(state, None), **values}
        statements.clear()
        file.append("s", columns, r.envelope_rows(said[head : head + 1], head), {}, (), {})
        assert any("milestones" in text for text in statements) == is_milestone_due(head, 1)
    file.close()


async def test_appends_at_once_store_one_milestone_of_the_one_that_wins(opened: OpenLog) -> None:
    first = await write(await opened(), (4,))
    second = Writer(await opened())
    second._grow(first.envelopes)

    results = await asyncio.gather(
        first.add(envelope(5, envelope_id="x")),
        second.add(envelope(5, envelope_id="y")),
        return_exceptions=True,
    )

    (winner,) = [
        writer for writer, result in zip((first, second), results, strict=True) if result is None
    ]
    assert await winner.log.milestone("s", 9) == winner.state
