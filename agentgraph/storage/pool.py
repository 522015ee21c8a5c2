"""A pool of connections to Postgres: dead ones are found out, and errors name no part of a URL."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Iterator
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
from agentgraph.storage.discretion import POOL_NAME, discreet

_TIMEOUT_S = 10
_EXIT_TIMEOUT_S = 5
_ASK_AFTER_S = 1.0

Connection: TypeAlias = psycopg.AsyncConnection[DictRow]

_Close: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

_began: ContextVar[float] = ContextVar("agentgraph_postgres_began")


@contextmanager
def operation() -> Iterator[None]:
    """Keep what the driver logs to itself, and note when this began."""
    token = _began.set(asyncio.get_running_loop().time())
    try:
        with discreet():
            yield
    finally:
        _began.reset(token)


def operation_began() -> float:
    """Return when the present operation began, by the time of its loop."""
    return _began.get(float("inf"))


class Pool(AsyncConnectionPool[Connection]):
    """Lend out connections that were alive a moment ago; none is waited for twice."""

    def __init__(self, url: str, lanes: int, timeout: int) -> None:
        super().__init__(
            url,
            kwargs={
                "autocommit": True,
                "prepare_threshold": 0,
                "row_factory": dict_row,
                "connect_timeout": timeout,
            },
            name=POOL_NAME,
            open=False,
            check=self._checked,
            min_size=1,
            max_size=lanes,
            timeout=timeout,
            # No longer than somebody waits: the next one who comes has a connection tried at once.
            reconnect_timeout=timeout,
        )
        self._gave_up = float("-inf")
        self._asked: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    async def getconn(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109
        # Whoever queued behind one that waited in vain has waited as long: else a lane of many
        # threads would give up on a dead server one timeout after the other.
        if self._gave_up > operation_began():
            raise PoolTimeout("the server did not answer the operation before this one")
        try:
            return await super().getconn(timeout)
        except PoolTimeout:
            self._gave_up = asyncio.get_running_loop().time()
            raise

    @classmethod
    async def worker(cls, q: asyncio.Queue[Any]) -> None:
        """Work as the pool's workers do, and end when cancelled."""
        await super().worker(_Mortal(q))  # type: ignore[arg-type]  # it gets, and does no more

    async def _checked(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        try:
            if now - self._asked.get(connection, float("-inf")) > _ASK_AFTER_S:
                await self.check_connection(connection)
                self._asked[connection] = now
            else:
                _listen(connection)
        except psycopg.Error:
            # Where one is dead all are: the pool would try each, pausing longer each time.
            await self.drain()
            raise


class _Mortal(asyncio.Queue[Any]):
    """The queue of a worker that takes a cancellation for a failure to connect, and would go on.

    The loop that is about to end would wait for it for ever.
    """

    def __init__(self, tasks: asyncio.Queue[Any]) -> None:
        super().__init__()
        self._tasks = tasks

    async def get(self) -> Any:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._tasks.get()


def _listen(connection: Connection) -> None:
    """Raise if the server has hung up: to ask it would take as long as the operation itself."""
    connection.pgconn.consume_input()  # its last words, if there are any
    connection.pgconn.consume_input()  # the end


def failure_of(error: Exception) -> StorageError | None:
    """Name the kind of a failure: its text may hold parts of the URL, or data."""
    if not isinstance(error, psycopg.Error):
        return None
    kind = type(error).__name__
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StorageError(
            f"Postgres was lost or is out of reach ({kind}): check that the server runs "
            "and accepts connections, then call again"
        )
    return StorageError(f"Postgres refused an operation ({kind}): its log says why")


def unreachable(kind: str) -> StorageError:
    """Say that there is no connection to begin with."""
    return StorageError(
        f"cannot connect to Postgres ({kind}): check POSTGRES_URL, or the URL that "
        "was given, and that the server accepts connections"
    )


def timeout_of(url: str) -> int:
    """Return how many seconds to wait for a connection."""
    given = str(conninfo_to_dict(url).get("connect_timeout") or "")
    return int(given) if given.isdigit() and int(given) else _TIMEOUT_S


_closers: dict[_Close, asyncio.AbstractEventLoop] = {}


def close_at_exit(close: _Close) -> Callable[[], None]:
    """Let the process end quietly: a loop that still runs then would lose its pool's tasks.

    The result is for whoever closes it before.
    """
    _register()
    _closers[close] = asyncio.get_running_loop()

    def closed() -> None:
        _closers.pop(close, None)

    return closed


@cache
def _register() -> None:
    def close_all() -> None:
        for close, loop in list(_closers.items()):
            if loop.is_running():
                with suppress(TimeoutError):
                    asyncio.run_coroutine_threadsafe(close(), loop).result(_EXIT_TIMEOUT_S)

    atexit.register(close_all)
