"""Sessions in a file that other threads, processes and savers use too."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from agentgraph.clock import SystemClock, use_clock
from agentgraph.errors import Quarantined, RoundConflict, StorageError
from agentgraph.sessions.log import Log, SessionQuery
from agentgraph.sessions.log.listing import listing
from agentgraph.sessions.log.sqlite import file as sqlite_file
from agentgraph.sessions.log.sqlite import sql
from agentgraph.sessions.log.sqlite.file import SessionFile
from agentgraph.sessions.log.sqlite.log import SQLiteLog
from agentgraph.sessions.log.tables import SQLITE
from agentgraph.sessions.state.state import SessionState
from agentgraph.storage import LazySaver, open_saver
from tests.sessions.log.sessions_to_store import (
    PATIENCE_S,
    Heard,
    Writer,
    envelope,
    eventually,
    note,
    waiting,
)

ROOT = Path(__file__).parents[3]

OTHER = """
import asyncio, sys
from agentgraph.errors import RoundConflict
from agentgraph.sessions.log.sqlite.log import SQLiteLog
from agentgraph.sessions.state.state import SessionState
from tests.sessions.log.sessions_to_store import envelope

async def main():
    log = SQLiteLog(sys.argv[1])
    await log.open()
    print("open", flush=True)
    sys.stdin.readline()
    done = 0
    while done < int(sys.argv[2]):
        head = (await log.load("s")).head
        said = envelope(head + 1, envelope_id=f"other-{done}")
        try:
            await log.append("s", [said], head, SessionState("s", sequence=head + 1))
            done += 1
        except RoundConflict:
            pass
    if sys.argv[3:] == ["close"]:
        await log.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "sessions.db")


@pytest.fixture
async def log(path: str) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(path)
    await log.open()
    yield log
    await log.close()


def execute(path: str, query: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query, values).fetchall()


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Let whoever would write wait."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def other(path: str, count: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, path, str(count), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PYTHONDEVMODE": "1" if more else ""},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


async def append_until(log: Log, count: int, name: str) -> None:
    for n in range(count):

        async def is_appended(n: int = n) -> bool:
            stored = await log.load("s")
            assert stored is not None
            said = envelope(stored.head + 1, envelope_id=f"{name}-{n}")
            try:
                await log.append("s", [said], stored.head, SessionState("s"))
            except RoundConflict:
                return False
            return True

        await eventually(is_appended)


async def test_two_processes_append_to_one_session(log: SQLiteLog, path: str) -> None:
    await Writer(log).begin()
    heard = Heard()
    end = log.subscribe(heard)
    with other(path, 30, "close") as process:
        appending = asyncio.create_task(append_until(log, 30, "own"))
        _, err = await asyncio.to_thread(process.communicate, "go\n", PATIENCE_S)
        assert (process.returncode, err) == (0, "")
        await appending

    envelopes = await log.read("s")

    assert [one.sequence for one in envelopes] == list(range(1, 61))
    assert len({one.envelope_id for one in envelopes}) == 60
    await heard.until(lambda told: None in told)
    end()


async def test_process_that_leaves_its_log_open_ends_quietly(log: SQLiteLog, path: str) -> None:
    await Writer(log).begin()
    with other(path, 3) as process:
        _, err = await asyncio.to_thread(process.communicate, "go\n", PATIENCE_S)
        assert (process.returncode, err) == (0, "")

    assert len(await log.read("s")) == 3


async def test_threads_with_loops_and_logs_of_their_own(log: SQLiteLog, path: str) -> None:
    async def work(name: str) -> None:
        own = SQLiteLog(path)
        await own.open()
        await append_until(own, 20, name)
        await own.close()

    await Writer(log).begin()
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, work(name)) for name in "xyz"))

    assert [one.sequence for one in await log.read("s")] == list(range(1, 61))


async def test_one_log_serves_several_loops(log: SQLiteLog) -> None:
    async def elsewhere() -> list[str | None]:
        heard = Heard()
        end = log.subscribe(heard)
        subscribed.set()
        await heard.of("t")
        end()
        return heard.told

    subscribed = threading.Event()
    listening = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.to_thread(subscribed.wait, PATIENCE_S)

    await Writer(log, "t").begin()

    assert "t" in await listening


