"""Connections to Postgres, for checkpoints and for session logs.

A pool detects dead connections before it lends them. Neither its errors nor the driver's log
messages contain any part of a URL.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from agentgraph.errors import StorageError

_POOL_NAME = "agentgraph"
_TIMEOUT_S = 10
_EXIT_TIMEOUT_S = 5
_PROBE_AFTER_S = 1.0
"""How long a connection that has answered counts as alive."""

Connection: TypeAlias = psycopg.AsyncConnection[DictRow]

_Close: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_operation_start: ContextVar[float] = ContextVar("agentgraph_postgres_operation_start")
_is_our_driver: ContextVar[bool] = ContextVar("agentgraph_driver_is_ours", default=False)


async def open_pool(
    url: str, max_size: int, migrate: Callable[[Connection], Awaitable[None]]
) -> Pool:
    """Connect once to bring the tables up to date, then return an open pool.

    Raises `StorageError`, which contains neither the text nor the cause of the driver's error.
    """
    try:
        timeout = connect_timeout(url)
        # Connect once before: the pool retries silently, and would not report a wrong password.
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, row_factory=dict_row, connect_timeout=timeout
        ) as connection:
            await migrate(connection)
        pool = Pool(url, max_size, timeout)
        await pool.open(wait=True, timeout=timeout)
        return pool
    except psycopg.Error as error:
        kind = type(error).__name__
    # Raised outside of the handler: as its context, the driver's error could show the URL.
    if kind == psycopg.errors.LockNotAvailable.__name__:
        raise migration_stuck()
    raise StorageError(
        f"cannot connect to Postgres ({kind}): check POSTGRES_URL, or the URL that "
        "was given, and that the server accepts connections"
    )


class Pool(AsyncConnectionPool[Connection]):
    """Lends connections that were alive a moment ago; a queue of callers waits for one timeout."""

    def __init__(self, url: str, max_size: int, timeout: int) -> None:
        super().__init__(
            url,
            kwargs={
                "autocommit": True,
                "prepare_threshold": 0,
                "row_factory": dict_row,
                "connect_timeout": timeout,
            },
            name=_POOL_NAME,
            open=False,
            check=self._check,
            min_size=1,
            max_size=max_size,
            timeout=timeout,
            # No longer than a caller waits: then the next caller starts a new attempt at once.
            reconnect_timeout=timeout,
        )
        self._last_timeout_at = float("-inf")
        self._alive_at: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109
        # A caller that queued behind one that timed out has waited as long, and fails at once.
        # Otherwise a queue of many threads would wait for a dead server one timeout after another.
        if self._last_timeout_at > operation_start():
            raise PoolTimeout("the server did not answer the operation before this one")
        try:
            return await super().getconn(timeout)
        except PoolTimeout:
            self._last_timeout_at = asyncio.get_running_loop().time()
            raise

    @classmethod
    async def worker(cls, q: asyncio.Queue[Any]) -> None:
        """Work as the pool's workers do, and end when cancelled."""
        await super().worker(_CancellableQueue(q))  # type: ignore[arg-type]  # it only gets

    async def _check(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        try:
            if now - self._alive_at.get(connection, float("-inf")) > _PROBE_AFTER_S:
                await self.check_connection(connection)
                self._alive_at[connection] = now
            else:
                _detect_hangup(connection)
        except psycopg.Error:
            # If one connection is dead, all are: the pool would try each, with growing pauses.
            await self.drain()
            raise


class _CancellableQueue(asyncio.Queue[Any]):
    """The queue of a pool's worker; it ends the worker after a cancellation.

    The pool's worker takes a cancellation for a failure to connect and goes on, and a loop that is
    about to end would wait for it for ever.
    """

    def __init__(self, tasks: asyncio.Queue[Any]) -> None:
        super().__init__()
        self._tasks = tasks

    async def get(self) -> Any:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._tasks.get()


def _detect_hangup(connection: Connection) -> None:
    """Raise if the server has hung up; a query to find out would cost as much as the operation."""
    connection.pgconn.consume_input()  # the server's last message, if there is one
    connection.pgconn.consume_input()  # the end of the stream


@contextmanager
def operation(since: float | None = None) -> Iterator[None]:
    """Remove details from the driver's logging, and note when the operation begins.

    `since`, a time of the loop, is when it was asked for, if that was earlier.
    """
    start = asyncio.get_running_loop().time() if since is None else since
    token = _operation_start.set(start)
    try:
        with redacted_logging():
            yield
    finally:
        _operation_start.reset(token)


def operation_start() -> float:
    """Return when the current operation began, by the time of its loop."""
    return _operation_start.get(float("inf"))


def failure_of(error: Exception) -> StorageError | None:
    """Return the `StorageError` for an error of the driver, None for any other error.

    It names only the kind of the error: the text may contain parts of the URL, or data.
    """
    if not isinstance(error, psycopg.Error):
        return None
    kind = type(error).__name__
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StorageError(
            f"Postgres was lost or is out of reach ({kind}): check that the server runs "
            "and accepts connections, then call again"
        )
    return StorageError(f"Postgres refused an operation ({kind}): its log says why")


def migration_stuck() -> StorageError:
    """Return the error for a migration that waited too long for another process's migration."""
    return StorageError("another process has not finished migrating Postgres: look after it")


def connect_timeout(url: str) -> int:
    """Return how many seconds to wait for a connection."""
    seconds = str(conninfo_to_dict(url).get("connect_timeout") or "")
    return int(seconds) if seconds.isdigit() and int(seconds) else _TIMEOUT_S


_closers: dict[_Close, asyncio.AbstractEventLoop] = {}


def close_at_exit(close: _Close) -> Callable[[], None]:
    """Close a pool before the process ends, while its loop still runs.

    Otherwise asyncio warns of the pool's pending tasks. Returns a function to call when the pool
    has been closed earlier.
    """
    _register()
    _closers[close] = asyncio.get_running_loop()

    def forget() -> None:
        _closers.pop(close, None)

    return forget


@cache
def _register() -> None:
    def close_all() -> None:
        for close, loop in list(_closers.items()):
            if loop.is_running():
                with suppress(TimeoutError):
                    asyncio.run_coroutine_threadsafe(close(), loop).result(_EXIT_TIMEOUT_S)

    atexit.register(close_all)


@contextmanager
def redacted_logging() -> Iterator[None]:
    """Remove hosts, users and databases from the driver's log messages in here.

    This includes tasks that start in here, such as those of a pool that is opened here. Other pools
    of the process log as before.
    """
    _install_filter()
    token = _is_our_driver.set(True)
    try:
        yield
    finally:
        _is_our_driver.reset(token)


@cache
def _install_filter() -> None:
    for name in ("psycopg", "psycopg.pool", "psycopg.transaction"):
        logging.getLogger(name).addFilter(_redact)


def _redact(record: logging.LogRecord) -> bool:
    if not _is_our_driver.get():
        return True
    if record.levelno <= logging.DEBUG:
        return False  # the trace of a connection attempt has nothing but the address
    arguments = record.args if isinstance(record.args, tuple) else ()
    record.args = tuple(_redacted_argument(argument) for argument in arguments)
    record.exc_info = record.exc_text = record.stack_info = None
    return True


def _redacted_argument(argument: object) -> object:
    is_harmless = isinstance(argument, int | float) or argument == _POOL_NAME
    return argument if is_harmless else type(argument).__name__
