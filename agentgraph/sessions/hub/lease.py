"""The lease under which a hub drives sessions: prolonged while the hub lives, and whose it is.

The lease is the hub's, for all sessions that it owns. Another hub may take them once it has ended,
or as soon as the owner's process is known to be dead.
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
    """The lease of one hub; each lease that follows a lapsed one has a number of its own."""

    def __init__(self, log: Log, seconds: float, when_lapsed: Callable[[], None]) -> None:
        self.owner = new_owner()
        self._log = log
        self._seconds = seconds
        self._when_lapsed = when_lapsed
        self._until = float("-inf")
        self._number = 0

    @property
    def number(self) -> int | None:
        """The number of the lease that holds, None while none does."""
        return self._number if clock().wall() < self._until else None

    async def prolong(self) -> None:
        """Prolong the lease; after one that has lapsed, sessions may have been taken over."""
        until = clock().wall() + self._seconds
        await self._log.heartbeat(self.owner, until)
        # Afterwards, as it may have taken its time: until it has got there, the old lease counted.
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
            except Exception as error:  # the store is away: the lease may end, and others take over
                logger.warning("the lease could not be prolonged: %s", error)


def new_owner() -> str:
    """Return a name for a hub of this process: with it, others can tell whether it is alive."""
    return _SEPARATOR.join((_host(), str(os.getpid()), _start_time(os.getpid()), new_id()))


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
    # The process number may have been given to another process since.
    return _is_zombie(pid) or _start_time(pid) != parts[2]


@cache
def _host() -> str:
    """Name the machine and its boot, and the namespace of process numbers: containers differ."""
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
    """Return the fields that the kernel has of a process after its name; none where it has none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
