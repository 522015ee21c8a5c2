"""A hub's pulse: its lease, which it prolongs, and the times at which sessions are due."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentgraph.clock import clock

if TYPE_CHECKING:
    from agentgraph.sessions.hub import Hub

__all__ = ["Pulse"]

log = logging.getLogger("agentgraph")

_LOOK_S = 1.0


class Pulse:
    """The lease is the hub's, for all sessions that it has; each that lapsed gets a new number."""

    def __init__(self, hub: Hub, lease_s: float) -> None:
        self._hub = hub
        self._lease_s = lease_s
        self._until = float("-inf")
        self._number = 0
        self._retime = asyncio.Event()
        self._next_due = float("inf")

    @property
    def lease(self) -> int | None:
        """The number of the lease that holds, None while none does."""
        return self._number if clock().wall() < self._until else None

    async def beat(self) -> None:
        """Prolong the lease; after one that has lapsed, sessions may have been taken over."""
        until = clock().wall() + self._lease_s
        await self._hub.log.beat(self._hub.owner, until)
        # Afterwards, as it may have taken its time: until it has got there, the old lease counted.
        has_lapsed = clock().wall() >= self._until
        self._until = until
        if has_lapsed:
            self._number += 1
            self._hub.wake_all()

    async def keep_alive(self) -> None:
        """Prolong the lease for as long as the hub is open."""
        while True:
            await clock().sleep(self._lease_s / 3)
            try:
                await self.beat()
            except Exception as error:  # the store is away: the lease may end, and others take over
                log.warning("the lease could not be prolonged: %s", error)

    async def watch_time(self) -> None:
        """Look at the sessions when one is due, and every second for what others have left."""
        while True:
            try:
                due = await self._hub.log.next_due()
                self._next_due = float("inf") if due is None else due
                await self._hub.look()
            except Exception as error:
                log.warning("the store cannot be looked through: %s", error)
            self._retime.clear()
            await self._pause(max(0.0, min(_LOOK_S, self._next_due - clock().wall())))

    def schedule(self, due_at: float | None) -> None:
        """Take note of when a session is due."""
        if due_at is not None and due_at < self._next_due:
            self._retime.set()

    async def _pause(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(clock().sleep(seconds))
        waking = asyncio.ensure_future(self._retime.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()
