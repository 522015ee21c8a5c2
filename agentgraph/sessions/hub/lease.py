"""The lease under which a hub drives sessions: who owns it, and how it is prolonged."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from agentgraph.clock import clock, new_id

if TYPE_CHECKING:
    from agentgraph.sessions.hub.hub import Hub


_SEPARATOR = "|"


def new_owner() -> str:
    """Return a name for a hub of this process."""
    return _SEPARATOR.join((_host(), str(os.getpid()), _born(os.getpid()), new_id()))


def is_gone(owner: str) -> bool:
    """Tell whether a hub's process is known to be dead: only one of this host can be."""
    parts = owner.split(_SEPARATOR)
    if len(parts) != 4 or parts[0] != _host() or not parts[1].isdigit():
        return False
    pid = int(parts[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    # The number may have been given to another process since.
    return _is_zombie(pid) or _born(pid) != parts[2]


@cache
def _host() -> str:
    """Name the machine, and the world of process numbers on it: containers have their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}:{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _born(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] == ["Z"]


def _stat(pid: int) -> list[str]:
    """Return what the kernel tells of a process after its name, nothing where it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


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
        await self._hub.log.heartbeat(self._hub.owner, until)
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
