"""The sweep: wakes the drivers of sessions that are due, or that a dead hub has left unfinished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from agentgraph.clock import clock
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.protocol import EmptyInbox

logger = logging.getLogger("agentgraph")

_INTERVAL_S = 1.0


class WakeSession(Protocol):
    """Wakes the driver of a session, whose inbox may have an entry."""

    def __call__(self, session_id: str, *, has_entry: bool) -> None: ...


class Sweep:
    """Looks through the store when a session is due, and at least every second.

    A store without notifications (SQLite, between processes) has no other way to show that a hub
    has died with unfinished sessions.
    """

    def __init__(self, log: Log, wake: WakeSession, wake_suspended: Callable[[], None]) -> None:
        self._log = log
        self._wake_suspended = wake_suspended
        self._wake = wake
        self._next_look = float("-inf")
        """When the present pause ends; in the past during a look."""
        self._earliest = float("inf")
        """The first of the times scheduled since the last look began."""
        self._is_earlier = asyncio.Event()
        """Set when a session is due before the end of the present pause."""

    async def run(self) -> None:
        """Look through the store, again and again, for as long as the hub is open."""
        while True:
            now, self._next_look, self._earliest = clock().wall(), float("-inf"), float("inf")
            try:
                await self.wake_unfinished()
                # What was due by now has been woken. It may stay due for long, in a session that
                # this hub cannot drive, and must not shorten the pause.
                due_at = await self._log.next_due(now)
            except Exception as error:
                logger.warning("the store cannot be looked through: %s", error)
                due_at = None
            limit = min(now + _INTERVAL_S, self._earliest)
            self._next_look = limit if due_at is None else min(limit, due_at)
            self._is_earlier.clear()
            await self._pause(max(0.0, self._next_look - clock().wall()))

    async def wake_unfinished(self) -> None:
        """Wake the drivers of all sessions that need an owner."""
        self._wake_suspended()
        for session_id in await self._log.unfinished_sessions(clock().wall()):
            self._wake(session_id, has_entry=not isinstance(session_id, EmptyInbox))

    def schedule(self, due_at: float | None) -> None:
        """Make sure that the sweep looks no later than `due_at`."""
        if due_at is None:
            return
        self._earliest = min(self._earliest, due_at)  # where it is called during a look
        if due_at < self._next_look:
            self._is_earlier.set()

    async def _pause(self, seconds: float) -> None:
        timer = asyncio.ensure_future(clock().sleep(seconds))
        earlier = asyncio.ensure_future(self._is_earlier.wait())
        try:
            await asyncio.wait({timer, earlier}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            earlier.cancel()
