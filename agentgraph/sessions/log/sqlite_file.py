"""Sessions in a SQLite file, as one thread sees them: its connection, and what is asked of it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentgraph.errors import SessionError, StorageError
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log import sqlite_sql as sql
from agentgraph.sessions.log.protocol import InboxMoved
from agentgraph.sessions.log.tables import SQLITE, VERSIONS, due_migrations
from agentgraph.sessions.state.state import ENDED

TIMEOUT_S = 10.0

_WAL_PAUSE_S = 0.05
_FOREVER = 2**62
_DAY_S = 86_400.0


class SessionFile:
    """One connection; all of it is called from one thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = 0, 0
        self._uncommitted = 0
        self._connection = sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None)
        try:
            # What was written here is ASCII; anything else is torn, and must not fail a whole list.
            self._connection.text_factory = _text
            self._set_up()
            self._seen = self._version(), self._changes()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def create(
        self, columns: Mapping[str, Any], rows: Sequence[r.EnvelopeRow], keys: Mapping[str, str]
    ) -> bool:
        session_id = columns["session_id"]
        values = {**columns, "head": len(rows), "said": r.spoken(rows)}
        with self._writing() as ask:
            if ask(sql.CREATE, values).rowcount < 1:
                return False
            self._add(session_id, rows, keys, said=0)
            self._uncommitted += 1
        return True

    def append(
        self,
        session_id: str,
        columns: Mapping[str, Any],
        rows: Sequence[r.EnvelopeRow],
        keys: Mapping[str, str],
        taken: Collection[str],
    ) -> None:
        values = {**columns, "session_id": r.safe(session_id)}
        with self._writing() as ask:
            moved = ask(sql.MOVE, values).fetchone()
            if moved is None:
                raise self._refusal(session_id, columns["epoch"])
            self._add(values["session_id"], rows, keys, said=moved[0])
            if taken:
                gone = [(values["session_id"], r.safe(one)) for one in taken]
                self._connection.executemany(
                    "DELETE FROM agentgraph_inbox WHERE session_id = ? AND envelope_id = ?", gone
                )
            if columns["status"] in ENDED and self._waits(values["session_id"]):
                raise InboxMoved()
            if not rows:
                self._count_change()

    def load(self, session_id: str) -> r.Row | None:
        return self._row(sql.LOAD, r.safe(session_id))

    def sessions(self, status: str | None) -> list[r.Row]:
        return self._connection.execute(sql.SESSIONS, {"status": status}).fetchall()

    def read(self, session_id: str, after: int, limit: int | None) -> list[r.Row]:
        # One at least, to tell a session that has no more from one that there is not.
        values = {"after": after, "limit": -1 if limit is None else max(limit, 1)}
        return self._rows(session_id, sql.READ, {**values, "session_id": r.safe(session_id)})

    def tail(self, session_id: str, count: int, before: int | None) -> list[r.Row]:
        values = {"before": _FOREVER if before is None else before, "count": max(count, 1)}
        return self._rows(session_id, sql.TAIL, {**values, "session_id": r.safe(session_id)})

    def find(self, session_id: str, envelope_id: str) -> r.Row:
        return self._rows(session_id, sql.FIND, (r.safe(envelope_id), r.safe(session_id)))[0]

    def waiting(self, session_id: str) -> list[r.Row]:
        return self._rows(session_id, sql.WAITING, (r.safe(session_id),))

    def put(self, session_id: str, given: r.InboxRow) -> str:
        """Return the id that the key has, or the given one if it is in the inbox now."""
        stored_id = r.safe(session_id)
        with self._writing() as ask:
            row = self._row(
                "SELECT status FROM agentgraph_sessions WHERE session_id = ?", stored_id
            )
            if row is None:
                raise r.unknown(session_id)
            if given.digest is not None:
                known = self._row(
                    "SELECT envelope_id FROM agentgraph_keys WHERE session_id = ? AND digest = ?",
                    stored_id,
                    given.digest,
                )
                if known is not None:
                    return str(known[0])
            if row[0] in ENDED:
                raise r.closed(session_id, row[0])
            if given.digest is not None:
                self._add_keys(stored_id, {given.digest: given.envelope_id})
            arrived = ask(
                "INSERT INTO agentgraph_inbox (session_id, envelope_id, data) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (stored_id, given.envelope_id, given.data),
            )
            self._uncommitted += max(arrived.rowcount, 0)
        return given.envelope_id

    def held(self, session_id: str) -> r.Held:
        return r.Held(*self._rows(session_id, sql.HELD, (r.safe(session_id),))[0])

    def claim(
        self, session_id: str, owner: str, held: r.Held, *, sure: bool, now: float
    ) -> int | None:
        """Take what is held as it was seen; None if it is not any more."""
        values = {"owner": r.safe(owner), "epoch": held.epoch, "present": held.owner}
        with self._writing() as ask:
            more = {"session_id": r.safe(session_id), "sure": sure, "now": now}
            row = ask(sql.CLAIM, {**values, **more}).fetchone()
        return None if row is None else row[0]

    def release(self, session_id: str, owner: str, attempts: int | None) -> None:
        with self._writing() as ask:
            self._row_of(session_id)
            ask(
                "UPDATE agentgraph_sessions SET owner = NULL, attempts = coalesce(?, attempts) "
                "WHERE session_id = ? AND owner = ?",
                (attempts, r.safe(session_id), r.safe(owner)),
            )

    def attempt(self, session_id: str, epoch: int) -> int:
        with self._writing() as ask:
            row = ask(
                "UPDATE agentgraph_sessions SET attempts = attempts + 1 "
                "WHERE session_id = ? AND epoch = ? RETURNING attempts",
                (r.safe(session_id), epoch),
            ).fetchone()
            if row is None:
                self._row_of(session_id)
                raise r.stale(session_id)
        return int(row[0])

    def beat(self, owner: str, until: float) -> None:
        with self._writing() as ask:
            ask(
                "INSERT INTO agentgraph_hubs (owner, until) VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET until = excluded.until",
                (r.safe(owner), until),
            )

    def retire(self, owner: str) -> None:
        with self._writing() as ask:
            # Those too that ended long ago without saying so: nobody else would ever remove them.
            ask(sql.RETIRE, {"owner": r.safe(owner), "kept": _DAY_S})
            ask("UPDATE agentgraph_sessions SET owner = NULL WHERE owner = ?", (r.safe(owner),))
            self._count_change()

    def unfinished(self, now: float) -> list[r.Row]:
        return self._connection.execute(sql.UNFINISHED, (now,)).fetchall()

    def next_due(self) -> float | None:
        query = "SELECT min(due_at) FROM agentgraph_sessions WHERE due_at IS NOT NULL"
        row = self._row(query)
        return None if row is None else row[0]

    def has_changed(self) -> bool:
        """Tell whether others have changed anything of sessions since this was asked last.

        Savers write to the same file all the time, and must not wake those who watch sessions.
        """
        version, changes = self._seen
        if self._version() != version:
            self._seen = self._version(), self._changes()
        return self._seen[1] != changes

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _changes(self) -> int:
        return int(self._connection.execute(sql.CHANGES).fetchone()[0])

    def _count_change(self) -> None:
        self._connection.execute("UPDATE agentgraph_changes SET count = count + 1")
        self._uncommitted += 1

    def _add(
        self,
        session_id: str,
        rows: Sequence[r.EnvelopeRow],
        keys: Mapping[str, str],
        *,
        said: int,
    ) -> None:
        values = [
            (session_id, row.sequence, row.envelope_id, row.said and said + row.said, row.data)
            for row in rows
        ]
        self._connection.executemany(sql.ADD, values)
        self._uncommitted += len(values)
        self._add_keys(session_id, keys)

    def _add_keys(self, session_id: str, keys: Mapping[str, str]) -> None:
        self._connection.executemany(
            "INSERT INTO agentgraph_keys (session_id, digest, envelope_id) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            [(session_id, key, envelope_id) for key, envelope_id in keys.items()],
        )

    def _waits(self, session_id: str) -> bool:
        query = "SELECT 1 FROM agentgraph_inbox WHERE session_id = ? LIMIT 1"
        return self._row(query, session_id) is not None

    def _refusal(self, session_id: str, epoch: int | None) -> SessionError:
        query = "SELECT status, head, epoch FROM agentgraph_sessions WHERE session_id = ?"
        return r.refusal(session_id, self._row(query, r.safe(session_id)), epoch)

    def _row(self, query: str, *values: object) -> r.Row | None:
        row: r.Row | None = self._connection.execute(query, values).fetchone()
        return row

    def _row_of(self, session_id: str) -> None:
        query = "SELECT 1 FROM agentgraph_sessions WHERE session_id = ?"
        if self._row(query, r.safe(session_id)) is None:
            raise r.unknown(session_id)

    def _rows(self, session_id: str, query: str, values: Any) -> list[r.Row]:
        rows = self._connection.execute(query, values).fetchall()
        if not rows:
            raise r.unknown(session_id)
        return rows

    @contextmanager
    def _writing(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        # Immediate: one that begins by reading cannot always be made to write, and must not wait.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.execute
            self._connection.execute("COMMIT")
            # One's own changes are no news.
            self._seen = self._seen[0], self._seen[1] + self._uncommitted
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self._uncommitted = 0

    def _set_up(self) -> None:
        self._write_ahead()
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._lacks():
            with self._writing() as ask:
                ask(VERSIONS)
                for version, statements in self._lacks():
                    for statement in statements:
                        ask(statement)
                    ask("INSERT INTO agentgraph_migrations VALUES (?)", (version,))

    def _lacks(self) -> list[tuple[int, Sequence[str]]]:
        known = "SELECT 1 FROM sqlite_master WHERE name = 'agentgraph_migrations'"
        row = (
            self._row("SELECT max(version) FROM agentgraph_migrations")
            if self._row(known)
            else None
        )
        return due_migrations(f"the SQLite file {self._path!r}", (row and row[0]) or 0, SQLITE)

    def _write_ahead(self) -> None:
        # SQLite does not wait where two connections set this at once: one of them is told it is
        # locked, whatever its timeout.
        for _ in range(int(TIMEOUT_S / _WAL_PAUSE_S)):
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                threading.Event().wait(_WAL_PAUSE_S)
        raise StorageError(f"the SQLite file {self._path!r} is locked by somebody else")


def _text(value: bytes) -> str:
    return value.decode("ascii", "surrogateescape")
