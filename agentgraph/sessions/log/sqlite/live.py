"""Live events in a SQLite file: the table by which hubs of other processes see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.live import Cursor, LiveRow
from agentgraph.sessions.log.sqlite.file import SessionFile

T = TypeVar("T")

_ADD = """
INSERT INTO agentgraph_live (session_id, sequence, attempt, number, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_READ = """
SELECT sequence, attempt, number, data FROM agentgraph_live
WHERE session_id = ? AND (sequence, attempt, number) > (?, ?, ?)
ORDER BY sequence, attempt, number
"""
_TRIM = "DELETE FROM agentgraph_live WHERE session_id = ? AND sequence < ?"
_WATCH = "INSERT INTO agentgraph_watchers (session_id, owner) VALUES (?, ?) ON CONFLICT DO NOTHING"
_UNWATCH = "DELETE FROM agentgraph_watchers WHERE session_id = ? AND owner = ?"
_WATCHED_SESSIONS = """
SELECT DISTINCT w.session_id FROM agentgraph_watchers w JOIN agentgraph_hubs h USING (owner)
WHERE h.until > :now AND w.owner <> :owner
"""
_ARE_GONE = """
SELECT 1 FROM agentgraph_watchers w LEFT JOIN agentgraph_hubs h USING (owner)
WHERE h.until IS NULL OR h.until <= ? LIMIT 1
"""
_FORGET_GONE = """
DELETE FROM agentgraph_watchers
WHERE owner NOT IN (SELECT owner FROM agentgraph_hubs WHERE until > ?)
"""
_NEWS = """
SELECT s.session_id, s.head, l.sequence, l.attempt, l.number
FROM json_each(?) j
JOIN agentgraph_sessions s ON s.session_id = j.value
LEFT JOIN agentgraph_live l ON (l.session_id, l.sequence, l.attempt, l.number) = (
    SELECT session_id, sequence, attempt, number FROM agentgraph_live
    WHERE session_id = s.session_id ORDER BY sequence DESC, attempt DESC, number DESC LIMIT 1
)
"""


class Access(Protocol):
    """What the worker's thread has of the file."""

    watch_count: int
    """How many sessions the process watches: then the thread looks more often."""

    def ask(self, work: Callable[[SessionFile], T]) -> T:
        """Return the result of an operation."""
        ...


class Submit(Protocol):
    """How a log has its thread run an operation."""

    def __call__(
        self, work: Callable[[Any], T], *, may_share: bool = True
    ) -> asyncio.Future[T]: ...


class SQLiteLiveTable:
    """The live events in a file; other processes notice them when they poll."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    async def add(self, rows: Sequence[LiveRow]) -> None:
        values = [(r.to_ascii(row.session_id), *row[1:]) for row in rows]
        await self._write(lambda file: file.connection.executemany(_ADD, values))

    async def read(self, session_id: str, after: Cursor) -> list[LiveRow]:
        values = (r.to_ascii(session_id), *after)
        rows = await self._ask(lambda file: file.connection.execute(_READ, values).fetchall())
        return [LiveRow(session_id, *row) for row in rows]

    async def trim(self, sequences: Mapping[str, int]) -> None:
        values = [(r.to_ascii(session_id), at) for session_id, at in sequences.items()]
        await self._write(lambda file: file.connection.executemany(_TRIM, values))

    async def watch(self, session_id: str, owner: str) -> None:
        await self._change_watch(_WATCH, session_id, owner, 1)

    async def unwatch(self, session_id: str, owner: str) -> None:
        await self._change_watch(_UNWATCH, session_id, owner, -1)

    async def _change_watch(self, query: str, session_id: str, owner: str, change: int) -> None:
        values = (r.to_ascii(session_id), r.to_ascii(owner))

        def work(access: Access) -> None:
            def write(file: SessionFile) -> None:
                with file.unsynced_transaction():
                    count = file.connection.execute(query, values).rowcount
                    access.watch_count += change * max(count, 0)

            access.ask(write)

        await self._submit(work, may_share=False)

    async def sessions_watched(self, owner: str, now: float) -> set[str]:
        values = {"owner": r.to_ascii(owner), "now": now}
        query = _WATCHED_SESSIONS

        def work(file: SessionFile) -> list[r.Row]:
            if file.connection.execute(_ARE_GONE, (now,)).fetchone() is not None:
                with file.unsynced_transaction():
                    file.connection.execute(_FORGET_GONE, (now,))
            return file.connection.execute(query, values).fetchall()

        return {r.from_ascii(row[0]) for row in await self._ask(work)}

    async def news(self, session_ids: Collection[str]) -> dict[str, tuple[int, Cursor]]:
        keys = json.dumps([r.to_ascii(session_id) for session_id in session_ids])
        rows = await self._ask(lambda file: file.connection.execute(_NEWS, (keys,)).fetchall())
        return {
            r.from_ascii(row[0]): (row[1], Cursor() if row[2] is None else Cursor(*row[2:]))
            for row in rows
        }

    async def _write(self, work: Callable[[SessionFile], object]) -> None:
        def write(file: SessionFile) -> None:
            with file.unsynced_transaction():
                work(file)

        await self._ask(write)

    async def _ask(self, work: Callable[[SessionFile], T]) -> T:
        def ask(access: Access) -> T:
            return access.ask(work)

        return await self._submit(ask, may_share=False)
