"""One connection's work on sessions in Postgres: its statements, and the migrations.

Where a connection is lost between a statement and its answer, it is unknown whether the statement
was carried out. The methods that end in `_again` check that first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from psycopg.rows import tuple_row

from agentgraph.errors import SessionError
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.postgres import sql
from agentgraph.sessions.log.postgres.listener import payload_of
from agentgraph.sessions.log.protocol import InboxConflict, SharedBlobs
from agentgraph.sessions.log.tables import POSTGRES, VERSIONS, due_migrations
from agentgraph.sessions.state.state import FINAL_STATUSES, is_milestone_due
from agentgraph.storage.pool import Connection

Values: TypeAlias = Mapping[str, Any]

_MIGRATION_LOCK = 0x6167656E7473657A
"""The key of an advisory lock; the migration of checkpoints uses a different key."""
_MIGRATION_TIMEOUT_S = 120
_CHUNK = 500
"""How many envelopes of a new session are inserted by one statement."""


class LogConnection:
    """A pooled connection, borrowed for one operation.

    Values are passed by name, and their texts are ASCII already (`rows.to_ascii`).
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor = connection.cursor(row_factory=tuple_row)

    async def ask(self, query: str, values: Values) -> list[r.Row]:
        """Return the rows of a statement; an empty list for a statement without a result."""
        await self._cursor.execute(query.encode(), values)
        return list(await self._cursor.fetchall()) if self._cursor.description else []

    async def create(
        self,
        columns: Values,
        envelopes: Sequence[Envelope],
        labels: Sequence[str],
        parent: tuple[str, int] | None,
        blobs: SharedBlobs | None,
    ) -> bool:
        """Create a session with its first envelopes; False if a session of this id exists.

        With the key and the epoch of a parent: `StaleOwner` unless that is there so.
        """
        rows, keys = r.envelope_rows(envelopes, 0), list(r.keys_of(envelopes).items())
        session_id = columns["session_id"]
        async with self.connection.transaction():
            if parent is not None:
                values = {"session_id": r.to_ascii(parent[0]), "epoch": parent[1]}
                if not await self.ask(sql.LOCK_EPOCH, values):
                    raise r.stale_owner(parent[0])
            counts = {"head": len(rows), "said": r.view_count(rows)}
            new_rows = await self.ask(sql.CREATE, {**columns, **counts})
            if not new_rows:
                return False
            if labels:
                place = {"tenant": columns["tenant"], "ordinal": new_rows[0][0]}
                await self.ask(sql.LABEL, {**place, "labels": labels})
            # In chunks: a fork may have more envelopes than fit into one message.
            for at in range(0, len(rows), _CHUNK):
                arrays = arrays_of(session_id, rows[at : at + _CHUNK], dict(keys[at : at + _CHUNK]))
                await self.ask(sql.FILL, {**arrays, "base": 0})
                await self.ask(sql.FILL_KEYS, arrays)
            if is_milestone_due(0, len(rows)):
                values = {"session_id": session_id, "head": 0, "count": len(rows)}
                await self.ask(sql.ADD_MILESTONE, {**values, "snapshot": columns["snapshot"]})
            if blobs is not None:
                values = {"session_id": session_id, "source": r.to_ascii(blobs.session_id)}
                await self.ask(sql.SHARE_BLOBS, {**values, "digests": list(blobs.digests)})
            await self.ask(sql.NOTIFY, {"payload": payload_of(session_id)})
        return True

    async def append(self, session_id: str, values: Values) -> None:
        """Append; if that ends the session, its inbox must be empty afterwards."""
        if values["status"] not in FINAL_STATUSES:  # one statement, and so one round trip
            await self._append(session_id, values)
            return
        async with self.connection.transaction():
            await self.ask(sql.LOCK, values)
            await self._append(session_id, values)
            if await self.ask(sql.INBOX_REMAINS, values):
                raise InboxConflict()

    async def append_together(
        self, appends: Sequence[tuple[str, Values]]
    ) -> list[SessionError | None]:
        """Append to sessions that go on, in one transaction; return why each was refused, if so."""
        cursors = [self.connection.cursor(row_factory=tuple_row) for _ in appends]
        async with self.connection.pipeline():
            for cursor, (_, values) in zip(cursors, appends, strict=True):
                await cursor.execute(_append_statement(values).encode(), values)
        rows = [await cursor.fetchone() for cursor in cursors]
        return [
            None if row is not None else await self._refusal(session_id, values)
            for row, (session_id, values) in zip(rows, appends, strict=True)
        ]

    async def append_again(self, session_id: str, values: Values) -> None:
        """Append, unless the first try, whose answer was lost, has appended already."""
        try:
            await self.append(session_id, values)
        except SessionError:
            if not values["count"]:
                raise
            if not await self.ask(sql.ENVELOPE_EXISTS, {**values, **_last_row(values)}):
                raise

    async def enqueue(self, session_id: str, values: Values) -> str:
        """Put an entry into the inbox; return its id, or the earlier id stored under its key."""
        rows = await self.ask(sql.ENQUEUE, values)
        if not rows:
            raise r.unknown_session(session_id)
        status, has_arrived = rows[0]
        if has_arrived:
            return str(values["envelope_id"])
        if values["digest"] is not None:
            # A separate statement: ENQUEUE does not see a key that another process inserted while
            # ENQUEUE waited for that process to commit.
            earlier = await self.ask(sql.FIND_KEY, values)
            if earlier and earlier[0][0] is not None:
                return str(earlier[0][0])
        if status in FINAL_STATUSES:
            raise r.session_ended(session_id, status)
        return str(values["envelope_id"])

    async def enqueue_again(self, session_id: str, values: Values) -> str:
        """Enqueue, unless the first try, whose answer was lost, has enqueued already."""
        if await self.ask(sql.IS_ACCEPTED, values):
            return str(values["envelope_id"])
        return await self.enqueue(session_id, values)

    async def forget(self, session_id: str, values: Values) -> None:
        """Delete a session under an epoch, with its rows in all tables."""
        async with self.connection.transaction():
            rows = await self.ask(sql.LOCK, values)
            if not rows:
                raise r.unknown_session(session_id)
            if rows[0][2] != values["epoch"]:
                raise r.stale_owner(session_id)
            for statement in sql.FORGET:
                await self.ask(statement, values)
            await self.ask(sql.NOTIFY, values)

    async def forget_again(self, session_id: str, values: Values) -> None:
        """Forget, unless the first try, whose answer was lost, has done so already."""
        if await self.ask(sql.STATUS, values):
            await self.forget(session_id, values)

    async def migrate(self) -> None:
        """Migrate the tables to the current version, one process at a time."""
        if not await self._pending_migrations():
            return
        # Checked again under the lock: another process may have migrated in the meantime.
        async with self.connection.transaction():
            await self.ask(f"SET LOCAL lock_timeout = '{_MIGRATION_TIMEOUT_S}s'", {})
            await self.ask(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})", {})
            await self.ask(VERSIONS, {})
            for version, statements in await self._pending_migrations():
                for statement in statements:
                    await self.ask(statement, {})
                await self.ask("INSERT INTO agentgraph_migrations VALUES (%(v)s)", {"v": version})

    async def _pending_migrations(self) -> list[tuple[int, Sequence[str]]]:
        table = await self.ask("SELECT to_regclass('agentgraph_migrations')::text", {})
        version = None
        if table[0][0] is not None:
            version = (await self.ask("SELECT max(version) FROM agentgraph_migrations", {}))[0][0]
        return due_migrations("this Postgres database", version or 0, POSTGRES)

    async def _append(self, session_id: str, values: Values) -> None:
        if not await self.ask(_append_statement(values), values):
            raise await self._refusal(session_id, values)

    async def _refusal(self, session_id: str, values: Values) -> SessionError:
        rows = await self.ask(sql.STATUS, values)
        return r.refusal(session_id, rows[0] if rows else None, values["epoch"])


