"""Locks on threads of a SQLite file: one byte of a sidecar file each, released with the process."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows threads are locked only within a process
    fcntl = None  # type: ignore[assignment]


_CONFLICTS = (errno.EACCES, errno.EAGAIN)


class ByteLocks:
    """The locks that this process has on the sidecar of one database.

    POSIX locks belong to a process: closing any descriptor of the file drops them all, and two
    threads of the process do not exclude each other. So there is one descriptor for all locks, and
    a set of the locked bytes.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._offsets: set[int] = set()
        self._file: int | None = None

    def take(self, key: int) -> bool:
        """Try to take a lock, whose key has 64 bits; never wait for it."""
        offset = key >> 2  # with its length, it must stay below 2**63
        with self._mutex:
            if offset in self._offsets or not self._lock_byte(offset):
                self._close_if_unused()
                return False
            self._offsets.add(offset)
            return True

    def release(self, key: int) -> None:
        """Release a lock."""
        offset = key >> 2
        with self._mutex:
            self._offsets.discard(offset)
            if self._file is not None and fcntl is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)
            self._close_if_unused()

    def _lock_byte(self, offset: int) -> bool:
        if fcntl is None:
            return True
        if self._file is None:
            self._file = _open_sidecar(self._database)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
        except OSError as error:
            if error.errno in _CONFLICTS:
                return False
            raise
        return True

    def _close_if_unused(self) -> None:
        if self._file is not None and not self._offsets:
            os.close(self._file)
            self._file = None


def locks_of(database: str) -> ByteLocks | None:
    """Return the locks of a database; None for one in memory, which no other process sees."""
    return _locks_at(Path(database).resolve()) if database not in ("", ":memory:") else None


@cache
def _locks_at(database: Path) -> ByteLocks:
    return ByteLocks(database)


if fcntl is not None:
    os.register_at_fork(
        after_in_child=_locks_at.cache_clear
    )  # a fork does not inherit its parent's locks


def _open_sidecar(database: Path) -> int:
    sidecar = database.with_name(f"{database.name}-threads")
    mode = database.stat().st_mode & 0o777  # who may write the database may lock threads
    file = os.open(sidecar, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    with suppress(PermissionError):  # the file belongs to another user, who has set its mode
        os.fchmod(file, mode)  # the mode given to `open` is cut down by the umask
    return file
