"""The table of live events, as all three stores have it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgraph.sessions.log import Log
from agentgraph.sessions.log.live import Cursor, LiveNotice, LiveRow, LiveTable, WatchNotice
from tests.sessions.conftest import OpenLog
from tests.sessions.log.sessions_to_store import Writer, envelope

PATIENCE_S = 20


def live(log: Log) -> LiveTable:
    table: Any = log
    found: LiveTable = table.live
    return found


def row(
    sequence: int, attempt: int, number: int, session_id: str = "s", data: str = "[]"
) -> LiveRow:
    return LiveRow(session_id, sequence, attempt, number, data)


async def test_rows_are_read_in_order_after_a_place(opened: OpenLog) -> None:
    log = await opened()
    await Writer(log).begin(envelope(1))
    rows = [row(1, 1, 3), row(1, 1, 10), row(1, 2, 1), row(2, 1, 1)]
    await live(log).add(rows[::-1])
    await live(log).add([row(1, 1, 3, data="another")])

    other = live(await opened())
    assert await other.read("s", Cursor()) == rows
    assert await other.read("s", Cursor(1, 1, 3)) == rows[1:]
    assert await other.read("s", Cursor(1, 1, 4)) == rows[1:]
    assert await other.read("s", Cursor(2, 1, 1)) == []
    assert await other.read("nobody", Cursor()) == []


async def test_rows_before_a_sequence_are_trimmed(log: Log) -> None:
    for name in ("s", "t"):
        await Writer(log, name).begin(envelope(1, session_id=name))
        await live(log).add([row(n, 1, 1, session_id=name) for n in (1, 2, 3)])

    await live(log).trim({"s": 3, "t": 2})

    assert [one.sequence for one in await live(log).read("s", Cursor())] == [3]
    assert [one.sequence for one in await live(log).read("t", Cursor())] == [2, 3]


async def test_sessions_are_watched_for_as_long_as_a_lease_lasts(opened: OpenLog) -> None:
    log, other = await opened(), await opened()
    await Writer(log).begin(envelope(1))
    await log.heartbeat("one", 100.0)
    await other.heartbeat("two", 100.0)
    await live(other).watch("s", "two")
    await live(other).watch("s", "two")

    assert await live(log).sessions_watched("one", 50.0) == {"s"}
    assert await live(log).sessions_watched("two", 50.0) == set()
    assert await live(log).sessions_watched("one", 150.0) == set()
    await live(other).watch("s", "two")
    await live(other).unwatch("s", "two")
    assert await live(log).sessions_watched("one", 50.0) == set()


async def test_what_is_new_is_told_of_many_sessions_at_once(log: Log) -> None:
    writer = await Writer(log).begin(envelope(1))
    await Writer(log, "t").begin(envelope(1, session_id="t"))
    await writer.add(envelope(2))
    await live(log).add([row(1, 1, 9), row(2, 1, 4)])

    news = await live(log).news(["s", "t", "nobody"])

    assert news == {"s": (2, Cursor(2, 1, 4)), "t": (1, Cursor())}


async def test_a_forgotten_session_leaves_nothing(log: Log) -> None:
    await Writer(log).begin(envelope(1))
    await log.heartbeat("two", 100.0)
    await live(log).add([row(1, 1, 1)])
    await live(log).watch("s", "two")
    epoch = await log.claim("s", "one", 1.0)
    assert epoch is not None

    await log.forget("s", epoch)

    assert await live(log).read("s", Cursor()) == []
    assert await live(log).sessions_watched("one", 50.0) == set()


async def test_other_processes_notice_rows_and_watchers(opened: OpenLog) -> None:
    log, other = await opened(), await opened()
    await Writer(log).begin(envelope(1))
    await log.heartbeat("two", 100.0)
    notices: asyncio.Queue[str | None] = asyncio.Queue()
    other.subscribe(notices.put_nowait)
    async with asyncio.timeout(PATIENCE_S):
        if type(other).__name__ == "PostgresLog":
            assert await notices.get() is None  # it listens from now on
        await live(other).watch("s", "two")
        await live(log).watch("s", "one")
        while not isinstance(await notices.get(), WatchNotice):
            pass
        await live(log).add([row(1, 1, 1)])
        while not isinstance(await notices.get(), LiveNotice):
            pass


@pytest.mark.parametrize("text", ["", "7.", "1.2", "-1", "1.1.1.1", "²", "x"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no place"):
        Cursor.parse(text)


def test_places_are_read_as_they_are_written() -> None:
    for cursor in (Cursor(), Cursor(7), Cursor(7, 1, 3)):
        assert Cursor.parse(str(cursor)) == cursor
