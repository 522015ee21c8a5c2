"""Threads taken beside a SQLite file: a lock on a byte for each, gone with its process."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows threads are kept apart within a process only
    fcntl = None  # type: ignore[assignment]


_TAKEN = (errno.EACCES, errno.EAGAIN)


class ByteLocks:
    """The locks that this process has on a file.

    To close a file drops all locks that the process has on it, and two of a process do not keep
    each other out: hence one descriptor for all, and a list of what is taken.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._taken: set[int] = set()
        self._file: int | None = None

    def take(self, key: int) -> bool:
        """Try to take a lock."""
        offset = key >> 2  # with its length, it must stay below 2**63
        with self._guard:
            if offset in self._taken or not self._locked(offset):
                self._rest()
                return False
            self._taken.add(offset)
            return True

    def release(self, key: int) -> None:
        """Give a lock back."""
        offset = key >> 2
        with self._guard:
            self._taken.discard(offset)
            if self._file is not None and fcntl is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, offset)
            self._rest()

    def _locked(self, offset: int) -> bool:
        if fcntl is None:
            return True
        if self._file is None:
            self._file = _opened(self._database)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        return True

    def _rest(self) -> None:
        if self._file is not None and not self._taken:
            os.close(self._file)
            self._file = None


def locks_of(database: str) -> ByteLocks | None:
    """Return the locks of a database, None of one that no other process sees."""
    return _locks_at(Path(database).resolve()) if database not in ("", ":memory:") else None


@cache
def _locks_at(database: Path) -> ByteLocks:
    return ByteLocks(database)


if fcntl is not None:
    os.register_at_fork(after_in_child=_locks_at.cache_clear)  # a fork inherits no lock


def _opened(database: Path) -> int:
    sidecar = database.with_name(f"{database.name}-threads")
    mode = database.stat().st_mode & 0o777  # whoever may write there may take threads
    file = os.open(sidecar, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    with suppress(PermissionError):  # it is somebody else's, who has seen to it
        os.fchmod(file, mode)  # what is made is cut down by the umask
    return file
