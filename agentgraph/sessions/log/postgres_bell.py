"""Changes of sessions, as Postgres tells them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg

from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.postgres_sql import CHANNEL
from agentgraph.sessions.log.protocol import Grown
from agentgraph.sessions.log.rows import plain
from agentgraph.storage.discretion import discreet

POLL_S = 5.0
RETRY_S = 0.5
GROWN = "\n"
"""Stands before the id of a session whose log has grown; in no id that is told."""


class Bell:
    """One connection that listens, and is made again when it is lost."""

    def __init__(self, url: str, timeout: int, listeners: Listeners) -> None:
        self._url = url
        self._timeout = timeout
        self._listeners = listeners
        self._task: asyncio.Task[None] | None = None
        self.hears = False

    def hang(self) -> None:
        """Begin to listen, if it does not already."""
        if self._task is None:
            with discreet():
                self._task = asyncio.get_running_loop().create_task(self._listen())

    async def remove(self) -> None:
        """Listen no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self) -> None:
        while True:
            with suppress(psycopg.Error, TimeoutError, OSError):
                await self._connect_and_listen()
            # What happened meanwhile went unheard, and what happens next will too.
            self._listeners.tell(None)
            with suppress(TimeoutError):
                # By the loop's own time: that of a test may stand still.
                async with asyncio.timeout(RETRY_S):
                    await asyncio.Event().wait()

    async def _connect_and_listen(self) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=None, connect_timeout=self._timeout
        )
        try:
            await connection.execute(f"LISTEN {CHANNEL}".encode())
            self.hears = True
            while True:
                # A connection that died without a word is found out by asking; and where a pooler
                # stands between, nothing may ever be heard.
                async with asyncio.timeout(self._timeout):
                    await connection.execute("SELECT 1")
                self._listeners.tell(None)
                async for heard in connection.notifies(timeout=POLL_S):
                    told = plain(heard.payload.removeprefix(GROWN)) or None
                    is_news = told is not None and heard.payload.startswith(GROWN)
                    self._listeners.tell(Grown(told) if is_news else told)
        finally:
            self.hears = False
            await connection.close()
