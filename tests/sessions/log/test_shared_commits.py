"""Several sessions at once share the commits of a SQLite file; nobody hears of what is not kept."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgraph.errors import RoundConflict, SessionClosed, SessionError, StorageError
from agentgraph.sessions.log.sqlite.file import SessionFile
from agentgraph.sessions.log.sqlite.log import SQLiteLog
from tests.sessions.log.sessions_to_store import Heard, Writer, waiting

SESSIONS = [f"s{number}" for number in range(20)]


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SQLiteLog]:
    log = SQLiteLog(str(tmp_path / "sessions.db"))
    await log.open()
    yield log
    await log.close()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by one with each commit."""
    commits: list[str] = []
    commit = SessionFile._commit

    def noted(self: SessionFile) -> None:
        commit(self)
        commits.append("")

    monkeypatch.setattr(SessionFile, "_commit", noted)
    return commits


@contextmanager
def busy(log: SQLiteLog) -> Iterator[None]:
    """Let what is asked of a log in the block wait until its end."""
    is_over = threading.Event()
    assert log._worker is not None
    log._worker.submit(is_over.wait)
    try:
        yield
    finally:
        is_over.set()


async def writers(log: SQLiteLog) -> list[Writer]:
    return [await Writer(log, name).begin() for name in SESSIONS]


async def together(log: SQLiteLog, *work: Any) -> list[Any]:
    """Ask for several things while the log is busy; return results and errors."""
    with busy(log):
        tasks = [asyncio.ensure_future(one) for one in work]
        await asyncio.wait(tasks, timeout=0)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_appends_of_many_sessions_share_a_commit(log: SQLiteLog, commits: list[str]) -> None:
    all_writers = await writers(log)
    commits.clear()
    assert await together(log, *(one.say() for one in all_writers)) == [None] * len(SESSIONS)
    assert len(commits) == 1
    for one in all_writers:
        assert await log.read(one.session_id) == one.envelopes


async def test_one_that_is_refused_is_refused_alone(log: SQLiteLog) -> None:
    first, second, *others = await writers(log)
    await second.add(closing=True)
    await first.add(first.next())
    late = Writer(log, first.session_id)
    results = await together(
        log,
        late.say(),
        *(one.say() for one in others),
        log.enqueue(second.session_id, waiting("w")),
        log.load("nobody's"),
        log.enqueue("nobody's", waiting("w")),
        log.enqueue(others[0].session_id, waiting("w", key="k")),
        log.enqueue(others[0].session_id, waiting("again", key="k")),
    )
    assert isinstance(results[0], RoundConflict)
    *results, closed, none, unknown, entry_id, same_id = results[1:]
    assert results == [None] * len(others)
    assert isinstance(closed, SessionClosed)
    assert none is None
    assert isinstance(unknown, SessionError) and unknown.code == "unknown_session"
    assert entry_id == same_id == "w"
    assert len(await log.inbox(others[0].session_id)) == 1
    for one in (first, *others):
        assert await log.read(one.session_id) == one.envelopes


async def test_listeners_hear_of_each_session_once_it_is_committed(
    log: SQLiteLog, tmp_path: Path
) -> None:
    all_writers = await writers(log)
    heads: list[int] = []
    heard = Heard()

    def look(session_id: str | None) -> None:
        with sqlite3.connect(tmp_path / "sessions.db") as other:  # sees what is committed
            query = "SELECT sum(head) FROM agentgraph_sessions"
            heads.append(other.execute(query).fetchone()[0])
        other.close()

    ends = [log.subscribe(look), log.subscribe(heard)]
    await together(log, *(one.say() for one in all_writers))
    await heard.until(lambda told: {*told} >= {*SESSIONS})
    assert set(heads) == {len(SESSIONS)}
    for end in ends:
        end()


async def test_a_commit_that_fails_keeps_nothing_and_tells_nobody(
    log: SQLiteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_writers = await writers(log)
    heard = Heard()
    end = log.subscribe(heard)

    def full(self: SessionFile) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SessionFile, "_commit", full)
        results = await together(log, *(one.say() for one in all_writers))
    assert all(isinstance(one, StorageError) for one in results)
    assert heard.told == []
    for one in all_writers:
        assert await log.read(one.session_id) == []
    assert await together(log, *(one.say() for one in all_writers)) == [None] * len(SESSIONS)
    end()


async def test_reading_a_log_takes_no_part_in_a_transaction(log: SQLiteLog) -> None:
    first, second = (await writers(log))[:2]
    await first.say(3)
    results = await together(log, first.say(), log.read(first.session_id), second.say())
    assert results[1] == first.envelopes
    await asyncio.wait_for(log.close(), 30)
    await log.open()
    assert await log.read(second.session_id) == second.envelopes


def test_a_listener_that_fails_keeps_no_change_from_being_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = SQLiteLog(str(tmp_path / "sessions.db"))

    def broken(session_id: str | None) -> None:
        raise ValueError("a bug")

    log.subscribe(broken)  # outside of a loop, so it is called where the change is made

    async def write() -> None:
        await log.open()
        all_writers = await writers(log)
        for _ in range(2):
            results = await together(log, *(one.say() for one in all_writers))
            assert results == [None] * len(SESSIONS)
        await all_writers[0].say()
        await log.close()

    asyncio.run(asyncio.wait_for(write(), 20))
    assert "a bug" in caplog.text
