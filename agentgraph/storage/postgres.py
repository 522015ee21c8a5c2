"""Checkpoints in Postgres: a pool per loop, and several savers on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row

from agentgraph.clock import clock
from agentgraph.errors import StorageError
from agentgraph.storage.advisory import AdvisoryLocks
from agentgraph.storage.discretion import discreet
from agentgraph.storage.pool import (
    Connection,
    Pool,
    close_at_exit,
    failure_of,
    operation,
    operation_began,
    timeout_of,
    unreachable,
)
from agentgraph.storage.store import Saver, Store

LANES = 8
"""Savers, and at most as many connections, per event loop; one more connection takes threads."""

_MIGRATION_TIMEOUT_S = 120
_MIGRATION_POLL_S = 0.1
# Without a parameter: a statement that has one keeps its snapshot up to the transaction's end, and
# the indexes that are made CONCURRENTLY would wait for it.
_TRY_LOCK = f"SELECT pg_try_advisory_xact_lock({0x6167656E74677261}) AS locked"


class PostgresStore(Store):
    """Savers on one pool: the lock of a single one would put all threads in one queue."""

    def __init__(self, lanes: Sequence[Saver], locks: AdvisoryLocks) -> None:
        super().__init__(lanes)
        self._locks = locks

    async def lock(self, key: int) -> bool:
        return await self._locks.take(_signed(key), operation_began())

    async def unlock(self, key: int) -> None:
        await self._locks.release(_signed(key))

    def operation(self) -> AbstractContextManager[None]:
        """Keep what the driver logs to itself, and note when this began."""
        return operation()

    def failure(self, error: Exception) -> StorageError | None:
        """Name the kind of a failure: its text may hold parts of the URL, or data."""
        return failure_of(error)


class _Saver(AsyncPostgresSaver):
    """Store what Postgres cannot hold without it: NUL, and halves of characters.

    Of a checkpoint, short values are kept as JSON, a system prompt or a reason among them.
    """

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        values = {key: _fit(value) for key, value in checkpoint["channel_values"].items()}
        fit: Checkpoint = {**checkpoint, "channel_values": values}
        return await super().aput(config, fit, metadata, new_versions)


def _fit(value: Any) -> Any:
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


@asynccontextmanager
async def open_postgres(url: str, *, lanes: int = LANES) -> AsyncIterator[Store]:
    """Connect, bring the tables up to date and open a pool."""
    with discreet():
        pool = await _opened_pool(url, lanes)
    locks = AdvisoryLocks(url, timeout_of(url))

    async def close() -> None:
        with discreet():
            await locks.close()
            await pool.close()

    closed = close_at_exit(close)
    try:
        savers: Any = [_Saver(pool) for _ in range(lanes)]
        yield PostgresStore(savers, locks)
    finally:
        closed()
        await close()


def _signed(key: int) -> int:
    return key - 2**63  # Postgres has no other


async def _opened_pool(url: str, lanes: int) -> Pool:
    try:
        timeout = timeout_of(url)
        # Beforehand: the pool goes on trying, and would not tell that a password is wrong.
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, row_factory=dict_row, connect_timeout=timeout
        ) as connection:
            await _migrate(url, connection)
        pool = Pool(url, lanes, timeout)
        await pool.open(wait=True, timeout=timeout)
        return pool
    except psycopg.Error as error:
        kind = type(error).__name__
    # Out here, and neither the text nor the cause of it: both may hold parts of the URL.
    raise unreachable(kind)


async def _migrate(url: str, connection: Connection) -> None:
    """Bring the tables up to date, one process at a time: two at once would trip each other up."""
    deadline = clock().monotonic() + _MIGRATION_TIMEOUT_S
    while not await _is_migrated(connection):
        if await _migrated_alone(url, connection):
            return
        if clock().monotonic() > deadline:
            raise StorageError("another process has not finished migrating Postgres: look after it")
        await clock().sleep(_MIGRATION_POLL_S)


async def _is_migrated(connection: Connection) -> bool:
    try:
        cursor = await connection.execute("SELECT max(v) AS v FROM checkpoint_migrations")
    except psycopg.errors.UndefinedTable:
        return False
    row = await cursor.fetchone()
    return row is not None and (row["v"] or -1) >= len(AsyncPostgresSaver.MIGRATIONS) - 1


async def _migrated_alone(url: str, connection: Connection) -> bool:
    # A lock of a transaction, as those of a session go astray behind a connection pooler; tried
    # and not awaited, as an index made CONCURRENTLY waits in turn for all statements that run.
    async with connection.transaction():
        cursor = await connection.execute(_TRY_LOCK)
        row = await cursor.fetchone()
        if row is None or not row["locked"]:
            return False
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
        return True
