"""Listens for the change notifications that Postgres sends (LISTEN and NOTIFY)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import psycopg

from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.live import LiveNotice, WatchNotice
from agentgraph.sessions.log.postgres.sql import CHANNEL
from agentgraph.sessions.log.protocol import AppendNotice
from agentgraph.sessions.log.rows import from_ascii
from agentgraph.storage.pool import redacted_logging

POLL_S = 5.0
"""How often subscribers are notified to look, even if no notification has arrived."""
RETRY_S = 0.5
"""The pause before reconnecting after a lost connection."""

_MAX_PAYLOAD = 7_000
# Before the id of a session they say what has happened; `to_ascii` leaves none of them in an id.
_APPEND_MARK = "\n"
_LIVE_MARK = "\t"
WATCH_PAYLOAD = "\r"
"""The payload that says that a hub has begun, or ceased, to watch a session."""


def payload_of(session_id: str, *, is_append: bool = False) -> str:
    """Return the payload of a notification: the session's id, or "" if that is too long.

    Postgres sends at most 8,000 bytes; "" means that any session may have changed.
    """
    mark = _APPEND_MARK if is_append else ""
    return f"{mark}{session_id}" if len(session_id) <= _MAX_PAYLOAD else ""


def live_payload_of(session_id: str) -> str:
    """Return the payload which says that a session has new live events."""
    return f"{_LIVE_MARK}{session_id if len(session_id) <= _MAX_PAYLOAD else ''}"


def _notice_of(payload: str) -> str | None:
    """Return what listeners are called with."""
    mark, session_id = payload[:1], from_ascii(payload.lstrip("\n\t\r"))
    if mark == WATCH_PAYLOAD:
        return WatchNotice()
    if mark == _LIVE_MARK:
        return LiveNotice(session_id)
    if mark == _APPEND_MARK and session_id:
        return AppendNotice(session_id)
    return session_id or None


class NotificationListener:
    """A connection that listens for notifications, and reconnects when it is lost."""

    def __init__(self, url: str, timeout: int, listeners: Listeners) -> None:
        self._url = url
        self._timeout = timeout
        self._listeners = listeners
        self._task: asyncio.Task[None] | None = None
        self.is_connected = False

    def start(self) -> None:
        """Begin to listen, unless it is listening already."""
        if self._task is None:
            with redacted_logging():
                self._task = asyncio.get_running_loop().create_task(self._listen())

    async def stop(self) -> None:
        """Stop listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _listen(self) -> None:
        while True:
            with suppress(psycopg.Error, TimeoutError, OSError):
                await self._connect_and_listen()
            # Changes between two connections were notified to no listener.
            self._listeners.notify(None)
            with suppress(TimeoutError):
                # The loop's own time, as the clock of a test may stand still.
                async with asyncio.timeout(RETRY_S):
                    await asyncio.Event().wait()

    async def _connect_and_listen(self) -> None:
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=None, connect_timeout=self._timeout
        )
        try:
            await connection.execute(f"LISTEN {CHANNEL}".encode())
            self.is_connected = True
            while True:
                # A query finds out that a connection died silently; and behind a connection pooler
                # no notification may ever arrive, so subscribers are notified as well.
                async with asyncio.timeout(self._timeout):
                    await connection.execute("SELECT 1")
                self._listeners.notify(None)
                async for notification in connection.notifies(timeout=POLL_S):
                    self._forward(notification.payload)
        finally:
            self.is_connected = False
            await connection.close()

    def _forward(self, payload: str) -> None:
        self._listeners.notify(_notice_of(payload))
