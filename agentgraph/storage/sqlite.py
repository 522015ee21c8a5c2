"""Checkpoints in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, closing
from functools import cache
from typing import Any, TypeVar

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph.errors import StorageError
from agentgraph.storage.sqlite_locks import locks_of
from agentgraph.storage.store import Store

T = TypeVar("T")

_TIMEOUT_S = 10.0

_CLOSED_TEXTS = ("no active connection", "Connection closed")


class SqliteStore(Store):
    """One connection to one file, as a second writer would only wait for the first."""

    def __init__(self, path: str, saver: AsyncSqliteSaver) -> None:
        super().__init__([saver])
        self._path = path
        self._locks = locks_of(path)
        self._tasks: set[asyncio.Future[Any]] = set()

    async def run(self, work: Awaitable[T]) -> T:
        """Bring an operation to its end before a cancel goes on.

        One cut off between a statement and its commit would lock the file for everybody else.
        """
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not complain of it
            raise

    async def lock(self, key: int) -> bool:
        try:
            return self._locks is None or self._locks.take(key)
        except OSError as error:
            raise StorageError(
                f"no thread of the SQLite file {self._path!r} can be taken: {error}"
            ) from error

    async def unlock(self, key: int) -> None:
        if self._locks is not None:
            if self._tasks:  # what a run that was cut off still writes belongs to its turn
                await asyncio.wait(set(self._tasks))
            self._locks.release(key)

    def failure(self, error: Exception) -> StorageError | None:
        """Return an error that names the file and what SQLite says of it, None for other errors."""
        if isinstance(error, ValueError) and str(error) in _CLOSED_TEXTS:
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
    """Open a file, which is made if it is not there; `StorageError` where that cannot be."""
    try:
        # aiosqlite's thread outlives a connection that fails, and dies noisily on a closed loop.
        await asyncio.to_thread(_try_file, path)
        connection = await aiosqlite.connect(path, timeout=_TIMEOUT_S)
    except Exception as error:
        raise StorageError(f"cannot open the SQLite file {path!r}: {error}") from error
    _stop_with_main_thread(connection)
    try:
        yield await _set_up(path, connection)
    finally:
        _connections.discard(connection)
        await connection.close()


async def _set_up(path: str, connection: aiosqlite.Connection) -> Store:
    store = SqliteStore(path, saver := AsyncSqliteSaver(connection))
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
    """Let the process end: aiosqlite's thread is no daemon and would hold it open for ever."""
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
