"""Sessions in Postgres, shared by any number of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.rows import dict_row, tuple_row
from psycopg_pool import PoolTimeout

from agentgraph.errors import SessionError, StorageError
from agentgraph.sessions.log import postgres_sql as sql
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.postgres_bell import GROWN, Bell
from agentgraph.sessions.log.protocol import (
    Changed,
    Grown,
    InboxMoved,
    Stored,
    Summary,
    Waiting,
)
from agentgraph.sessions.log.tables import POSTGRES, VERSIONS, due_migrations
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import ENDED, SessionState
from agentgraph.storage.discretion import discreet
from agentgraph.storage.pool import (
    Connection,
    Pool,
    close_at_exit,
    failure_of,
    operation,
    timeout_of,
    unreachable,
)

T = TypeVar("T")

CONNECTIONS = 4
"""At most as many per log; one more connection listens."""

_LOCK = 0x6167656E7473657A
_LOCK_TIMEOUT_S = 120
_MAX_TOLD = 7_000
_CHUNK = 500
_FOREVER = 2**62
_DAY_S = 86_400.0

_Values: TypeAlias = Mapping[str, Any]
_Work: TypeAlias = Callable[["_Desk"], Awaitable[T]]


class _Desk:
    """One connection, as long as somebody works at it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor = connection.cursor(row_factory=tuple_row)

    async def ask(self, query: str, values: _Values) -> list[r.Row]:
        await self._cursor.execute(query.encode(), values)
        return list(await self._cursor.fetchall()) if self._cursor.description else []

    async def create(self, columns: _Values, envelopes: Sequence[Envelope]) -> bool:
        rows, keys = r.envelope_rows(envelopes, 0), list(r.keys_of(envelopes).items())
        session_id = columns["session_id"]
        async with self.connection.transaction():
            await self.ask(sql.CREATE, {**columns, "head": len(rows), "said": r.spoken(rows)})
            if self._cursor.rowcount < 1:
                return False
            # In pieces: a fork may come with more than fits into one message.
            for at in range(0, len(rows), _CHUNK):
                arrays = _arrays(session_id, rows[at : at + _CHUNK], dict(keys[at : at + _CHUNK]))
                await self.ask(sql.FILL, {**arrays, "base": 0})
                await self.ask(sql.FILL_KEYS, arrays)
            await self.ask(sql.TELL, {"told": _told(session_id)})
        return True

    async def append(self, session_id: str, values: _Values) -> None:
        if values["status"] not in ENDED:
            await self._append(session_id, values)
            return
        async with self.connection.transaction():
            await self.ask(sql.LOCK, values)
            await self._append(session_id, values)
            if await self.ask(sql.LEFT, values):
                raise InboxMoved()

    async def append_again(self, session_id: str, values: _Values) -> None:
        """Append what may have been appended, before the answer was lost."""
        try:
            await self.append(session_id, values)
        except SessionError:
            if not values["count"]:
                raise
            last = {"sequence": values["sequences"][-1], "data": values["data"][-1]}
            if not await self.ask(sql.WRITTEN, {**values, **last}):
                raise

    async def put(self, session_id: str, values: _Values) -> str:
        found = await self.ask(sql.PUT, values)
        if not found:
            raise r.unknown(session_id)
        status, has_arrived = found[0]
        if has_arrived:
            return str(values["envelope_id"])
        if values["digest"] is not None:
            # A statement of its own: it may have been put in by somebody else just now.
            known = await self.ask(sql.KNOWN, values)
            if known:
                return str(known[0][0])
        if status in ENDED:
            raise r.closed(session_id, status)
        return str(values["envelope_id"])

    async def put_again(self, session_id: str, values: _Values) -> str:
        """Put in what may have been put in, before the answer was lost."""
        if await self.ask(sql.ACCEPTED, values):
            return str(values["envelope_id"])
        return await self.put(session_id, values)

    async def migrate(self) -> None:
        """Bring the tables up to date, one process at a time."""
        if not await self._lacks():
            return
        async with self.connection.transaction():
            await self.ask(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'", {})
            await self.ask(f"SELECT pg_advisory_xact_lock({_LOCK})", {})
            await self.ask(VERSIONS, {})
            for version, statements in await self._lacks():
                for statement in statements:
                    await self.ask(statement, {})
                await self.ask("INSERT INTO agentgraph_migrations VALUES (%(v)s)", {"v": version})

    async def _lacks(self) -> list[tuple[int, Sequence[str]]]:
        known = await self.ask("SELECT to_regclass('agentgraph_migrations')::text", {})
        found = None
        if known[0][0] is not None:
            found = (await self.ask("SELECT max(version) FROM agentgraph_migrations", {}))[0][0]
        return due_migrations("this Postgres database", found or 0, POSTGRES)

    async def _append(self, session_id: str, values: _Values) -> None:
        if not await self.ask(sql.APPEND, values):
            found = await self.ask(sql.STATUS, values)
            raise r.refusal(session_id, found[0] if found else None, values["epoch"])


class PostgresLog:
    """Keep sessions in a database; a log belongs to the loop that opened it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._listeners = Listeners()
        self._opening = asyncio.Lock()
        self._pool: Pool | None = None
        self._bell: Bell | None = None
        self._closed: Callable[[], None] = _nothing

    async def open(self) -> None:
        async with self._opening:
            if self._pool is not None:
                return
            with discreet():
                self._pool = await _opened_pool(self._url)
            self._closed = close_at_exit(self.close)
            self._bell = Bell(self._url, timeout_of(self._url), self._listeners)
            if self._listeners:
                self._bell.hang()

    async def close(self) -> None:
        # Shielded: half closed, its connections would be nobody's.
        await asyncio.shield(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        async with self._opening:
            pool, self._pool = self._pool, None
            bell, self._bell = self._bell, None
            self._closed()
            with discreet():
                if bell is not None:
                    await bell.remove()
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
    ) -> bool:
        columns = {**r.record_columns(record), **r.state_columns(state, due_at, runnable)}
        created = await self._do(lambda desk: desk.create(columns, envelopes))
        if created:
            self._tell(record.session_id)
        return created

    async def load(self, session_id: str) -> Stored | None:
        rows = await self._ask(sql.LOAD, {"session_id": r.safe(session_id)})
        return r.stored(session_id, rows[0]) if rows else None

    async def sessions(self, status: str | None = None) -> list[Summary]:
        return [r.summary(row) for row in await self._ask(sql.SESSIONS, {"status": status})]

    async def append(
        self,
        session_id: str,
        envelopes: Sequence[Envelope],
        head: int,
        state: SessionState,
        *,
        epoch: int | None = None,
        due_at: float | None = None,
        taken: Collection[str] = (),
        attempts: int | None = None,
    ) -> None:
        rows = r.envelope_rows(envelopes, head)
        values = {
            **r.state_columns(state, due_at),
            **_arrays(r.safe(session_id), rows, r.keys_of(envelopes)),
            "head": head,
            "count": len(rows),
            "said": r.spoken(rows),
            "epoch": epoch,
            "attempts": attempts,
            "taken": [r.safe(one) for one in taken],
            "told": _told(r.safe(session_id), GROWN),
        }
        await self._do(
            lambda desk: desk.append(session_id, values),
            again=lambda desk: desk.append_again(session_id, values),
        )
        self._tell(Grown(session_id))

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        after = max(after, 0)
        values = {"after": after, "limit": None if limit is None else max(limit, 0)}
        rows = await self._of(session_id, sql.READ, values)
        return r.read_rows(session_id, rows, after, limit)

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        values = {"before": _FOREVER if before is None else before, "count": max(count, 0)}
        rows = await self._of(session_id, sql.TAIL, values)
        return r.tail_rows(session_id, rows, before, count)

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        rows = await self._of(session_id, sql.FIND, {"envelope_id": r.safe(envelope_id)})
        sequence, data = rows[0]
        return None if sequence is None else r.envelope_of(session_id, sequence, data)

    async def put(self, session_id: str, waiting: Waiting) -> str:
        stored_id = r.safe(session_id)
        row = r.inbox_row(waiting)
        values = {**row._asdict(), "session_id": stored_id, "told": _told(stored_id)}
        found = await self._do(
            lambda desk: desk.put(session_id, values),
            again=lambda desk: desk.put_again(session_id, values),
        )
        if found == row.envelope_id:
            self._tell(session_id)
        return r.plain(found)

    async def waiting(self, session_id: str) -> list[Waiting]:
        return r.waiting_rows(session_id, await self._of(session_id, sql.WAITING, {}))

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
    ) -> int | None:
        while True:
            held = r.Held(*(await self._of(session_id, sql.HELD, {}))[0])
            if held.is_kept_by(owner, now):
                return held.epoch
            if not force and held.is_withheld_from(owner, now, is_gone):
                return None
            values = {"owner": r.safe(owner), "epoch": held.epoch, "present": held.owner}
            sure = force or (held.until or 0) > now
            rows = await self._of(session_id, sql.CLAIM, {**values, "sure": sure, "now": now}, ())
            if rows:
                return int(rows[0][0])

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        values = {"owner": r.safe(owner), "attempts": attempts}
        if not await self._of(session_id, sql.RELEASE, values, ()):
            await self._of(session_id, sql.STATUS, {})

    async def attempt(self, session_id: str, epoch: int) -> int:
        values = {"session_id": r.safe(session_id), "epoch": epoch}
        # Once: one whose answer was lost may have been counted.
        rows = await self._do(lambda desk: desk.ask(sql.ATTEMPT, values))
        if not rows:
            await self._of(session_id, sql.STATUS, {})
            raise r.stale(session_id)
        return int(rows[0][0])

    async def beat(self, owner: str, until: float) -> None:
        await self._ask(sql.BEAT, {"owner": r.safe(owner), "until": until})

    async def retire(self, owner: str) -> None:
        await self._ask(sql.RETIRE, {"owner": r.safe(owner), "kept": _DAY_S})
        self._tell(None)

    async def unfinished(self, now: float) -> list[str]:
        return [r.plain(row[1]) for row in await self._ask(sql.UNFINISHED, {"now": now})]

    async def next_due(self) -> float | None:
        found: float | None = (await self._ask(sql.NEXT_DUE, {}))[0][0]
        return found

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        end = self._listeners.add(changed)
        if self._bell is not None:
            self._bell.hang()
        return end

    def _tell(self, session_id: str | None) -> None:
        # While the server is heard it tells of this too.
        if self._bell is None or not self._bell.hears:
            self._listeners.tell(session_id)

    async def _of(
        self, session_id: str, query: str, values: _Values, least: Sequence[r.Row] | None = None
    ) -> Sequence[r.Row]:
        rows = await self._ask(query, {**values, "session_id": r.safe(session_id)})
        if not rows and least is None:
            raise r.unknown(session_id)
        return rows

    async def _ask(self, query: str, values: _Values) -> list[r.Row]:
        """Ask what can be asked twice."""

        async def work(desk: _Desk) -> list[r.Row]:
            return await desk.ask(query, values)

        return await self._do(work, again=work)

    async def _do(self, work: _Work[T], *, again: _Work[T] | None = None) -> T:
        """Do something; where the connection is lost on the way, do `again`."""
        with operation():
            for attempt in (work, again):
                if attempt is None:
                    break
                try:
                    return await self._attempt(attempt)
                except Exception as error:
                    found = failure_of(error)
                    if found is None:
                        raise
                    failure, lost = found, _is_lost(error)
                if not lost:
                    break
        # Out here, as it would else carry the driver's error along as its context.
        raise failure

    async def _attempt(self, work: _Work[T]) -> T:
        if self._pool is None:
            raise StorageError("this Postgres log is not open: call `open` first")
        async with self._pool.connection() as connection:
            return await work(_Desk(connection))


async def _opened_pool(url: str) -> Pool:
    try:
        timeout = timeout_of(url)
        # Beforehand: the pool goes on trying, and would not tell that a password is wrong.
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, row_factory=dict_row, connect_timeout=timeout
        ) as connection:
            await _Desk(connection).migrate()
        pool = Pool(url, CONNECTIONS, timeout)
        await pool.open(wait=True, timeout=timeout)
        return pool
    except psycopg.Error as error:
        kind = type(error).__name__
    if kind == psycopg.errors.LockNotAvailable.__name__:
        raise StorageError("another process has not finished migrating Postgres: look after it")
    # Out here, and neither the text nor the cause of it: both may hold parts of the URL.
    raise unreachable(kind)


def _is_lost(error: Exception) -> bool:
    is_known = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_known and not isinstance(error, PoolTimeout)


def _arrays(
    session_id: str, rows: Sequence[r.EnvelopeRow], keys: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "sequences": [row.sequence for row in rows],
        "ids": [row.envelope_id for row in rows],
        "saids": [row.said for row in rows],
        "data": [row.data for row in rows],
        "digests": list(keys),
        "keyed": list(keys.values()),
    }


def _told(session_id: str, mark: str = "") -> str:
    # Postgres tells no more than 8,000 bytes; nothing means that it may be any session.
    return f"{mark}{session_id}" if len(session_id) <= _MAX_TOLD else ""


def _nothing() -> None: ...
