"""Checkpoints in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph.blocking import run_to_end
from agentgraph.errors import StorageError
from agentgraph.running import Ownership
from agentgraph.storage.serializer import MessageSerializer
from agentgraph.storage.sqlite_locks import locks_of
from agentgraph.storage.store import CLOSED_TEXTS, Store, stale_owner
from agentgraph.storage.upkeep import CheckpointRow, ThreadUpkeep

T = TypeVar("T")

_TIMEOUT_S = 10.0


class _Saver(ThreadUpkeep, AsyncSqliteSaver):
    """LangGraph's saver of a file, with copies and deletions of a thread's checkpoints."""

    def owned_by(self, ownership: Ownership) -> _Saver:
        """Return a saver of the same threads whose writes raise `StaleOwner` after a takeover."""
        clone = copy(self)
        connection = cast("_Connection", self.conn._conn)
        clone.lock = cast("asyncio.Lock", _OwnedLock(self.lock, connection, ownership))
        return clone

    async def _rows(self, thread_id: str) -> list[CheckpointRow]:
        rows = await self._select(
            f"SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, {_RUN_ID} "
            "FROM checkpoints WHERE thread_id = ?",
            [thread_id],
        )
        return [CheckpointRow(*row) for row in rows]

    async def _threads_of(self, run_ids: Collection[str]) -> list[str]:
        marks = ", ".join("?" * len(run_ids))
        query = f"SELECT DISTINCT thread_id FROM checkpoints WHERE {_RUN_ID} IN ({marks})"
        return [thread_id for (thread_id,) in await self._select(query, list(run_ids))]

    async def _remove(self, thread_id: str, rows: Collection[CheckpointRow]) -> None:
        places = [(thread_id, row.namespace, row.id) for row in rows]
        where = "thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        await self._change([f"DELETE FROM {table} WHERE {where}" for table in _COLUMNS], places)

    async def _copy(self, source_thread_id: str, target_thread_id: str) -> None:
        statements = [
            f"INSERT INTO {table} (thread_id, {columns}) "
            f"SELECT ?, {columns} FROM {table} WHERE thread_id = ?"
            for table, columns in _COLUMNS.items()
        ]
        await self._change(statements, [(target_thread_id, source_thread_id)])

    async def adelete_thread(self, thread_id: str) -> None:
        statements = [f"DELETE FROM {table} WHERE thread_id = ?" for table in _COLUMNS]
        await self._change(statements, [(str(thread_id),)])

    async def _select(self, query: str, values: Sequence[str]) -> list[Any]:
        await self.setup()
        async with self.lock, self.conn.execute(query, values) as cursor:
            return [*await cursor.fetchall()]

    async def _change(self, statements: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
        """Run each statement with all rows, in one transaction."""
        await self.setup()
        async with self.lock, self.conn.cursor() as cursor:
            await cursor.executemany(";".join(statements), rows)


_RUN_ID = "json_extract(CAST(metadata AS TEXT), '$.run_id')"
_COLUMNS = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value",
}
"""The columns that a copy of a thread takes over; LangGraph's own statements name them too."""


@dataclass(frozen=True, slots=True)
class _OwnedLock:
    """The lock of a saver, under which its connection writes as an owner of a session."""

    lock: asyncio.Lock
    connection: _Connection
    ownership: Ownership

    async def __aenter__(self) -> None:
        await self.lock.acquire()
        self.connection.ownership = self.ownership

    async def __aexit__(self, *_: object) -> None:
        self.connection.ownership = None
        self.lock.release()


