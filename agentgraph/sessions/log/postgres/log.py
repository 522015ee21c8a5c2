"""Sessions in Postgres, shared by any number of processes.

Each operation is one statement, and so one round trip. Where a connection is lost before the answer
arrives, it is unknown whether the statement was carried out; it is then repeated on another
connection in a form that checks that first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeAlias, TypeVar

import psycopg
from psycopg_pool import PoolTimeout

from agentgraph.errors import StorageError
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.listing import labels_of, listing
from agentgraph.sessions.log.postgres import sql
from agentgraph.sessions.log.postgres.appends import Appends
from agentgraph.sessions.log.postgres.connection import (
    LogConnection,
    Values,
    append_values,
    blob_arrays_of,
    migrate,
)
from agentgraph.sessions.log.postgres.listener import NotificationListener, payload_of
from agentgraph.sessions.log.postgres.live import PostgresLiveTable
from agentgraph.sessions.log.postgres.webhooks import PostgresWebhookTable
from agentgraph.sessions.log.protocol import (
    ALL_SESSIONS,
    NO_BLOBS,
    AppendNotice,
    ChangeListener,
    InboxEntry,
    SessionQuery,
    SessionSummary,
    SharedBlobs,
    StoredSession,
)
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.storage.pool import (
    Pool,
    close_at_exit,
    connect_timeout,
    failure_of,
    open_pool,
    operation,
    redacted_logging,
)

T = TypeVar("T")

CONNECTIONS = 4
"""The most connections per log; one more connection listens for notifications."""

_FOREVER = 2**62
"""A sequence after all others."""
_DAY_S = 86_400.0
"""How long the lease of a killed hub is kept after it has expired."""

_Work: TypeAlias = Callable[[LogConnection], Awaitable[T]]


class PostgresLog:
    """A log in a database, which belongs to the event loop that opened it.

        log = PostgresLog("postgresql://user:password@host/database")
        await log.open()

    All errors of the driver are raised as `StorageError`, which names no part of the URL.
    """

    is_beside_checkpoints = True
    """Savers of the same URL have their tables beside this log's, and check epochs there."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._listeners = Listeners()
        self._open_lock = asyncio.Lock()
        self._pool: Pool | None = None
        self._server_listener: NotificationListener | None = None
        self._appends = Appends(self._do)
        self._forget_at_exit: Callable[[], None] = lambda: None

    @property
    def live(self) -> PostgresLiveTable:
        """The live events of sessions that other processes watch."""
        return PostgresLiveTable(self._ask)

    @property
    def webhooks(self) -> PostgresWebhookTable:
        """The webhooks that wait to be called."""
        return PostgresWebhookTable(self._ask)

    async def open(self) -> None:
        async with self._open_lock:
            if self._pool is not None:
                return
            # The tasks of the pool inherit this context, and so the redaction of what they log.
            with redacted_logging():
                self._pool = await open_pool(self._url, CONNECTIONS, migrate)
            self._forget_at_exit = close_at_exit(self.close)
            timeout = connect_timeout(self._url)
            self._server_listener = NotificationListener(self._url, timeout, self._listeners)
            if self._listeners:  # a listener subscribed before the log was open
                self._server_listener.start()

    async def close(self) -> None:
        # Shielded: connections that a cancelled close leaves open would never be closed.
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        async with self._open_lock:
            pool, self._pool = self._pool, None
            listener, self._server_listener = self._server_listener, None
            self._forget_at_exit()
            with redacted_logging():
                if listener is not None:
                    await listener.stop()
                if pool is not None:
                    await pool.close()

    async def create(
        self,
        record: SessionRecord,
        envelopes: Sequence[Envelope],
        state: SessionState,
        *,
        due_at: float | None = None,
        runnable: bool | None = None,
        parent_epoch: int | None = None,
        blobs: SharedBlobs | None = None,
    ) -> bool:
        columns = {**r.record_columns(record), **r.state_columns(state, due_at, runnable)}
        labels = labels_of(record)
        parent = None if parent_epoch is None else (record.parent_key or "", parent_epoch)
        is_new = await self._do(
            lambda connection: connection.create(columns, envelopes, labels, parent, blobs)
        )
        if is_new:
            self._notify(record.key)
        return is_new

    async def load(self, session_id: str) -> StoredSession | None:
        rows = await self._ask(sql.LOAD, {"session_id": r.to_ascii(session_id)})
        return r.read_session(session_id, rows[0]) if rows else None

    async def sessions(self, query: SessionQuery = ALL_SESSIONS) -> list[SessionSummary]:
        after = None
        if query.after is not None:
            ((after,),) = await self._rows_of(query.after, sql.ORDINAL, {})
        statement, values = listing(query, after, "%({})s".format)
        return [r.read_summary(row) for row in await self._ask(statement, values)]

    async def append(
        self,
        session_id: str,
        envelopes: Sequence[Envelope],
        head: int,
        state: SessionState,
        *,
        epoch: int | None = None,
        due_at: float | None = None,
        admitted_ids: Collection[str] = (),
        attempts: int | None = None,
        blobs: Mapping[str, str] = NO_BLOBS,
    ) -> None:
        rows = r.envelope_rows(envelopes, head)
        values = {
            **r.state_columns(state, due_at),
            **append_values(
                r.to_ascii(session_id),
                rows,
                r.keys_of(envelopes),
                blobs,
                [r.to_ascii(entry_id) for entry_id in admitted_ids],
            ),
            "head": head,
            "count": len(rows),
            "said": r.view_count(rows),
            "epoch": epoch,
            "attempts": attempts,
            "payload": payload_of(r.to_ascii(session_id), is_append=True),
        }
        if state.is_ended:
            await self._do(
                lambda connection: connection.append(session_id, values),
                again=lambda connection: connection.append_again(session_id, values),
            )
        else:
            await self._appends.add(session_id, values)
        self._notify(AppendNotice(session_id))

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        after = max(after, 0)
        rows = await self._page(session_id, after, limit)
        return r.read_rows(session_id, rows, after, limit)

    async def fold(self, state: SessionState, limit: int) -> SessionState:
        return r.fold_rows(state, await self._page(state.key, state.sequence, limit), limit)

    async def milestone(self, session_id: str, at: int) -> SessionState | None:
        key = r.to_ascii(session_id)
        while rows := await self._ask(sql.MILESTONE, {"session_id": key, "at": at}):
            sequence, text = rows[0]
            state = r.read_snapshot(session_id, text, sequence)
            if state is not None:
                return state
            at = sequence - 1
        return None

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        values = {"before": _FOREVER if before is None else before, "count": max(count, 0)}
        rows = await self._rows_of(session_id, sql.TAIL, values)
        return r.tail_rows(session_id, rows, before, count)

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        rows = await self._rows_of(session_id, sql.FIND, {"envelope_id": r.to_ascii(envelope_id)})
        sequence, data = rows[0]
        return None if sequence is None else r.envelope_of(session_id, sequence, data)

    async def sessions_with(self, envelope_id: str) -> list[str]:
        rows = await self._ask(sql.SESSIONS_WITH, {"id": r.to_ascii(envelope_id)})
        return [r.from_ascii(key) for (key,) in rows]

    async def store_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        await self._rows_of(session_id, sql.STORE_BLOBS, blob_arrays_of(blobs))

    async def blobs(self, session_id: str, digests: Collection[str]) -> dict[str, str]:
        values = {"digests": list(digests)}
        rows = await self._rows_of(session_id, sql.BLOBS, values, may_be_none=True)
        return {row[0]: row[1] for row in rows}

    async def enqueue(self, session_id: str, entry: InboxEntry) -> str:
        stored_id = r.to_ascii(session_id)
        row = r.inbox_row(entry)
        values = {**row._asdict(), "session_id": stored_id, "payload": payload_of(stored_id)}
        entry_id = await self._do(
            lambda connection: connection.enqueue(session_id, values),
            again=lambda connection: connection.enqueue_again(session_id, values),
        )
        if entry_id == row.envelope_id:
            self._notify(session_id)
        return r.from_ascii(entry_id)

    async def accepted_id(self, session_id: str, sender_id: str, key: str) -> str | None:
        values = {"digest": r.digest(sender_id, key)}
        ((entry_id,),) = await self._rows_of(session_id, sql.FIND_KEY, values)
        return None if entry_id is None else r.from_ascii(entry_id)

    async def inbox(self, session_id: str) -> list[InboxEntry]:
        return r.read_inbox(session_id, await self._rows_of(session_id, sql.INBOX, {}))

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
        at_rest: bool = False,
    ) -> int | None:
        while True:
            # Read in one statement and claimed in another: repeated where another hub was faster.
            lease = r.Lease(*(await self._rows_of(session_id, sql.LEASE, {}))[0])
            if lease.is_held_by(owner, now):
                return lease.epoch
            is_withheld = not force and lease.is_withheld_from(owner, now, is_gone)
            if is_withheld and not at_rest:
                return None
            values = {"owner": r.to_ascii(owner), "epoch": lease.epoch, "present": lease.owner}
            # A lease that is still valid is overridden: `is_gone` has said that its owner is dead.
            # One that has expired may have been renewed since, which the statement checks.
            sure = force or (lease.until or 0) > now
            values |= r.ClaimTerms(sure, is_withheld, now)._asdict()
            rows = await self._rows_of(session_id, sql.CLAIM, values, may_be_none=True)
            if rows or is_withheld:
                return int(rows[0][0]) if rows else None

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        values = {"owner": r.to_ascii(owner), "attempts": attempts}
        if not await self._rows_of(session_id, sql.RELEASE, values, may_be_none=True):
            await self._rows_of(session_id, sql.STATUS, {})

    async def attempt(self, session_id: str, epoch: int) -> int:
        values = {"session_id": r.to_ascii(session_id), "epoch": epoch}
        # Not repeated: an attempt whose answer was lost may have been counted.
        rows = await self._do(lambda connection: connection.ask(sql.ATTEMPT, values))
        if not rows:
            await self._rows_of(session_id, sql.STATUS, {})
            raise r.stale_owner(session_id)
        return int(rows[0][0])

    async def heartbeat(self, owner: str, until: float) -> None:
        await self._ask(sql.HEARTBEAT, {"owner": r.to_ascii(owner), "until": until})

    async def release_all(self, owner: str) -> None:
        await self._ask(sql.RELEASE_ALL, {"owner": r.to_ascii(owner), "keep_s": _DAY_S})
        self._notify(None)

    async def unfinished_sessions(self, now: float) -> list[str]:
        return r.read_unfinished(await self._ask(sql.UNFINISHED_SESSIONS, {"now": now}))

    async def owned_sessions(self, owner: str) -> list[str]:
        rows = await self._ask(sql.OWNED_SESSIONS, {"owner": r.to_ascii(owner)})
        return [r.from_ascii(row[0]) for row in rows]

    async def next_due(self, after: float = float("-inf")) -> float | None:
        due_at: float | None = (await self._ask(sql.NEXT_DUE, {"after": after}))[0][0]
        return due_at

    async def children(self, session_id: str) -> list[str]:
        rows = await self._ask(sql.CHILDREN, {"session_id": r.to_ascii(session_id)})
        return [r.from_ascii(row[0]) for row in rows]

    async def forget(self, session_id: str, epoch: int) -> None:
        key = r.to_ascii(session_id)
        values = {"session_id": key, "epoch": epoch, "payload": payload_of(key)}
        await self._do(
            lambda connection: connection.forget(session_id, values),
            again=lambda connection: connection.forget_again(session_id, values),
        )
        self._notify(session_id)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        unsubscribe = self._listeners.subscribe(listener)
        if self._server_listener is not None:
            self._server_listener.start()
        return unsubscribe

    def _notify(self, session_id: str | None) -> None:
        # While the listener is connected, the server notifies it of this log's own changes too, so
        # listeners must not be called here as well.
        if self._server_listener is None or not self._server_listener.is_connected:
            self._listeners.notify(session_id)

    async def _page(self, session_id: str, after: int, limit: int | None) -> Sequence[r.Row]:
        """Return the rows of envelopes after a sequence; the sequences of a whole log have no gaps.

        With an envelope missing it is a shorter page, which the reader of the rows notices.
        """
        upto = _FOREVER if limit is None else after + max(limit, 0)
        return await self._rows_of(session_id, sql.READ, {"after": after, "upto": upto})

    async def _rows_of(
        self, session_id: str, query: str, values: Values, *, may_be_none: bool = False
    ) -> Sequence[r.Row]:
        """Return the rows of a session, at least one unless `may_be_none`."""
        rows = await self._ask(query, {**values, "session_id": r.to_ascii(session_id)})
        if not rows and not may_be_none:
            raise r.unknown_session(session_id)
        return rows

    async def _ask(self, query: str, values: Values) -> list[r.Row]:
        """Return the rows of a statement that is safe to carry out twice."""

        async def work(connection: LogConnection) -> list[r.Row]:
            return await connection.ask(query, values)

        return await self._do(work, again=work)

    async def _do(
        self, work: _Work[T], *, again: _Work[T] | None = None, since: float | None = None
    ) -> T:
        """Carry out `work`; if the connection is lost meanwhile, carry out `again` on another one.

        Without `again` a lost connection is a failure. Errors of the driver are raised as
        `StorageError`. `since` is when it was asked for, if that was earlier.
        """
        with operation(since):
            for attempt in (work, again):
                if attempt is None:
                    break
                try:
                    return await self._attempt(attempt)
                except Exception as error:
                    storage_error = failure_of(error)
                    if storage_error is None:
                        raise
                    failure, is_lost = storage_error, _is_lost(error)
                if not is_lost:
                    break
        # Raised outside of the handler: as context, the driver's error may hold parts of the URL.
        raise failure

    async def _attempt(self, work: _Work[T]) -> T:
        if self._pool is None:
            raise StorageError("this Postgres log is not open: call `open` first")
        async with self._pool.connection() as connection:
            return await work(LogConnection(connection))


def _is_lost(error: Exception) -> bool:
    """Tell whether a connection died under way; on a pool timeout nothing was carried out."""
    is_of_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_of_connection and not isinstance(error, PoolTimeout)