async def test_saver_and_logs_hammer_one_file(log: SQLiteLog, path: str) -> None:
    saver = open_saver(f"sqlite:///{path}")
    assert isinstance(saver, LazySaver)
    second = SQLiteLog(path)
    await second.open()

    async def check(n: int) -> None:
        config: Any = {"configurable": {"thread_id": str(n % 3), "checkpoint_ns": ""}}
        await saver.aput(config, empty_checkpoint(), {}, {})

    async def say(log: Log, name: str) -> None:
        writer = await Writer(log, name).begin()
        await writer.say(30)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            *(check(n) for n in range(60)),
            *(say(log, f"a{n}") for n in range(3)),
            *(say(second, f"b{n}") for n in range(3)),
        )

    assert [one.sequence for one in await log.sessions()] == [30] * 6
    assert execute(path, "SELECT count(*) FROM checkpoints") == [(60,)]
    await saver.aclose()
    await second.close()


async def test_file_of_a_saver_is_brought_up_to_date(path: str) -> None:
    saver = open_saver(f"sqlite:///{path}")
    assert isinstance(saver, LazySaver)
    await saver.aopen()
    log = SQLiteLog(path)

    await log.open()

    await Writer(log).begin(envelope(1))
    versions = execute(path, "SELECT version FROM agentgraph_migrations")
    assert versions == [(n,) for n in range(1, len(SQLITE) + 1)]
    await saver.aclose()
    await log.close()


async def test_half_done_migration_is_done(path: str) -> None:
    execute(path, "CREATE TABLE agentgraph_migrations (version INTEGER PRIMARY KEY)")
    log = SQLiteLog(path)

    await log.open()

    await Writer(log).begin(envelope(1))
    await log.close()


async def test_file_of_a_newer_version_is_refused_and_left_alone(path: str) -> None:
    execute(path, "CREATE TABLE agentgraph_migrations (version INTEGER PRIMARY KEY)")
    execute(path, "INSERT INTO agentgraph_migrations VALUES (99)")
    log = SQLiteLog(path)

    with pytest.raises(StorageError, match=r"newer agentgraph \(version 99; this one knows \d+\)"):
        await log.open()

    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    assert execute(path, tables) == [("agentgraph_migrations",)]
    with pytest.raises(StorageError, match="not open"):
        await log.load("s")


async def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    for n in range(5):
        logs = [SQLiteLog(str(tmp_path / f"{n}.db")) for _ in range(8)]
        await asyncio.gather(*(log.open() for log in logs))
        await Writer(logs[0]).begin(envelope(1))
        assert [len(await log.read("s")) for log in logs] == [1] * 8
        await asyncio.gather(*(log.close() for log in logs))


async def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "a.db")

    with pytest.raises(StorageError, match=re.escape(repr(path))):
        await SQLiteLog(path).open()


async def test_closed_log_says_that_it_is_not_open(log: SQLiteLog) -> None:
    await log.close()

    with pytest.raises(StorageError, match="not open"):
        await log.unfinished_sessions(0)


async def test_file_that_stays_locked_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "TIMEOUT_S", 0.1)
    log = SQLiteLog(path)
    await log.open()
    writer = await Writer(log).begin()

    with locked(path), pytest.raises(StorageError, match="keeps it locked"):
        await writer.add(envelope(1))

    await writer.add(envelope(1))
    await log.close()


TORN = {
    "no JSON": '{"envelope_id": "s-2',
    "no object": "[]",
    "no text": b"\xff\x00",
    "nothing": "",
    "not ASCII": '{"ü": 1}',
    "without fields": "{}",
    "strange fields": '{"audience": null, "priority": 1, "what": 2}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("data", TORN.values(), ids=TORN)
async def test_torn_record_quarantines_its_own_session(
    log: SQLiteLog, path: str, data: str | bytes
) -> None:
    writer = await Writer(log).begin(envelope(1), envelope(2), envelope(3))
    whole = await Writer(log, "whole").begin(envelope(1, session_id="whole"))
    execute(path, "UPDATE agentgraph_envelopes SET data = ? WHERE envelope_id = 's-2'", data)

    folded = log.fold(SessionState.initial(writer.record), 3)
    for asked in (log.read("s"), folded, log.tail("s", 2), log.find("s", "s-2")):
        with pytest.raises(Quarantined, match=r"session 's' .* sequence 2 .* restore that"):
            await asked
    assert await log.read("s", limit=1) == writer.envelopes[:1]
    assert await log.tail("s", 1) == writer.envelopes[2:]
    assert await log.read("whole") == whole.envelopes
    assert len(await log.sessions()) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session_id", "'other'"),
        ("sequence", "3"),
        ("sender_id", "5"),
        ("audience", "'ab'"),
        ("audience", "json('[1]')"),
        ("event_data", "json('[]')"),
        ("metadata", "null"),
        ("priority", "17"),
        ("idempotency_key", "1"),
    ],
)
async def test_record_of_another_shape_is_malformed(
    log: SQLiteLog, path: str, field: str, value: str
) -> None:
    writer = await Writer(log).begin(envelope(1), envelope(2))
    changed = f"json_set(data, '$.{field}', {value})"
    query = f"UPDATE agentgraph_envelopes SET data = {changed} WHERE sequence = 2"
    execute(path, query)

    for asked in (log.read("s"), log.fold(SessionState.initial(writer.record), 2)):
        with pytest.raises(Quarantined, match="sequence 2"):
            await asked


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_missing_record_is_found_out(log: SQLiteLog, path: str, missing: int) -> None:
    writer = await Writer(log).begin(envelope(1), envelope(2), envelope(3))
    execute(path, "DELETE FROM agentgraph_envelopes WHERE sequence = ?", missing)

    for asked in (log.read("s"), log.fold(SessionState.initial(writer.record), 3)):
        with pytest.raises(Quarantined, match=f"sequence {missing} "):
            await asked
    with pytest.raises(Quarantined, match="what was said"):
        await log.tail("s", 3)
    if missing == 3:
        with pytest.raises(Quarantined, match="sequence 3"):
            await log.load("s")


