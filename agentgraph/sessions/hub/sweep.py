"""The sweep: has sessions driven that are due by the clock, or that a dead hub has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentgraph.clock import clock
from agentgraph.sessions.log import Log

logger = logging.getLogger("agentgraph")

_INTERVAL_S = 1.0


class Sweep:
    """Looks through the store when a session is due, and every second for what others left.

    A store without notifications (SQLite, between processes) has no other way to tell that a hub
    has died with sessions unfinished.
    """

    def __init__(self, log: Log, wake: Callable[[str], None]) -> None:
        self._log = log
        self._wake = wake
        self._next_due = float("inf")
        self._is_earlier = asyncio.Event()
        """Whether something is due before what the present pause ends with."""

    async def run(self) -> None:
        """Look through the store for as long as the hub is open."""
        while True:
            try:
                due_at = await self._log.next_due()
                self._next_due = float("inf") if due_at is None else due_at
                await self.wake_unfinished()
            except Exception as error:
                logger.warning("the store cannot be looked through: %s", error)
            self._is_earlier.clear()
            await self._pause(max(0.0, min(_INTERVAL_S, self._next_due - clock().wall())))

    async def wake_unfinished(self) -> None:
        """Wake all sessions that need somebody to drive them."""
        for session_id in await self._log.unfinished_sessions(clock().wall()):
            self._wake(session_id)

    def schedule(self, due_at: float | None) -> None:
        """Take note of when a session is due."""
        if due_at is not None and due_at < self._next_due:
            self._is_earlier.set()

    async def _pause(self, seconds: float) -> None:
        timer = asyncio.ensure_future(clock().sleep(seconds))
        earlier = asyncio.ensure_future(self._is_earlier.wait())
        try:
            await asyncio.wait({timer, earlier}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            earlier.cancel()
