"""Sessions in a database whose server ends connections, and which other processes use too."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from agentgraph.errors import (
    Quarantined,
    RoundConflict,
    SessionClosed,
    SessionError,
    StorageError,
)
from agentgraph.sessions.log import InboxConflict
from agentgraph.sessions.log.postgres import connection as postgres_connection
from agentgraph.sessions.log.postgres import listener as postgres_listener
from agentgraph.sessions.log.postgres.log import CONNECTIONS, PostgresLog
from agentgraph.sessions.log.tables import POSTGRES
from agentgraph.storage import LazySaver, open_saver
from tests.postgres import PASSWORD, SUPERUSER, Database, Server
from tests.sessions.log.sessions_to_store import PATIENCE_S, Heard, Writer, envelope, note, waiting

BOUND_S = 20


@pytest.fixture
async def log(postgres: Database) -> AsyncIterator[PostgresLog]:
    log = PostgresLog(postgres.url)
    await log.open()
    yield log
    await log.close()


def execute(postgres: Database, query: str, *values: object) -> list[Any]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []


async def fill(log: PostgresLog) -> None:
    """Open as many connections as there may be."""
    await asyncio.gather(*(log.unfinished_sessions(0) for _ in range(50)))


async def test_connections_killed_between_calls_cost_nothing(
    log: PostgresLog, postgres: Database
) -> None:
    writer = await Writer(log).begin()
    await fill(log)
    for _ in range(3):
        assert postgres.kill_connections() > 0
        await writer.say()

    assert await log.read("s") == writer.envelopes
    await fill(log)
    assert postgres.connections() <= CONNECTIONS


async def kill_in_the_middle(
    postgres: Database, table: str, work: Callable[[], Awaitable[Any]]
) -> Any:
    """End the connection of a call while it waits for a table."""
    with psycopg.connect(postgres.url) as held:
        held.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        working = asyncio.ensure_future(work())
        await postgres.blocked()
        # No other: the next attempt would be on one of those.
        query = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        query += "WHERE datname = %s AND wait_event_type = 'Lock'"
        assert await asyncio.to_thread(postgres.execute, query, postgres.name) == [(True,)]
        held.close()
    return await working


async def test_append_cut_off_is_made_once(log: PostgresLog, postgres: Database) -> None:
    writer = await Writer(log).begin()
    await log.enqueue("s", waiting("w"))

    await kill_in_the_middle(
        postgres,
        "agentgraph_envelopes",
        lambda: writer.add(envelope(1), note(2), taken=["w"]),
    )

    assert await log.read("s") == writer.envelopes
    assert await log.inbox("s") == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_put_cut_off_is_made_once(
    log: PostgresLog, postgres: Database, key: str | None
) -> None:
    await Writer(log).begin()

    found = await kill_in_the_middle(
        postgres, "agentgraph_inbox", lambda: log.enqueue("s", waiting("w", key=key))
    )

    assert found == "w"
    assert [one.envelope_id for one in await log.inbox("s")] == ["w"]


def lose_answer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let something happen, and its answer be lost."""
    original = getattr(postgres_connection.LogConnection, name)
    lost: list[str] = []

    async def done_but_lost(*arguments: Any) -> Any:
        result = await original(*arguments)
        if not lost:
            lost.append(name)
            raise psycopg.OperationalError("the server went away")
        return result

    monkeypatch.setattr(postgres_connection.LogConnection, name, done_but_lost)


@pytest.mark.parametrize("closing", [False, True])
async def test_append_whose_answer_is_lost_is_not_made_twice(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch, closing: bool
) -> None:
    writer = await Writer(log).begin()
    lose_answer(monkeypatch, "append")

    await writer.add(envelope(1), note(2), closing=closing)

    assert await log.read("s") == writer.envelopes


