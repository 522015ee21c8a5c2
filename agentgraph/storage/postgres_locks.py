"""Locks on threads in Postgres: advisory locks of a separate connection, which end with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

_Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

# The locks belong to a transaction: a connection pooler lends a connection for one transaction, and
# would send a later unlock to another connection. The transaction has no snapshot, so it does not
# block vacuuming. It may be idle for as long as a turn takes; because of the keepalives, the locks
# of a machine that is gone do not stay for hours.
_BEGIN = (
    "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL tcp_keepalives_idle = 30; "
    "SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3; "
)
# Servers from version 17 on can limit a whole transaction too.
_NO_TRANSACTION_LIMIT = "SET LOCAL transaction_timeout = 0; "


def _begin(connection: _Connection) -> str:
    return _BEGIN + (_NO_TRANSACTION_LIMIT if connection.info.server_version >= 170_000 else "")


class AdvisoryLocks:
    """The locks of one store, which takes and releases one at a time.

    All methods except `release` raise `psycopg.Error` where the server does not answer.
    """

    def __init__(self, url: str, timeout: int) -> None:
        self._url = url
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._keys: set[int] = set()
        self._last_failure_at = float("-inf")
        self._is_closed = False

    async def take(self, key: int, since: float) -> bool:
        """Try to take a lock, without waiting for it; `since` is when the caller's operation began.

        A caller whose operation began before the last failure to connect fails at once.
        """
        if self._connection is not None:
            try:
                return await self._take(self._connection, key)
            except psycopg.Error:  # the connection died since its last use
                await self._drop()
        return await self._take(await self._reconnect(since), key)

    async def release(self, key: int) -> None:
        """Release a lock; never fail, as a dead connection has no locks."""
        self._keys.discard(key)
        if self._connection is None:
            return
        try:
            end = "" if self._keys else "; COMMIT"
            await self._connection.execute(f"SELECT pg_advisory_unlock({key}){end}".encode())
        except psycopg.Error:
            await self._drop()

    async def close(self) -> None:
        """Release all locks; no lock can be taken afterwards."""
        self._is_closed = True
        await self._drop()

    async def _take(self, connection: _Connection, key: int) -> bool:
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        begin = _begin(connection) if is_idle else ""
        success = await _ask(connection, f"{begin}SELECT pg_try_advisory_lock({key})")
        if success:
            self._keys.add(key)
        elif not self._keys:
            await connection.execute("COMMIT")
        return success

    async def _reconnect(self, since: float) -> _Connection:
        # A caller that queued behind one that timed out has waited as long.
        if self._is_closed or self._last_failure_at > since:
            raise psycopg.OperationalError("the server did not answer the one before")
        try:
            self._connection = await psycopg.AsyncConnection.connect(
                self._url,
                autocommit=True,
                # A message with several statements cannot be a prepared statement.
                prepare_threshold=None,
                connect_timeout=self._timeout,
            )
        except psycopg.Error:
            self._last_failure_at = asyncio.get_running_loop().time()
            raise
        # The turns on these threads go on, so their locks are taken again. Another process may have
        # taken one of the locks in between.
        for key in list(self._keys):
            await self._take(self._connection, key)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()


async def _ask(connection: _Connection, query: str) -> bool:
    cursor = await connection.execute(query.encode())
    while cursor.nextset():
        pass
    row = await cursor.fetchone()
    return bool(row and row[0])