@pytest.mark.parametrize("data", ["{", "{}", '{"version": 2}', b"\xff"])
async def test_torn_session_does_not_fail_the_lists(
    log: SQLiteLog, path: str, data: str | bytes
) -> None:
    await Writer(log, "good").begin(due_at=1)
    await Writer(log).begin(due_at=1)
    execute(
        path,
        "UPDATE agentgraph_sessions SET record = ?, team = ?, created_at = 'x', creator = '\\x' "
        "WHERE session_id = 's'",
        data,
        data,
    )

    with pytest.raises(Quarantined, match=r"session 's' .* its record"):
        await log.load("s")
    assert [one.session_id for one in await log.sessions()] == ["good", "s"]
    assert await log.unfinished_sessions(1) == ["good", "s"]
    assert await log.load("good") is not None


@pytest.mark.parametrize("data", [None, "{", "{}", "[]", '{"sequence": 1}', b"\xff"])
async def test_broken_snapshot_is_none(log: SQLiteLog, path: str, data: str | bytes | None) -> None:
    writer = await Writer(log).begin(envelope(1))
    execute(path, "UPDATE agentgraph_sessions SET snapshot = ?", data)

    stored = await log.load("s")

    assert stored is not None
    assert (stored.state, stored.record, stored.head) == (None, writer.record, 1)


async def test_snapshot_of_another_head_is_none(log: SQLiteLog, path: str) -> None:
    writer = await Writer(log).begin(envelope(1))
    await log.append("s", [envelope(2)], 1, writer.state)

    stored = await log.load("s")

    assert stored is not None and stored.state is None


async def test_torn_inbox_is_quarantined(log: SQLiteLog, path: str) -> None:
    await Writer(log).begin()
    await log.enqueue("s", waiting("w"))
    execute(path, "UPDATE agentgraph_inbox SET data = json_set(data, '$.draft.event_data', 1)")

    with pytest.raises(Quarantined, match="number 1 of its inbox"):
        await log.inbox("s")


async def test_cancelled_append_is_whole_and_told(log: SQLiteLog, path: str) -> None:
    writer = await Writer(log).begin()
    await log.enqueue("s", waiting("w"))
    heard = Heard()
    end = log.subscribe(heard)
    with locked(path):
        adding = asyncio.create_task(writer.add(envelope(1), note(2), taken=["w"]))
        reading = asyncio.create_task(log.read("s"))
        await asyncio.wait([asyncio.create_task(asyncio.to_thread(lambda: None))])
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding

    assert await reading == [envelope(1), note(2)]
    assert await log.inbox("s") == []
    await heard.of("s")
    end()


async def test_loop_that_ends_in_the_middle_leaves_nothing_half_done(path: str) -> None:
    log = SQLiteLog(path)

    async def begin() -> None:
        await log.open()
        await Writer(log).begin()
        asyncio.get_running_loop().call_soon(gone.set)
        await Writer(log).add(envelope(1), note(2))

    gone = threading.Event()

    def run() -> None:
        async def cut_off() -> None:
            task = asyncio.create_task(begin())
            await asyncio.to_thread(gone.wait, PATIENCE_S)
            task.cancel()

        asyncio.run(cut_off())

    await asyncio.to_thread(run)
    assert len(await log.read("s")) in (0, 2)
    await log.close()