async def migrate(connection: Connection) -> None:
    """Migrate the tables of sessions to the current version."""
    await LogConnection(connection).migrate()


def arrays_of(
    session_id: str, rows: Sequence[r.EnvelopeRow], keys: Mapping[str, str]
) -> dict[str, Any]:
    """Return rows and keys as the array parameters of one statement, one array per column."""
    return {
        "session_id": session_id,
        "sequences": [row.sequence for row in rows],
        "ids": [row.envelope_id for row in rows],
        "numbers": [row.view_number for row in rows],
        "data": [row.data for row in rows],
        "digests": list(keys),
        "key_ids": list(keys.values()),
    }


def append_values(
    session_id: str,
    rows: Sequence[r.EnvelopeRow],
    keys: Mapping[str, str],
    blobs: Mapping[str, str],
    admitted_ids: Sequence[str],
) -> dict[str, Any]:
    """Return what an append writes beside the session's row, as parameters of its statement."""
    is_due = bool(rows) and is_milestone_due(rows[0].sequence - 1, len(rows))
    if len(rows) != 1 or is_due or keys or blobs or admitted_ids:
        arrays = arrays_of(session_id, rows, keys)
        return {**arrays, **blob_arrays_of(blobs), "admitted_ids": admitted_ids}
    ((sequence, envelope_id, number, data),) = rows
    return {
        "session_id": session_id,
        "sequence": sequence,
        "envelope_id": envelope_id,
        "number": number,
        "data": data,
    }


def _append_statement(values: Values) -> str:
    if "sequence" in values:
        return sql.APPEND_ONE
    is_due = is_milestone_due(values["head"], values["count"])
    return sql.APPEND_WITH_MILESTONE if is_due else sql.APPEND


def _last_row(values: Values) -> dict[str, Any]:
    """Return sequence and data of the last envelope of an append."""
    if "sequence" in values:
        return {}
    return {"sequence": values["sequences"][-1], "data": values["data"][-1]}


def blob_arrays_of(blobs: Mapping[str, str]) -> dict[str, Any]:
    """Return blobs as the array parameters of one statement."""
    return {"blob_digests": list(blobs), "blobs": list(blobs.values())}
