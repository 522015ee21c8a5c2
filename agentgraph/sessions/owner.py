"""Which process a hub lives in, and whether another one's is gone."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from agentgraph.clock import new_id

__all__ = ["is_gone", "new_owner"]

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
