"""The lease under which a hub owns sessions: prolonged while the hub lives.

A hub has one lease for all its sessions. Another hub may claim them once the lease has expired, or
as soon as the owner's process is known to be dead.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path

from agentgraph.clock import clock, new_id
from agentgraph.sessions.log import Log

logger = logging.getLogger("agentgraph")

_SEPARATOR = "|"


class Lease:
    """The lease of one hub; a lease after a lapsed one has a new number."""

    def __init__(self, log: Log, seconds: float, when_lapsed: Callable[[], None]) -> None:
        self.owner = new_owner()
        self._log = log
        self._seconds = seconds
        self._when_lapsed = when_lapsed
        self._until = float("-inf")
        self._number = 0

    @property
    def number(self) -> int | None:
        """The number of the valid lease, None while it has lapsed."""
        return self._number if clock().wall() < self._until else None

    async def prolong(self) -> None:
        """Prolong the lease; if it has lapsed, other hubs may have claimed sessions meanwhile."""
        until = clock().wall() + self._seconds
        await self._log.heartbeat(self.owner, until)
        # Checked after the write, which may be slow: until it is stored, the old lease counts.
        has_lapsed = clock().wall() >= self._until
        self._until = until
        if has_lapsed:
            self._number += 1
            self._when_lapsed()

    async def keep_alive(self) -> None:
        """Prolong the lease for as long as the hub is open."""
        while True:
            await clock().sleep(self._seconds / 3)
            try:
                await self.prolong()
            except Exception as error:  # the store is unreachable, so the lease may lapse
                logger.warning("the lease could not be prolonged: %s", error)


def new_owner() -> str:
    """Return an owner id for a hub of this process; it shows other hubs if the process lives."""
    return _SEPARATOR.join((_host(), str(os.getpid()), _start_time(os.getpid()), new_id()))


def is_gone(owner: str) -> bool:
    """Tell whether a hub's process is known to be dead, which only its own host can know."""
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
    # The process id may have been reused by another process.
    return _is_zombie(pid) or _start_time(pid) != parts[2]


@cache
def _host() -> str:
    """Return an id of machine, boot and namespace of process ids: containers differ in these."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}:{boot}:{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start_time(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] == ["Z"]


def _stat(pid: int) -> list[str]:
    """Return the kernel's fields of a process after its name; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
