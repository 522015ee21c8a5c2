"""From a URL to checkpoint savers: opened lazily, on the loop that uses them, closed with it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import cache
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph.errors import ConfigurationError, StorageError
from agentgraph.running import run_sync

if TYPE_CHECKING:
    import aiosqlite

__all__ = ["LazySaver", "default_saver", "open_saver"]

_CONNECT_TIMEOUT_S = 10.0

_Connection = AbstractAsyncContextManager[BaseCheckpointSaver[str]]
_Opened = tuple[BaseCheckpointSaver[str], _Connection]


def default_saver() -> BaseCheckpointSaver[str]:
    """Return the environment's saver: Postgres if `POSTGRES_URL` is set, else memory."""
    return open_saver(os.environ.get("POSTGRES_URL") or "memory")


def open_saver(url: str) -> BaseCheckpointSaver[str]:
    """Return a saver for `memory`, `sqlite:///file.db` or `postgresql://…`; it connects on use."""
    return InMemorySaver() if url == "memory" else _shared(url)


@cache
def _shared(url: str) -> LazySaver:
    """Return one saver per store: its connections and the order of its threads are shared."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite" and url.startswith("sqlite:///"):
        path = url.removeprefix("sqlite:///")
        return LazySaver(lambda: _sqlite_saver(path))
    if scheme in ("postgresql", "postgres"):
        return LazySaver(lambda: _postgres_saver(url))
    raise ConfigurationError(
        f"a store with the scheme {scheme!r} is not known: "
        "write memory, sqlite:///file.db or postgresql://…"
    )


class LazySaver(BaseCheckpointSaver[str]):
    """Open the real saver on the running loop: savers bind to their loop and lock up on another."""

    def __init__(self, connect: Callable[[], _Connection]) -> None:
        super().__init__()
        self._connect = connect
        self._versions = InMemorySaver()
        self._allowlist: set[tuple[str, ...]] = set()
        self._opened: dict[asyncio.AbstractEventLoop, asyncio.Future[_Opened]] = {}

    async def _saver(self) -> BaseCheckpointSaver[str]:
        loop = asyncio.get_running_loop()
        opening = self._opened.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            for closed in [known for known in self._opened if known.is_closed()]:
                del self._opened[closed]
            opening = self._opened[loop] = asyncio.ensure_future(self._open())
        # Shielded: one caller that gives up must not close the door on the others.
        saver, _ = await asyncio.shield(opening)
        return saver.with_allowlist(self._allowlist) if self._allowlist else saver

    async def _open(self) -> _Opened:
        connection = self._connect()
        return await connection.__aenter__(), connection

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> LazySaver:
        """Return a saver on the same connections that may load these types too."""
        clone = LazySaver(self._connect)
        clone._opened = self._opened
        clone._allowlist = self._allowlist | set(extra_allowlist)
        return clone

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Count versions as all three stores do, which needs no connection."""
        return self._versions.get_next_version(current, channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await (await self._saver()).aget_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        saver = await self._saver()
        async for found in saver.alist(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await (await self._saver()).aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await (await self._saver()).aput_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await (await self._saver()).adelete_thread(thread_id)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        saver = await self._saver()
        return await saver.aget_delta_channel_history(config=config, channels=channels)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return run_sync(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def collect() -> Sequence[CheckpointTuple]:
            return [c async for c in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from run_sync(collect())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return run_sync(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        run_sync(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        run_sync(self.adelete_thread(thread_id))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return run_sync(self.aget_delta_channel_history(config=config, channels=channels))


@asynccontextmanager
async def _sqlite_saver(path: str) -> AsyncIterator[BaseCheckpointSaver[str]]:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    try:
        # aiosqlite's thread outlives a connection that fails, and dies noisily on a closed loop.
        await asyncio.to_thread(_try_file, path)
        connection = await aiosqlite.connect(path, timeout=_CONNECT_TIMEOUT_S)
    except Exception as error:
        raise StorageError(f"cannot open the SQLite file {path!r}: {error}") from error
    _stop_with_main_thread(connection)
    try:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        yield saver
    finally:
        _connections.discard(connection)
        await connection.close()


def _try_file(path: str) -> None:
    with closing(sqlite3.connect(path, timeout=_CONNECT_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA schema_version")


@asynccontextmanager
async def _postgres_saver(url: str) -> AsyncIterator[BaseCheckpointSaver[str]]:
    import psycopg
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    try:
        probe = await psycopg.AsyncConnection.connect(url, connect_timeout=int(_CONNECT_TIMEOUT_S))
    except psycopg.Error as error:
        # Neither the text nor the cause of it: both may hold parts of the URL.
        raise StorageError(
            f"cannot connect to Postgres ({type(error).__name__}): check POSTGRES_URL "
            "and that the server accepts connections"
        ) from None
    await probe.close()
    pool = AsyncConnectionPool(
        url,
        open=False,
        check=AsyncConnectionPool.check_connection,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    )
    async with pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]  # rows are dicts: kwargs above
        await saver.setup()
        yield saver


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
