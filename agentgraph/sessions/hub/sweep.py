"""The sweep: wakes the drivers of sessions that are due, or that a dead hub has left unfinished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agentgraph.clock import clock
from agentgraph.sessions.log import Log

logger = logging.getLogger("agentgraph")

_INTERVAL_S = 1.0


class Sweep:
    """Looks through the store when a session is due, and at least every second.

    A store without notifications (SQLite, between processes) has no other way to show that a hub
    has died with unfinished sessions.
    """

    def __init__(self, log: Log, wake: Callable[[str], None]) -> None:
        self._log = log
        self._wake = wake
        self._next_due = float("inf")
        self._is_earlier = asyncio.Event()
        """Set when a session is due before the end of the present pause."""

    async def run(self) -> None:
        """Look through the store, again and again, for as long as the hub is open."""
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
        """Wake the drivers of all sessions that need an owner."""
        for session_id in await self._log.unfinished_sessions(clock().wall()):
            self._wake(session_id)

    def schedule(self, due_at: float | None) -> None:
        """Make sure that the sweep looks no later than `due_at`."""
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
