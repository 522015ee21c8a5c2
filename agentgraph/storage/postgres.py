"""Checkpoints in Postgres: a pool of connections per loop, and several savers on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from copy import copy
from typing import Any

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from agentgraph.clock import clock
from agentgraph.errors import StorageError
from agentgraph.running import Ownership
from agentgraph.storage.pool import (
    Connection,
    close_at_exit,
    connect_timeout,
    failure_of,
    migration_stuck,
    open_pool,
    operation,
    operation_start,
    redacted_logging,
)
from agentgraph.storage.postgres_locks import AdvisoryLocks
from agentgraph.storage.serializer import MessageSerializer
from agentgraph.storage.store import Saver, Store, stale_owner
from agentgraph.storage.upkeep import CheckpointRow, ThreadUpkeep

SAVERS = 8
"""How many savers and pooled connections an event loop has; one more connection locks threads."""

_MIGRATION_TIMEOUT_S = 120
_MIGRATION_POLL_S = 0.1
# Without a parameter: a statement with a parameter keeps its snapshot until the transaction ends,
# and the creation of indexes CONCURRENTLY would wait for it.
_TRY_LOCK = f"SELECT pg_try_advisory_xact_lock({0x6167656E74677261}) AS locked"


class PostgresStore(Store):
    """Several savers on one pool: the lock of a single saver would put all threads in one queue."""

    def __init__(self, savers: Sequence[Saver], locks: AdvisoryLocks) -> None:
        super().__init__(savers)
        self._locks = locks

    async def lock(self, key: int) -> bool:
        return await self._locks.take(_signed_key(key), operation_start())

    async def unlock(self, key: int) -> None:
        await self._locks.release(_signed_key(key))

    def operation(self) -> AbstractContextManager[None]:
        """Remove details from the driver's logging, and note when the operation begins."""
        return operation()

    def failure(self, error: Exception) -> StorageError | None:
        """Return an error that names only the kind of a failure: its text may contain the URL."""
        return failure_of(error)


class _Saver(ThreadUpkeep, AsyncPostgresSaver):
    """A saver that replaces characters that Postgres cannot store: NUL and lone surrogates.

    The saver stores short values of a checkpoint as JSON, such as a system prompt or a reason. It
    copies and prunes threads whose channels are stored as changes, which LangGraph's one refuses.
    """

    _ownership: Ownership | None = None

    def owned_by(self, ownership: Ownership) -> _Saver:
        """Return a saver of the same threads whose writes raise `StaleOwner` after a takeover."""
        clone = copy(self)
        clone._ownership = ownership
        return clone

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[Any]:
        """Yield a cursor; where several statements write as an owner, in one transaction.

        LangGraph asks for a pipeline where it writes, and only there.
        """
        ownership = self._ownership if pipeline else None
        async with super()._cursor(pipeline=pipeline and ownership is None) as cursor:
            if ownership is None:
                yield cursor
                return
            async with cursor.connection.transaction():
                await cursor.execute(_CHECK_OWNER, (ownership.session_key, ownership.epoch))
                if await cursor.fetchone() is None:
                    raise stale_owner(ownership)
                yield cursor

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        values = {key: _storable(value) for key, value in checkpoint["channel_values"].items()}
        storable: Checkpoint = {**checkpoint, "channel_values": values}
        return await super().aput(config, storable, metadata, new_versions)

    async def _rows(self, thread_id: str) -> list[CheckpointRow]:
        async with self._cursor() as cursor:
            await cursor.execute(_SELECT_ROWS, (thread_id,))
            return [CheckpointRow(**row) for row in await cursor.fetchall()]

    async def _threads_of(self, run_ids: Collection[str]) -> list[str]:
        async with self._cursor() as cursor:
            await cursor.execute(_SELECT_THREADS, (list(run_ids),))
            return [row["thread_id"] for row in await cursor.fetchall()]

    async def _remove(self, thread_id: str, rows: Collection[CheckpointRow]) -> None:
        places = [(thread_id, row.namespace, row.id) for row in rows]
        async with self._cursor() as cursor, cursor.connection.transaction():
            await cursor.executemany(_DELETE_CHECKPOINT, places)
            await cursor.executemany(_DELETE_WRITES, places)
            await cursor.execute(_DELETE_UNUSED_BLOBS, (thread_id,))

    async def _copy(self, source_thread_id: str, target_thread_id: str) -> None:
        async with self._cursor() as cursor, cursor.connection.transaction():
            for statement in _COPY_ROWS:
                await cursor.execute(statement, (target_thread_id, source_thread_id))