async def test_append_that_was_lost_yields_to_one_made_meanwhile(
    log: PostgresLog, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_log = PostgresLog(postgres.url)
    await other_log.open()
    writer, rival = await Writer(log).begin(), Writer(other_log)
    original = postgres_connection.LogConnection.append

    async def beaten(*arguments: Any) -> None:
        monkeypatch.setattr(postgres_connection.LogConnection, "append", original)
        await rival.add(envelope(1, sender="b"))
        raise psycopg.OperationalError("the server went away")

    monkeypatch.setattr(postgres_connection.LogConnection, "append", beaten)

    with pytest.raises(RoundConflict, match="'s' is at 1"):
        await writer.add(envelope(1))

    assert await log.read("s") == rival.envelopes
    await other_log.close()


@pytest.mark.parametrize("key", [None, "k"])
async def test_put_whose_answer_is_lost_is_not_made_twice(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    await Writer(log).begin()
    lose_answer(monkeypatch, "enqueue")

    assert await log.enqueue("s", waiting("w", key=key)) == "w"

    assert [one.envelope_id for one in await log.inbox("s")] == ["w"]


async def test_attempt_whose_answer_is_lost_is_not_counted_twice(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Writer(log).begin()
    assert await log.claim("s", "a", 0) == 1
    lose_answer(monkeypatch, "ask")

    with pytest.raises(StorageError, match="lost or is out of reach"):
        await log.attempt("s", 1)

    assert await log.attempt("s", 1) == 2


async def test_cancelled_append_is_whole_or_nothing(log: PostgresLog, postgres: Database) -> None:
    writer = await Writer(log).begin()
    await log.enqueue("s", waiting("w"))
    with psycopg.connect(postgres.url) as held:
        held.execute("LOCK TABLE agentgraph_envelopes IN ACCESS EXCLUSIVE MODE")
        adding = asyncio.create_task(writer.add(envelope(1), note(2), taken=["w"]))
        await postgres.blocked()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        held.rollback()

    assert await log.read("s") == []
    assert len(await log.inbox("s")) == 1
    await writer.add(envelope(1), note(2), taken=["w"])
    assert await log.read("s") == writer.envelopes


async def test_session_does_not_end_while_something_is_put_in(
    log: PostgresLog, postgres: Database
) -> None:
    writer = await Writer(log).begin()
    with psycopg.connect(postgres.url) as held:
        held.execute("SELECT 1 FROM agentgraph_sessions FOR SHARE")
        closing = asyncio.create_task(writer.add(closing=True))
        await postgres.blocked()
        held.execute(
            "INSERT INTO agentgraph_inbox (session_id, envelope_id, data) VALUES ('s', 'w', '{}')"
        )
        held.commit()

    with pytest.raises(InboxConflict):
        await closing


async def test_nothing_is_put_in_while_a_session_ends(log: PostgresLog, postgres: Database) -> None:
    await Writer(log).begin()
    with psycopg.connect(postgres.url) as held:
        held.execute("UPDATE agentgraph_sessions SET status = 'closed'")
        putting = asyncio.create_task(log.enqueue("s", waiting("w")))
        await postgres.blocked()
        held.commit()

    with pytest.raises(SessionClosed):
        await putting
    assert await log.inbox("s") == []


async def test_listening_goes_on_after_its_connection_was_killed(
    log: PostgresLog, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_listener, "RETRY_S", 0.01)
    monkeypatch.setattr(postgres_listener, "POLL_S", 2.0 * PATIENCE_S)
    second = PostgresLog(postgres.url)
    await second.open()
    await Writer(second).begin()
    heard = Heard()
    end = log.subscribe(heard)
    await heard.until(lambda told: None in told)
    for n in range(3):
        await second.enqueue("s", waiting(f"w{n}"))
        await heard.until(lambda told: "s" in told)
        heard.told.clear()
        await asyncio.to_thread(postgres.kill_connections)
        # Once for the loss of the one, once for the next.
        await heard.until(lambda told: told.count(None) > 1)
    end()
    await second.close()


async def test_what_happens_while_nothing_is_heard_is_told_all_the_same(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(bell: postgres_listener.NotificationListener) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(postgres_listener.NotificationListener, "_connect_and_listen", deaf)
    heard = Heard()
    end = log.subscribe(heard)

    await Writer(log).begin()

    assert heard.told == ["s"]
    end()


async def test_changes_are_looked_for_where_nothing_is_ever_heard(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_listener, "POLL_S", 0.01)
    heard = Heard()
    end = log.subscribe(heard)

    await heard.until(lambda told: told.count(None) > 5)
    end()


async def test_name_too_long_to_be_told_is_any_session(log: PostgresLog) -> None:
    name = "n" * 2_000 + "\0" * 1_000  # six letters each, as it is stored
    assert len(postgres_listener.payload_of("n" * 7_001)) == 0
    heard = Heard()
    end = log.subscribe(heard)
    await heard.until(lambda told: None in told)
    heard.told.clear()

    await Writer(log, name).begin()

    await heard.of(name)
    end()


async def test_database_of_a_saver_is_brought_up_to_date(postgres: Database) -> None:
    saver = open_saver(postgres.url)
    assert isinstance(saver, LazySaver)
    await saver.aopen()
    log = PostgresLog(postgres.url)

    await log.open()

    await Writer(log).begin(envelope(1))
    versions = execute(postgres, "SELECT version FROM agentgraph_migrations")
    assert versions == [(n,) for n in range(1, len(POSTGRES) + 1)]
    await log.close()
    await saver.aclose()


async def test_database_of_a_newer_version_is_refused(postgres: Database) -> None:
    execute(postgres, "CREATE TABLE agentgraph_migrations (version INTEGER PRIMARY KEY)")
    execute(postgres, "INSERT INTO agentgraph_migrations VALUES (99)")
    log = PostgresLog(postgres.url)

    with pytest.raises(StorageError, match=r"newer agentgraph \(version 99; this one knows \d+\)"):
        await log.open()

    assert execute(postgres, "SELECT to_regclass('agentgraph_sessions')") == [(None,)]
    with pytest.raises(StorageError, match="not open"):
        await log.unfinished_sessions(0)


async def test_many_open_a_new_database_at_once(postgres: Database) -> None:
    logs = [PostgresLog(postgres.url) for _ in range(8)]

    await asyncio.gather(*(log.open() for log in logs))

    await Writer(logs[0]).begin(envelope(1))
    assert [len(await log.read("s")) for log in logs] == [1] * 8
    await asyncio.gather(*(log.close() for log in logs))
    await postgres.deserted()


async def test_torn_record_quarantines_its_own_session(
    log: PostgresLog, postgres: Database
) -> None:
    writer = await Writer(log).begin(envelope(1), envelope(2), envelope(3))
    whole = await Writer(log, "whole").begin(envelope(1, session_id="whole"))
    execute(postgres, "UPDATE agentgraph_envelopes SET data = '{' WHERE envelope_id = 's-2'")
    execute(postgres, "UPDATE agentgraph_sessions SET snapshot = '{' WHERE session_id = 's'")

    for asked in (log.read("s"), log.tail("s", 2), log.find("s", "s-2")):
        with pytest.raises(Quarantined, match=r"session 's' .* sequence 2 .* restore that"):
            await asked
    assert await log.tail("s", 1) == writer.envelopes[2:]
    assert await log.read("whole") == whole.envelopes
    stored = await log.load("s")
    assert stored is not None and stored.state is None


async def test_missing_record_and_torn_session_are_found_out(
    log: PostgresLog, postgres: Database
) -> None:
    await Writer(log).begin(envelope(1), envelope(2))
    await Writer(log, "t").begin(envelope(1, session_id="t"), due_at=1)
    execute(postgres, "DELETE FROM agentgraph_envelopes WHERE envelope_id = 's-1'")
    execute(postgres, "UPDATE agentgraph_sessions SET record = '{}', team = '\\' WHERE due_at = 1")

    for asked in (log.read("s"), log.tail("s", 2)):
        with pytest.raises(Quarantined, match="missing"):
            await asked
    with pytest.raises(Quarantined, match=r"session 't' .* its record"):
        await log.load("t")
    assert [one.session_id for one in await log.sessions()] == ["s", "t"]
    assert await log.unfinished_sessions(1) == ["t"]


async def test_lost_server_is_told_in_time_and_no_part_of_its_url_is(
    postgres_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_server.url + "&connect_timeout=1"
    parts = (url, SUPERUSER, PASSWORD, str(postgres_server.folder))
    for name in (None, "psycopg"):
        caplog.set_level(logging.DEBUG, name)
    log = PostgresLog(url)
    await log.open()
    heard = Heard()
    end = log.subscribe(heard)
    writer = await Writer(log).begin()
    await fill(log)
    postgres_server.stop()

    for operation in (writer.add(envelope(1)), log.read("s"), PostgresLog(url).open()):
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(StorageError, match="that the server") as caught:
                await operation
        assert caught.value.__cause__ is caught.value.__context__ is None
        told = "".join(traceback.format_exception(caught.value))
        assert [part for part in parts if part in told or part in caplog.text] == []
    postgres_server.start()
    heard.told.clear()
    await writer.add(envelope(1))
    assert await log.read("s") == writer.envelopes
    await heard.of("s")
    end()
    await log.close()
    assert [part for part in parts if part in caplog.text] == []


async def test_statement_that_is_refused_is_told_without_its_text(
    log: PostgresLog, postgres: Database
) -> None:
    execute(postgres, "DROP TABLE agentgraph_hubs")

    with pytest.raises(StorageError, match=r"refused an operation \(UndefinedTable\)") as caught:
        await log.heartbeat("hub", 1)

    assert caught.value.__context__ is None


async def test_closed_log_lets_go_of_all_connections(log: PostgresLog, postgres: Database) -> None:
    heard = Heard()
    end = log.subscribe(heard)
    await heard.until(bool)
    await fill(log)

    await log.close()

    await postgres.deserted()
    end()


SESSIONS = [f"s{number}" for number in range(20)]


async def writers(log: PostgresLog) -> list[Writer]:
    return [await Writer(log, name).begin() for name in SESSIONS]


async def test_appends_of_many_sessions_share_transactions(
    log: PostgresLog, postgres: Database
) -> None:
    all_writers = await writers(log)
    await asyncio.gather(*(one.say() for one in all_writers))
    for one in all_writers:
        assert await log.read(one.session_id) == one.envelopes
    query = "SELECT count(DISTINCT xmin::text) FROM agentgraph_envelopes"
    assert execute(postgres, query) == [(3,)]  # the first two, and those that came meanwhile


async def test_of_appends_at_once_one_that_is_refused_is_refused_alone(log: PostgresLog) -> None:
    first, second, closed, *others = await writers(log)
    await second.say()
    await closed.add(closing=True)
    late, unknown = Writer(log, second.session_id), Writer(log, "nobody's")
    after_end = Writer(log, closed.session_id)
    results = await asyncio.gather(
        *(one.say() for one in (first, late, unknown, after_end, *others)), return_exceptions=True
    )
    kinds = [type(result) for result in results]
    assert kinds[:4] == [type(None), RoundConflict, SessionError, SessionClosed]
    assert results[4:] == [None] * len(others)
    for one in (first, second, *others):
        assert await log.read(one.session_id) == one.envelopes


async def test_appends_at_once_whose_answers_are_lost_are_not_made_twice(
    log: PostgresLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_writers = await writers(log)
    lose_answer(monkeypatch, "append_together")
    await asyncio.gather(*(one.say() for one in all_writers))
    for one in all_writers:
        assert await log.read(one.session_id) == one.envelopes


async def test_one_of_appends_at_once_that_the_server_refuses_fails_alone(
    log: PostgresLog, postgres: Database
) -> None:
    first, *others = await writers(log)
    bad = others.pop()
    query = "ALTER TABLE agentgraph_envelopes ADD CHECK (session_id <> '{}')"
    execute(postgres, query.format(bad.session_id))
    results = await asyncio.gather(
        *(one.say() for one in (first, bad, *others)), return_exceptions=True
    )
    assert isinstance(results[1], StorageError)
    assert [*results[:1], *results[2:]] == [None] * (1 + len(others))
    for one in (first, *others):
        assert await log.read(one.session_id) == one.envelopes


async def test_a_cancelled_one_of_appends_at_once_holds_up_no_other(log: PostgresLog) -> None:
    all_writers = await writers(log)
    tasks = [asyncio.create_task(one.say()) for one in all_writers]
    await asyncio.wait(tasks, timeout=0)
    for task in tasks[:3]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[3:] == [None] * (len(SESSIONS) - 3)
    for one in all_writers[3:]:
        assert await log.read(one.session_id) == one.envelopes
    await Writer(log, "new").begin()


async def test_many_appends_at_once_wait_for_a_dead_server_no_longer_than_one(
    postgres_server: Server,
) -> None:
    log = PostgresLog(postgres_server.url + "&connect_timeout=2")
    await log.open()
    all_writers = [await Writer(log, f"s{number}").begin() for number in range(400)]
    postgres_server.stop()
    async with asyncio.timeout(BOUND_S / 2):
        results = await asyncio.gather(*(one.say() for one in all_writers), return_exceptions=True)
    assert {type(result) for result in results} == {StorageError}
    await log.close()