class _Connection(sqlite3.Connection):
    """A connection that keeps the file locked only while one of its methods runs.

    It commits at the end of each statement. If the commit were a call of its own, the file would
    stay locked where code blocks the event loop between the two, or is cancelled there.
    """

    ownership: Ownership | None = None
    """The owner as which the holder of the saver's lock writes."""

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _Cursor)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement by a cursor of ours, which the method of the base class does not make."""
        cursor: sqlite3.Cursor = self.cursor().execute(sql, parameters)
        return cursor


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        """Run a statement; if an owner of a session writes, in one transaction with its check."""
        if self._ownership is None or not sql.lstrip().startswith(_WRITES):
            super().execute(sql, parameters)
            return self
        with self._transaction():
            super().execute(sql, parameters)
        return self

    def executemany(self, sql: str, rows: Iterable[Any], /) -> _Cursor:
        """Run one or several statements, separated by semicolons, in one transaction."""
        rows = list(rows)
        with self._transaction():
            for statement in sql.split(";"):
                super().executemany(statement, rows)
        return self

    @property
    def _ownership(self) -> Ownership | None:
        return cast("_Connection", self.connection).ownership

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the statements in here together; `StaleOwner` if the owner was taken over."""
        super().execute("BEGIN IMMEDIATE")
        try:
            if (ownership := self._ownership) is not None:
                super().execute(_CHECK_OWNER, (ownership.session_key, ownership.epoch))
                if self.fetchone() is None:
                    raise stale_owner(ownership)
            yield
            super().execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                super().execute("ROLLBACK")
            raise


_WRITES = ("INSERT", "DELETE", "UPDATE")
# The tables of sessions are in the same file, so a takeover is before or after this transaction.
_CHECK_OWNER = "SELECT 1 FROM agentgraph_sessions WHERE session_id = ? AND epoch = ?"


class SqliteStore(Store):
    """One connection to one file, because a second writer would only wait for the first."""

    def __init__(self, path: str, saver: AsyncSqliteSaver) -> None:
        super().__init__([saver])
        self._path = path
        self._locks = locks_of(path)
        self._tasks: set[asyncio.Future[Any]] = set()

    async def run(self, work: Awaitable[T]) -> T:
        """Finish an operation before a cancellation takes effect.

        The connection's thread would finish it all the same, after the thread was given back.
        """
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await run_to_end(task)

    async def lock(self, key: int) -> bool:
        try:
            return self._locks is None or self._locks.take(key)
        except OSError as error:
            raise StorageError(
                f"no thread of the SQLite file {self._path!r} can be taken: {error}"
            ) from error

    async def unlock(self, key: int) -> None:
        if self._locks is not None:
            if self._tasks:  # the last writes of a cut-off run belong to its turn
                await asyncio.wait(set(self._tasks))
            self._locks.release(key)

    def failure(self, error: Exception) -> StorageError | None:
        """Return an error with the file and SQLite's message, None if it is not SQLite's."""
        if isinstance(error, ValueError) and str(error) in CLOSED_TEXTS:
            return StorageError(f"the SQLite file {self._path!r} was closed meanwhile: call again")
        if not isinstance(error, sqlite3.Error):
            return None
        failure = StorageError(
            f"the SQLite file {self._path!r} cannot be used ({type(error).__name__}: {error}): "
            "check that it is there and writable, and that nobody else keeps it locked"
        )
        failure.__cause__ = error
        return failure


@asynccontextmanager
async def open_sqlite(path: str) -> AsyncIterator[Store]:
    """Open a file, which is created if it is missing; raise `StorageError` where that fails."""
    try:
        # After a failed connect aiosqlite's thread lives on, and raises on the closed loop later.
        await asyncio.to_thread(_try_file, path)
        connection = await aiosqlite.connect(
            path, timeout=_TIMEOUT_S, isolation_level=None, factory=_Connection
        )
    except Exception as error:
        raise StorageError(f"cannot open the SQLite file {path!r}: {error}") from error
    _stop_with_main_thread(connection)
    try:
        yield await _set_up(path, connection)
    finally:
        _connections.discard(connection)
        await connection.close()


async def _set_up(path: str, connection: aiosqlite.Connection) -> Store:
    store = SqliteStore(path, saver := _Saver(connection, serde=MessageSerializer()))
    try:
        await saver.setup()
    except sqlite3.Error as error:
        raise store.failure(error) or error from error
    return store


def _try_file(path: str) -> None:
    with closing(sqlite3.connect(path, timeout=_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA schema_version")


_connections: set[aiosqlite.Connection] = set()


def _stop_with_main_thread(connection: aiosqlite.Connection) -> None:
    """Let the process end: aiosqlite's thread is no daemon and would keep it alive for ever."""
    _connections.add(connection)
    _watch_main_thread()
    if not threading.main_thread().is_alive():
        connection.stop()


@cache
def _watch_main_thread() -> None:
    def wait() -> None:
        threading.main_thread().join()
        for connection in list(_connections):
            connection.stop()

    threading.Thread(target=wait, name="agentgraph-sqlite-exit").start()