# The tables of sessions are in the same database. The row stays locked until the commit, so that a
# takeover waits for the checkpoint, or the checkpoint finds that it has lost the session.
_CHECK_OWNER = "SELECT 1 FROM agentgraph_sessions WHERE session_id = %s AND epoch = %s FOR SHARE"
_SELECT_ROWS = """
    SELECT checkpoint_ns AS namespace, checkpoint_id AS id, parent_checkpoint_id AS parent_id,
        metadata ->> 'run_id' AS run_id
    FROM checkpoints WHERE thread_id = %s
"""
_SELECT_THREADS = """
    SELECT DISTINCT thread_id FROM checkpoints WHERE metadata ->> 'run_id' = ANY(%s)
"""
_DELETE_CHECKPOINT = """
    DELETE FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
"""
_DELETE_WRITES = """
    DELETE FROM checkpoint_writes
    WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s
"""
_DELETE_UNUSED_BLOBS = """
    DELETE FROM checkpoint_blobs AS blob WHERE thread_id = %s AND NOT EXISTS (
        SELECT 1 FROM checkpoints AS kept
        WHERE kept.thread_id = blob.thread_id AND kept.checkpoint_ns = blob.checkpoint_ns
            AND kept.checkpoint -> 'channel_versions' ->> blob.channel = blob.version
    )
"""
_COPY_ROWS = (
    """
    INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,
        checkpoint, metadata)
    SELECT %s, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata
    FROM checkpoints WHERE thread_id = %s
    """,
    """
    INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT %s, checkpoint_ns, channel, version, type, blob
    FROM checkpoint_blobs WHERE thread_id = %s
    """,
    """
    INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx,
        channel, type, blob)
    SELECT %s, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob
    FROM checkpoint_writes WHERE thread_id = %s
    """,
)


def _storable(value: Any) -> Any:
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


@asynccontextmanager
async def open_postgres(url: str, *, savers: int = SAVERS) -> AsyncIterator[Store]:
    """Connect, bring the tables up to date and open a pool."""
    with redacted_logging():
        pool = await open_pool(url, savers, lambda connection: _migrate(url, connection))
    locks = AdvisoryLocks(url, connect_timeout(url))

    async def close() -> None:
        with redacted_logging():
            await locks.close()
            await pool.close()

    forget = close_at_exit(close)
    try:
        untyped_pool: Any = pool  # a saver is typed for a pool with its own row types
        serde = MessageSerializer()
        pool_savers = [_Saver(untyped_pool, serde=serde) for _ in range(savers)]
        yield PostgresStore(pool_savers, locks)
    finally:
        forget()
        await close()


def _signed_key(key: int) -> int:
    return key - 2**63  # the integers of Postgres have a sign


async def _migrate(url: str, connection: Connection) -> None:
    """Bring the tables up to date, one process at a time: parallel migrations would conflict."""
    deadline = clock().monotonic() + _MIGRATION_TIMEOUT_S
    while not await _is_migrated(connection):
        if await _migrate_alone(url, connection):
            return
        if clock().monotonic() > deadline:
            raise migration_stuck()
        await clock().sleep(_MIGRATION_POLL_S)


async def _is_migrated(connection: Connection) -> bool:
    try:
        cursor = await connection.execute("SELECT max(v) AS v FROM checkpoint_migrations")
    except psycopg.errors.UndefinedTable:
        return False
    row = await cursor.fetchone()
    return row is not None and (row["v"] or -1) >= len(AsyncPostgresSaver.MIGRATIONS) - 1


async def _migrate_alone(url: str, connection: Connection) -> bool:
    """Bring the tables up to date unless another process does; tell whether it was done here."""
    # A transaction's lock, because a session's lock gets lost behind a connection pooler. It is
    # tried and not awaited, because an index made CONCURRENTLY waits for all running statements.
    async with connection.transaction():
        cursor = await connection.execute(_TRY_LOCK)
        row = await cursor.fetchone()
        if row is None or not row["locked"]:
            return False
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
        return True
