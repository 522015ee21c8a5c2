"""Live events in Postgres: the table by which hubs of other processes see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.live import Cursor, LiveRow
from agentgraph.sessions.log.postgres.connection import Values
from agentgraph.sessions.log.postgres.listener import WATCH_PAYLOAD, live_payload_of
from agentgraph.sessions.log.postgres.sql import CHANNEL

Ask: TypeAlias = Callable[[str, Values], Awaitable[list[r.Row]]]
"""Returns the rows of a statement that is safe to carry out twice."""

# A session that is forgotten meanwhile has no rows afterwards: the table has nothing of a session
# that is not there.
_ADD = f"""
WITH added AS (
    INSERT INTO agentgraph_live (session_id, sequence, attempt, number, data)
    SELECT l.* FROM unnest(%(ids)s::text[], %(sequences)s::bigint[], %(attempts)s::bigint[],
        %(numbers)s::bigint[], %(data)s::text[]) AS l (session_id, sequence, attempt, number, data)
    WHERE EXISTS (SELECT 1 FROM agentgraph_sessions s WHERE s.session_id = l.session_id)
    ON CONFLICT DO NOTHING
)
SELECT pg_notify('{CHANNEL}', payload) FROM unnest(%(payloads)s::text[]) AS p (payload)
"""
_READ = """
SELECT sequence, attempt, number, data FROM agentgraph_live
WHERE session_id = %(session_id)s
    AND (sequence, attempt, number) > (%(sequence)s, %(attempt)s, %(number)s)
ORDER BY sequence, attempt, number
"""
_TRIM = """
DELETE FROM agentgraph_live l
USING unnest(%(ids)s::text[], %(sequences)s::bigint[]) AS t (session_id, sequence)
WHERE l.session_id = t.session_id AND l.sequence < t.sequence
"""
_WATCH = f"""
WITH watcher AS (
    INSERT INTO agentgraph_watchers (session_id, owner) VALUES (%(session_id)s, %(owner)s)
    ON CONFLICT DO NOTHING
)
SELECT pg_notify('{CHANNEL}', %(payload)s)
"""
_UNWATCH = f"""
WITH gone AS (
    DELETE FROM agentgraph_watchers WHERE session_id = %(session_id)s AND owner = %(owner)s
)
SELECT pg_notify('{CHANNEL}', %(payload)s)
"""
_WATCHED_SESSIONS = """
SELECT w.session_id, w.owner = %(owner)s, coalesce(h.until > %(now)s, false)
FROM agentgraph_watchers w LEFT JOIN agentgraph_hubs h USING (owner)
"""
_FORGET_GONE = """
DELETE FROM agentgraph_watchers w
WHERE NOT EXISTS (SELECT 1 FROM agentgraph_hubs h WHERE h.owner = w.owner AND h.until > %(now)s)
"""
_NEWS = """
SELECT s.session_id, s.head, l.sequence, l.attempt, l.number
FROM agentgraph_sessions s
LEFT JOIN LATERAL (
    SELECT sequence, attempt, number FROM agentgraph_live
    WHERE session_id = s.session_id ORDER BY sequence DESC, attempt DESC, number DESC LIMIT 1
) l ON true
WHERE s.session_id = ANY(%(ids)s::text[])
"""


class PostgresLiveTable:
    """The live events in a database; other processes are notified of them."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def add(self, rows: Sequence[LiveRow]) -> None:
        ids = [r.to_ascii(row.session_id) for row in rows]
        values = {
            "ids": ids,
            "sequences": [row.sequence for row in rows],
            "attempts": [row.attempt for row in rows],
            "numbers": [row.number for row in rows],
            "data": [row.data for row in rows],
            "payloads": [live_payload_of(key) for key in dict.fromkeys(ids)],
        }
        await self._ask(_ADD, values)

    async def read(self, session_id: str, after: Cursor) -> list[LiveRow]:
        values = {"session_id": r.to_ascii(session_id), **after._asdict()}
        return [LiveRow(session_id, *row) for row in await self._ask(_READ, values)]

    async def trim(self, sequences: Mapping[str, int]) -> None:
        ids = [r.to_ascii(session_id) for session_id in sequences]
        await self._ask(_TRIM, {"ids": ids, "sequences": list(sequences.values())})

    async def watch(self, session_id: str, owner: str) -> None:
        await self._ask(_WATCH, _watch_values(session_id, owner))

    async def unwatch(self, session_id: str, owner: str) -> None:
        await self._ask(_UNWATCH, _watch_values(session_id, owner))

    async def sessions_watched(self, owner: str, now: float) -> set[str]:
        rows = await self._ask(_WATCHED_SESSIONS, {"owner": r.to_ascii(owner), "now": now})
        if not all(is_there for _, _, is_there in rows):
            await self._ask(_FORGET_GONE, {"now": now})
        return {r.from_ascii(key) for key, is_own, is_there in rows if is_there and not is_own}

    async def news(self, session_ids: Collection[str]) -> dict[str, tuple[int, Cursor]]:
        rows = await self._ask(_NEWS, {"ids": [r.to_ascii(key) for key in session_ids]})
        return {
            r.from_ascii(row[0]): (row[1], Cursor() if row[2] is None else Cursor(*row[2:]))
            for row in rows
        }


def _watch_values(session_id: str, owner: str) -> Values:
    ids = {"session_id": r.to_ascii(session_id), "owner": r.to_ascii(owner)}
    return {**ids, "payload": WATCH_PAYLOAD}
