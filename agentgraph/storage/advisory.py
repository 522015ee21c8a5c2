"""Threads taken in Postgres: advisory locks on a connection of their own, gone when it is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

_Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

# In a transaction, as a connection pooler lends out its connections by that: an unlock would else
# go to another one. It has no snapshot and keeps nothing from being cleaned up. It may be idle for
# as long as a turn takes, and a machine that is gone must not keep its threads for hours.
_BEGIN = (
    "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL tcp_keepalives_idle = 30; "
    "SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3; "
)


# Newer servers can limit a whole transaction too.
_UNLIMITED = "SET LOCAL transaction_timeout = 0; "


def _begin(connection: _Connection) -> str:
    return _BEGIN + (_UNLIMITED if connection.info.server_version >= 170_000 else "")


class AdvisoryLocks:
    """The locks of one store; it asks for one at a time."""

    def __init__(self, url: str, timeout: int) -> None:
        self._url = url
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._keys: set[int] = set()
        self._gave_up = float("-inf")
        self._closed = False

    async def take(self, key: int, since: float) -> bool:
        """Try to take a lock; `since` is when the caller began to wait for an answer."""
        if self._connection is not None:
            try:
                return await self._take(self._connection, key)
            except psycopg.Error:  # it died since it was used last
                await self._drop()
        return await self._take(await self._connected(since), key)

    async def release(self, key: int) -> None:
        """Give a lock back; a connection that has died has done so."""
        self._keys.discard(key)
        if self._connection is None:
            return
        try:
            end = "" if self._keys else "; COMMIT"
            await self._connection.execute(f"SELECT pg_advisory_unlock({key}){end}".encode())
        except psycopg.Error:
            await self._drop()

    async def close(self) -> None:
        """Give all back, for good."""
        self._closed = True
        await self._drop()

    async def _take(self, connection: _Connection, key: int) -> bool:
        resting = connection.info.transaction_status == TransactionStatus.IDLE
        begin = _begin(connection) if resting else ""
        locked = await _ask(connection, f"{begin}SELECT pg_try_advisory_lock({key})")
        if locked:
            self._keys.add(key)
        elif not self._keys:
            await connection.execute("COMMIT")
        return locked

    async def _connected(self, since: float) -> _Connection:
        # Whoever queued behind one that waited in vain has waited as long.
        if self._closed or self._gave_up > since:
            raise psycopg.OperationalError("the server did not answer the one before")
        try:
            self._connection = await psycopg.AsyncConnection.connect(
                self._url,
                autocommit=True,
                # Never prepared: several statements go in one message.
                prepare_threshold=None,
                connect_timeout=self._timeout,
            )
        except psycopg.Error:
            self._gave_up = asyncio.get_running_loop().time()
            raise
        # The turns of these go on, and are best protected again; one may be somebody else's by now.
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
