"""The drivers of a hub: one for each session that the hub has something to do with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from agentgraph.driving.engine import Engine
from agentgraph.sessions.drivers.driver import DriverHub, SessionDriver
from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.rounds.owned_session import OwnedSession


class Drivers:
    """Makes the driver of a session when it is first needed, and wakes those that have work.

    Sessions are named by their keys in the log.
    """

    def __init__(self, hub: DriverHub, engine: Engine) -> None:
        self._hub = hub
        self._engine = engine
        self._drivers: dict[str, SessionDriver] = {}
        self._is_draining = False

    def __iter__(self) -> Iterator[SessionDriver]:
        return iter(list(self._drivers.values()))

    def get(self, session_id: str) -> SessionDriver | None:
        """Return the driver of a session, None if it has none at present."""
        return self._drivers.get(session_id)

    def owned_session(self, session_id: str) -> OwnedSession | None:
        """Return a session's `OwnedSession`, None if the hub does not own it."""
        driver = self._drivers.get(session_id)
        return driver.session if driver is not None else None

    def at_work(self) -> list[str]:
        """Return the sessions that the hub owns and works on."""
        drivers = self._drivers.items()
        return [key for key, driver in drivers if driver.session and not driver.is_resting]

    def wake(self, session_id: str, *, has_entry: bool = True) -> None:
        """Wake the driver of a session: an agent or a timer may be due.

        Its inbox may have an entry, unless `has_entry` is False. Where other processes drive, one
        of them is woken.
        """
        if not self._engine.drives:
            self._engine.wake(session_id, is_new=True)
        elif not self._is_draining or self.owned_session(session_id) is not None:
            self._driver_of(session_id).wake(has_entry=has_entry)

    def wake_again(self, session_id: str, *, has_entry: bool) -> None:
        """Wake the driver of a session that nobody drives, though it has something to do."""
        if self._engine.drives:
            self.wake(session_id, has_entry=has_entry)
        else:
            self._engine.wake(session_id, is_new=False)

    def look(self, session_id: str) -> None:
        """Wake the driver of a session that is only looked at, if it is one of this hub.

        That begins a fork, and what a hub that has just died was at, before the sweep comes by.
        """
        if self._engine.drives:
            self.wake(session_id, has_entry=False)

    def wake_all(self) -> None:
        """Wake all drivers."""
        for driver in self:
            driver.wake()

    def wake_suspended(self) -> None:
        """Wake the drivers of damaged sessions, whose records may have been restored."""
        for driver in self:
            if isinstance(driver.quarantine, DamagedSession):
                driver.wake()

    def try_again(self) -> None:
        """Look again at the sessions that could not run in this hub."""
        for driver in self:
            driver.try_again()

    def quarantine(self, session_id: str, damage: DamagedSession) -> None:
        """Keep a session from running, as a record of it was found to be damaged."""
        self._driver_of(session_id).suspend(damage)

    async def begin(self, session_id: str, entries: Sequence[InboxEntry]) -> bool:
        """Append an input, or decisions, at once; False if something is under way or waits."""
        return await self._driver_of(session_id).begin(entries)

    async def halt(self, session_id: str) -> None:
        """Cancel what the hub runs of a session, and run no more of it until `resume`."""
        await self._driver_of(session_id).stop()

    async def halt_all(self) -> None:
        """Cancel what the hub runs, and release its sessions."""
        for driver in self:
            await driver.stop()

    async def drain(self, grace_s: float) -> int:
        """Take no more sessions, and hand back those of the hub, each as it comes to rest.

        Returns how many were still at work at the end of the grace; these are cut off.
        """
        self._is_draining = True
        drivers = [driver for driver in self if driver.session is not None or not driver.is_resting]
        return sum(await asyncio.gather(*(driver.hand_back(grace_s) for driver in drivers)))

    def resume(self, session_id: str) -> None:
        """Run a session again after `halt`, if it is still there."""
        self._drivers.pop(session_id, None)
        self.wake(session_id)

    def dismiss(self, session_id: str) -> None:
        """Drop the driver of a session that has ended: a hub sees many sessions."""
        self._drivers.pop(session_id, None)

    def _driver_of(self, session_id: str) -> SessionDriver:
        driver = self._drivers.get(session_id)
        if driver is None:
            driver = self._drivers[session_id] = SessionDriver(self._hub, session_id)
        return driver
