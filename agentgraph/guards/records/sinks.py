"""The sinks of audit records: memory, a file of JSON lines, a SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import to_json

from agentgraph.errors import ConfigurationError
from agentgraph.guards.records.record import Record

_TIMEOUT_S = 10.0
_WAL_PAUSE_S = 0.05
_SET_UP = (
    "PRAGMA synchronous = FULL",
    "CREATE TABLE IF NOT EXISTS agentgraph_audit (run TEXT, seq INTEGER, record TEXT)",
    "CREATE INDEX IF NOT EXISTS agentgraph_audit_run ON agentgraph_audit (run, seq)",
)


class _ScanningSink(ABC):
    """A sink that reads all of its records to find those of a run."""

    def read(self, run: str) -> list[Record]:
        records = (record for record in self._records() if record.run == run)
        return sorted(records, key=lambda record: record.seq)

    def runs(self) -> list[str]:
        """Return the ids of all runs, the first first."""
        return list(dict.fromkeys(record.run for record in self._records()))

    @abstractmethod
    def _records(self) -> Iterable[Record]: ...


class MemorySink(_ScanningSink):
    """Keep the last `limit` records of this process, of all runs together."""

    def __init__(self, limit: int = 10_000) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ConfigurationError(f"MemorySink({limit!r}): give a whole number above 0")
        if limit > sys.maxsize:
            raise ConfigurationError(f"MemorySink({limit!r}): give {sys.maxsize} or less")
        self._latest: deque[Record] = deque(maxlen=limit)
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        with self._lock:
            self._latest.append(record)

    def _records(self) -> list[Record]:
        with self._lock:
            return list(self._latest)


class JSONLSink(_ScanningSink):
    """Append records to a file, a line each; several processes may share it.

    The records survive a kill of the process; with `sync` they survive a machine failure too.
    """

    def __init__(self, path: str | os.PathLike[str], *, sync: bool = False) -> None:
        self._path = _path_of("JSONLSink", path)
        self._sync = sync
        self._file: int | None = None
        self._finalizer: weakref.finalize[..., JSONLSink] | None = None
        self._lock = threading.Lock()
        _sinks.add(self)

    def write(self, record: Record) -> None:
        with self._lock:
            file = self._descriptor()
            line = _json(record) + b"\n"
            size = os.fstat(file).st_size
            # Another process may have died within a line: this record would become part of it.
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line
            # In one write: the lines of two processes would mix otherwise.
            if (size_written := os.write(file, line)) < len(line):
                raise OSError(f"only {size_written} of {len(line)} bytes went into {self._path}")
            if self._sync:
                os.fsync(file)

    def flush(self) -> None:
        """Force all that was written to the disk."""
        with self._lock:
            if self._file is not None:
                os.fsync(self._file)

    def close(self) -> None:
        """Let go of the file; the next record opens it again."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._file = self._finalizer = None

    def _reset(self) -> None:
        """Replace the lock in a forked process: a thread of the parent may have acquired it."""
        self._lock = threading.Lock()

    def _descriptor(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            self._finalizer = weakref.finalize(self, os.close, self._file)
        return self._file

    def _records(self) -> Iterator[Record]:
        if self._path.exists():
            with self._path.open("rb") as lines:
                for line in lines:
                    yield from _read(line)


class SQLiteSink:
    """Keep records in a SQLite file, each committed before `write` returns.

    Give it a file of its own: it waits for the file's lock and blocks the event loop meanwhile, and
    a checkpoint saver with the lock needs that loop to release it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = _path_of("SQLiteSink", path)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        _sinks.add(self)

    def write(self, record: Record) -> None:
        row = record.run, record.seq, _json(record).decode()
        self._ask("INSERT INTO agentgraph_audit (run, seq, record) VALUES (?, ?, ?)", *row)

    def read(self, run: str) -> list[Record]:
        query = "SELECT record FROM agentgraph_audit WHERE run = ? ORDER BY seq, rowid"
        return [record for row in self._ask(query, run) for record in _read(row[0])]

    def runs(self) -> list[str]:
        """Return the ids of all runs, the first first."""
        query = "SELECT run FROM agentgraph_audit GROUP BY run ORDER BY min(rowid)"
        return [row[0] for row in self._ask(query)]

    def close(self) -> None:
        """Let go of the file; the next record opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _ask(self, query: str, *values: object) -> list[tuple[str, ...]]:
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self._path)
            return self._connection.execute(query, values).fetchall()

    def _reset(self) -> None:
        """Abandon the parent's connection in a forked process."""
        # SQLite forbids even to close a connection that was open when the process forked.
        _abandoned_connections.append(self._connection)
        self._connection, self._lock = None, threading.Lock()


_sinks: weakref.WeakSet[JSONLSink | SQLiteSink] = weakref.WeakSet()
_abandoned_connections: list[sqlite3.Connection | None] = []


def _reset_all() -> None:
    for sink in list(_sinks):
        sink._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        _write_ahead(connection)
        for statement in _SET_UP:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    # SQLite does not wait where two connections set this mode at once: one of them fails with
    # "locked", whatever its timeout.
    for attempts_left in reversed(range(int(_TIMEOUT_S / _WAL_PAUSE_S))):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if not attempts_left:
                raise
            threading.Event().wait(_WAL_PAUSE_S)


def _path_of(sink: str, path: object) -> Path:
    if isinstance(path, str | os.PathLike) and str(path):
        return Path(path)
    raise ConfigurationError(f"{sink}({path!r}): give the path of a file")


def _json(record: Record) -> bytes:
    values = record.to_dict()
    try:
        return to_json(values, serialize_unknown=True, inf_nan_mode="strings", bytes_mode="base64")
    except ValueError:  # half of a surrogate pair, which UTF-8 cannot write and JSON can
        return json.dumps(values, default=repr, skipkeys=True).encode()


def _read(line: str | bytes) -> Iterator[Record]:
    """Read a line, if it is complete: a process that died may have left half of one."""
    try:
        values = json.loads(line)
        if isinstance(values, dict) and isinstance(values.get("seq"), int):
            yield Record.from_dict(values)
    except (ValueError, TypeError):
        return