async def test_log_that_is_forgotten_ends_its_thread(path: str) -> None:
    log = SQLiteLog(path)
    await log.open()
    mine = [one for one in threading.enumerate() if one.name == "agentgraph-sessions"]
    assert len(mine) == 1
    del log
    gc.collect()

    mine[0].join(PATIENCE_S)

    assert not mine[0].is_alive()


async def test_changes_by_others_are_told_though_a_clock_stands_still(
    log: SQLiteLog, path: str
) -> None:
    class Still(SystemClock):
        def monotonic(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    second = SQLiteLog(path)
    with use_clock(Still()):
        await second.open()
        heard = Heard()
        end = second.subscribe(heard)
        await Writer(log).begin()
        await heard.until(lambda told: told == [None])
        end()
    await second.close()


def test_only_what_others_change_of_sessions_is_news(path: str) -> None:
    async def change() -> None:
        log = SQLiteLog(path)
        await log.open()
        await log.release_all("hub")
        await log.close()

    file = SessionFile(path)
    assert not file.has_changed()
    file.release_all("own")
    assert not file.has_changed()
    execute(path, "CREATE TABLE checkpoints_of_a_saver (x)")
    assert not file.has_changed()
    asyncio.run(change())
    assert (file.has_changed(), file.has_changed()) == (True, False)
    file.close()


@pytest.mark.parametrize(
    "name", ["READ", "TAIL", "FIND", "LOAD", "LEASE", "CLAIM", "UNFINISHED_SESSIONS"]
)
def test_questions_are_answered_from_an_index(path: str, name: str) -> None:
    SessionFile(path).close()
    query = getattr(sql, name)
    with closing(sqlite3.connect(path)) as connection:
        values: Any = dict.fromkeys(re.findall(r":(\w+)", query), 1) or (1,) * query.count("?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]

    walks = [step for step in plan if step.startswith("SCAN")]
    # Partial ones, which hold only what they are asked for, and the inbox.
    partial = [
        "SCAN agentgraph_sessions USING INDEX agentgraph_sessions_left",
        "SCAN agentgraph_sessions USING INDEX agentgraph_sessions_runnable",
        "SCAN i USING COVERING INDEX sqlite_autoindex_agentgraph_inbox_1",
    ]
    assert sorted(walks) == (partial if name == "UNFINISHED_SESSIONS" else [])
    assert name == "UNFINISHED_SESSIONS" or not [step for step in plan if "TEMP B-TREE" in step]


@pytest.mark.parametrize("after", [None, 7])
def test_lists_of_a_person_read_no_session_of_others(path: str, after: int | None) -> None:
    query = SessionQuery(person="ann", tenant="acme", limit=9, newest_first=True)
    plan = plan_of(path, *listing(query, after, ":{}".format))

    searches = [step for step in plan if " agentgraph_" in step or "SEARCH" in step]
    assert "digest=? AND tenant=?" in searches[0]
    assert "tenant=? AND creator=?" in searches[-1]
    # What is sorted are the two pages that were found, to be merged.
    before = [plan[place - 1] for place, step in enumerate(plan) if "TEMP B-TREE" in step]
    assert before == ["SCAN half0", "SCAN half1"]


def test_sessions_with_an_envelope_are_found_by_an_index(path: str) -> None:
    plan = plan_of(path, sql.SESSIONS_WITH, {"id": "a"})

    assert any("agentgraph_envelope_places (envelope_id=?)" in step for step in plan)
    assert any("agentgraph_inbox_ids (envelope_id=?)" in step for step in plan)


def plan_of(path: str, statement: str, values: Mapping[str, Any]) -> list[str]:
    """Return the steps by which SQLite answers a statement."""
    SessionFile(path).close()
    with closing(sqlite3.connect(path)) as connection:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.mark.parametrize(
    "query",
    [
        SessionQuery(limit=9, newest_first=True),
        SessionQuery(tenant="acme", limit=9),
        SessionQuery(creator="ann", limit=9),
        SessionQuery(creator="ann", tenant="acme", metadata={"a": 1}, limit=9),
        SessionQuery(tenant="acme", metadata={"a": 1, "b": 2}, limit=9, newest_first=True),
        SessionQuery(tenant="acme", status="active", team="team", limit=9),
    ],
)
@pytest.mark.parametrize("after", [None, 7])
def test_lists_read_no_session_of_others(path: str, query: SessionQuery, after: int | None) -> None:
    plan = plan_of(path, *listing(query, after, ":{}".format))

    assert not [step for step in plan if "TEMP B-TREE" in step]
    assert (query.tenant is None and query.creator is None) or "SCAN" not in plan[0]
    if query.tenant is not None:
        assert "tenant=?" in plan[0]
    if query.creator is not None:
        assert "creator=?" in plan[0]
