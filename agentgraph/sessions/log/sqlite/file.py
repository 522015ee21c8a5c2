"""Sessions in a SQLite file: one connection, used by one thread, and its statements."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentgraph.errors import SessionError, StorageError
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.listing import listing
from agentgraph.sessions.log.protocol import InboxConflict, SessionQuery, SharedBlobs
from agentgraph.sessions.log.sqlite import sql
from agentgraph.sessions.log.tables import SQLITE, VERSIONS, due_migrations
from agentgraph.sessions.state.state import FINAL_STATUSES, is_milestone_due

TIMEOUT_S = 10.0
"""How long a transaction waits for the write lock of the file."""

_WAL_PAUSE_S = 0.05
_FOREVER = 2**62
"""A sequence after all others."""
_DAY_S = 86_400.0
"""How long the lease of a killed hub is kept after it has expired."""


class SessionFile:
    """One connection; all its methods must be called from one thread.

    Methods raise `sqlite3.Error` unchanged, and the errors of the `Log` protocol.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._last_change = 0, 0  # `_version` and `_changes` at the last look
        self._last_watchers: list[r.Row] = []
        self._uncommitted_changes = 0  # how much the open transaction adds to `_changes`
        self._is_shared = False
        self.connection = sqlite3.connect(path, timeout=TIMEOUT_S, isolation_level=None)
        try:
            # All text was written as ASCII. Other bytes are torn data of one session, which must
            # not make the list of all sessions fail.
            self.connection.text_factory = _decode
            self._set_up()
            self._last_change = self._version(), self._changes()
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def create(
        self,
        columns: Mapping[str, Any],
        rows: Sequence[r.EnvelopeRow],
        keys: Mapping[str, str],
        labels: Sequence[str],
        parent: tuple[str, int] | None,
        blobs: SharedBlobs | None,
    ) -> bool:
        """Create a session with its first envelopes; False if a session of this id exists.

        With the key and the epoch of a parent: `StaleOwner` unless that is there so.
        """
        session_id = columns["session_id"]
        values = {**columns, "head": len(rows), "said": r.view_count(rows)}
        with self._transaction() as ask:
            if parent is not None and self._epoch(parent[0]) != parent[1]:
                raise r.stale_owner(parent[0])
            cursor = ask(sql.CREATE, values)
            if cursor.rowcount < 1:
                return False
            places = [(label, columns["tenant"], cursor.lastrowid) for label in labels]
            self.connection.executemany("INSERT INTO agentgraph_labels VALUES (?, ?, ?)", places)
            self._add(session_id, rows, keys, base=0)
            self._add_milestone(session_id, 0, len(rows), columns["snapshot"])
            if blobs is not None:
                source = r.to_ascii(blobs.session_id)
                keys_of_blobs = [(session_id, source, digest) for digest in blobs.digests]
                self.connection.executemany(sql.SHARE_BLOB, keys_of_blobs)
            self._uncommitted_changes += 1
        return True

    def append(
        self,
        session_id: str,
        columns: Mapping[str, Any],
        rows: Sequence[r.EnvelopeRow],
        keys: Mapping[str, str],
        admitted_ids: Collection[str],
        blobs: Mapping[str, str],
    ) -> None:
        """Append rows and keys, set the columns, remove entries from the inbox: all or nothing."""
        values = {**columns, "session_id": r.to_ascii(session_id)}
        with self._transaction() as ask:
            row = ask(sql.UPDATE_HEAD, values).fetchone()
            if row is None:
                raise self._refusal(session_id, columns["epoch"])
            self._add(values["session_id"], rows, keys, base=row[0])
            self._add_milestone(
                values["session_id"], columns["head"], len(rows), columns["snapshot"]
            )
            self._add_blobs(values["session_id"], blobs)
            if admitted_ids:
                entries = [(values["session_id"], r.to_ascii(key)) for key in admitted_ids]
                self.connection.executemany(
                    "DELETE FROM agentgraph_inbox WHERE session_id = ? AND envelope_id = ?", entries
                )
            if columns["status"] in FINAL_STATUSES and self._has_inbox(values["session_id"]):
                raise InboxConflict()
            if not rows:  # else the number of envelopes shows the change
                self._count_change()

    def load(self, session_id: str) -> r.Row | None:
        return self._row(sql.LOAD, r.to_ascii(session_id))

    def sessions(self, query: SessionQuery) -> list[r.Row]:
        after = None
        if query.after is not None:
            ordinal = "SELECT ordinal FROM agentgraph_sessions WHERE session_id = ?"
            ((after,),) = self._rows(query.after, ordinal, (r.to_ascii(query.after),))
        statement, values = listing(query, after, ":{}".format)
        return self.connection.execute(statement, values).fetchall()

    def read(self, session_id: str, after: int, limit: int | None) -> list[r.Row]:
        # At least one row: a session without more envelopes gives one row, an unknown session none.
        values = {"after": after, "limit": -1 if limit is None else max(limit, 1)}
        return self._rows(session_id, sql.READ, {**values, "session_id": r.to_ascii(session_id)})

    def milestone(self, session_id: str, at: int) -> r.Row | None:
        return self._row(sql.MILESTONE, r.to_ascii(session_id), at)

    def tail(self, session_id: str, count: int, before: int | None) -> list[r.Row]:
        values = {"before": _FOREVER if before is None else before, "count": max(count, 1)}
        return self._rows(session_id, sql.TAIL, {**values, "session_id": r.to_ascii(session_id)})

    def find(self, session_id: str, envelope_id: str) -> r.Row:
        return self._rows(session_id, sql.FIND, (r.to_ascii(envelope_id), r.to_ascii(session_id)))[
            0
        ]

    def sessions_with(self, envelope_id: str) -> list[r.Row]:
        return self.connection.execute(
            sql.SESSIONS_WITH, {"id": r.to_ascii(envelope_id)}
        ).fetchall()

    def inbox(self, session_id: str) -> list[r.Row]:
        return self._rows(session_id, sql.INBOX, (r.to_ascii(session_id),))

    def enqueue(self, session_id: str, entry: r.InboxRow) -> str:
        """Put an entry into the inbox; return its id, or the earlier id stored under its key."""
        stored_id = r.to_ascii(session_id)
        with self._transaction() as ask:
            row = self._row(
                "SELECT status FROM agentgraph_sessions WHERE session_id = ?", stored_id
            )
            if row is None:
                raise r.unknown_session(session_id)
            if entry.digest is not None:
                earlier_id = self.find_key(session_id, entry.digest)
                if earlier_id is not None:
                    return earlier_id
            if row[0] in FINAL_STATUSES:
                raise r.session_ended(session_id, row[0])
            if entry.digest is not None:
                self._add_keys(stored_id, {entry.digest: entry.envelope_id})
            cursor = ask(
                "INSERT INTO agentgraph_inbox (session_id, envelope_id, data) VALUES (?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (stored_id, entry.envelope_id, entry.data),
            )
            self._uncommitted_changes += max(cursor.rowcount, 0)
        return entry.envelope_id

    def store_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        with self._transaction():
            self._require_session(session_id)
            self._add_blobs(r.to_ascii(session_id), blobs)

    def blobs(self, session_id: str, digests: Collection[str]) -> dict[str, str]:
        query = "SELECT digest, data FROM agentgraph_blobs WHERE session_id = ? AND digest = ?"
        rows = (self._row(query, r.to_ascii(session_id), digest) for digest in digests)
        return {row[0]: row[1] for row in rows if row is not None}

    def find_key(self, session_id: str, digest: str) -> str | None:
        """Return the id of the entry that has an idempotency key, None if there is none."""
        ((entry_id,),) = self._rows(session_id, sql.FIND_KEY, (digest, r.to_ascii(session_id)))
        return None if entry_id is None else str(entry_id)

    def lease(self, session_id: str) -> r.Lease:
        return r.Lease(*self._rows(session_id, sql.LEASE, (r.to_ascii(session_id),))[0])

    def claim(self, session_id: str, owner: str, lease: r.Lease, terms: r.ClaimTerms) -> int | None:
        """Claim a session whose lease is as given; None if it has changed since it was read."""
        values = {"owner": r.to_ascii(owner), "epoch": lease.epoch, "present": lease.owner}
        with self._transaction() as ask:
            more = {"session_id": r.to_ascii(session_id), **terms._asdict()}
            row = ask(sql.CLAIM, {**values, **more}).fetchone()
        return None if row is None else row[0]

    def release(self, session_id: str, owner: str, attempts: int | None) -> None:
        with self._transaction() as ask:
            self._require_session(session_id)
            ask(
                "UPDATE agentgraph_sessions SET owner = NULL, attempts = coalesce(?, attempts) "
                "WHERE session_id = ? AND owner = ?",
                (attempts, r.to_ascii(session_id), r.to_ascii(owner)),
            )

    def attempt(self, session_id: str, epoch: int) -> int:
        with self._transaction() as ask:
            row = ask(
                "UPDATE agentgraph_sessions SET attempts = attempts + 1 "
                "WHERE session_id = ? AND epoch = ? RETURNING attempts",
                (r.to_ascii(session_id), epoch),
            ).fetchone()
            if row is None:
                self._require_session(session_id)
                raise r.stale_owner(session_id)
        return int(row[0])

    def heartbeat(self, owner: str, until: float) -> None:
        with self._transaction() as ask:
            ask(
                "INSERT INTO agentgraph_hubs (owner, until) VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET until = excluded.until",
                (r.to_ascii(owner), until),
            )

    def release_all(self, owner: str) -> None:
        with self._transaction() as ask:
            # Also deletes leases that expired long ago: their owners were killed and cannot delete
            # them.
            ask(sql.RELEASE_ALL, {"owner": r.to_ascii(owner), "keep_s": _DAY_S})
            ask("UPDATE agentgraph_sessions SET owner = NULL WHERE owner = ?", (r.to_ascii(owner),))
            self._count_change()

    def unfinished_sessions(self, now: float) -> list[r.Row]:
        return self.connection.execute(sql.UNFINISHED_SESSIONS, (now,)).fetchall()

    def owned_sessions(self, owner: str) -> list[r.Row]:
        query = "SELECT session_id FROM agentgraph_sessions WHERE owner = ? ORDER BY ordinal"
        return self.connection.execute(query, (r.to_ascii(owner),)).fetchall()

    def next_due(self, after: float) -> float | None:
        query = "SELECT min(due_at) FROM agentgraph_sessions WHERE due_at > ?"
        row = self._row(query, after)
        return None if row is None else row[0]

    def children(self, session_id: str) -> list[r.Row]:
        query = "SELECT session_id FROM agentgraph_sessions WHERE parent = ? ORDER BY ordinal"
        return self.connection.execute(query, (r.to_ascii(session_id),)).fetchall()

    def forget(self, session_id: str, epoch: int) -> None:
        """Delete a session under an epoch, with its rows in all tables."""
        values = {"session_id": r.to_ascii(session_id), "epoch": epoch}
        with self._transaction() as ask:
            present = self._epoch(session_id)
            if present is None:
                raise r.unknown_session(session_id)
            if present != epoch:
                raise r.stale_owner(session_id)
            changes = self._changes()
            for statement in sql.FORGET:
                ask(statement, values)
            # The rows that have gone count no more: the number of changes must grow all the same.
            shortfall = changes - self._changes()
            ask("UPDATE agentgraph_changes SET count = count + ?", (shortfall,))
            self._count_change()

    def has_changed(self) -> bool:
        """Tell whether other connections have changed a session since the last call.

        Checkpoint savers write to the same file all the time, and must not wake the listeners.
        """
        changes = self._last_change[1]
        self._last_change = self._version(), self._changes()
        return self._last_change[1] != changes

    def has_commit(self) -> bool:
        """Tell whether other connections have committed anything since the last call of both."""
        return self._version() != self._last_change[0]

    def has_other_watchers(self) -> bool:
        """Tell whether hubs have begun, or ceased, to watch sessions since the last call."""
        query = "SELECT session_id, owner FROM agentgraph_watchers"
        watchers = self.connection.execute(query).fetchall()
        is_new = watchers != self._last_watchers
        self._last_watchers = watchers
        return is_new

    def _version(self) -> int:
        """Return a number that changes with commits of other connections, but not with our own."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def _changes(self) -> int:
        """Return a number that grows with each change of a session."""
        return int(self.connection.execute(sql.CHANGES).fetchone()[0])

    def _count_change(self) -> None:
        self.connection.execute("UPDATE agentgraph_changes SET count = count + 1")
        self._uncommitted_changes += 1

    def _add(
        self,
        session_id: str,
        rows: Sequence[r.EnvelopeRow],
        keys: Mapping[str, str],
        *,
        base: int,
    ) -> None:
        values = [
            (
                session_id,
                row.sequence,
                row.envelope_id,
                row.view_number and base + row.view_number,
                row.data,
            )
            for row in rows
        ]
        self.connection.executemany(sql.ADD_ENVELOPE, values)
        self._uncommitted_changes += len(values)
        if keys:
            self._add_keys(session_id, keys)

    def _add_keys(self, session_id: str, keys: Mapping[str, str]) -> None:
        self.connection.executemany(
            "INSERT INTO agentgraph_keys (session_id, digest, envelope_id) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            [(session_id, key, envelope_id) for key, envelope_id in keys.items()],
        )

    def _add_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        self.connection.executemany(
            "INSERT INTO agentgraph_blobs (session_id, digest, data) VALUES (?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            [(session_id, digest, data) for digest, data in blobs.items()],
        )

    def _add_milestone(self, session_id: str, head: int, count: int, snapshot: str) -> None:
        if is_milestone_due(head, count):
            values = (session_id, head + count, snapshot)
            self.connection.execute(sql.ADD_MILESTONE, values)

    def _has_inbox(self, session_id: str) -> bool:
        query = "SELECT 1 FROM agentgraph_inbox WHERE session_id = ? LIMIT 1"
        return self._row(query, session_id) is not None

    def _epoch(self, session_id: str) -> int | None:
        """Return the epoch of a session, None if there is no such session."""
        query = "SELECT epoch FROM agentgraph_sessions WHERE session_id = ?"
        row = self._row(query, r.to_ascii(session_id))
        return None if row is None else int(row[0])

    def _refusal(self, session_id: str, epoch: int | None) -> SessionError:
        query = "SELECT status, head, epoch FROM agentgraph_sessions WHERE session_id = ?"
        return r.refusal(session_id, self._row(query, r.to_ascii(session_id)), epoch)

    def _row(self, query: str, *values: object) -> r.Row | None:
        row: r.Row | None = self.connection.execute(query, values).fetchone()
        return row

    def _require_session(self, session_id: str) -> None:
        """Raise if there is no such session: an UPDATE that changes no row does not say why."""
        query = "SELECT 1 FROM agentgraph_sessions WHERE session_id = ?"
        if self._row(query, r.to_ascii(session_id)) is None:
            raise r.unknown_session(session_id)

    def _rows(self, session_id: str, query: str, values: Any) -> list[r.Row]:
        """Return the rows of an outer join, which returns at least one for a known session."""
        rows = self.connection.execute(query, values).fetchall()
        if not rows:
            raise r.unknown_session(session_id)
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Run statements in one transaction, so that all of them are committed or none."""
        if not self.connection.in_transaction:
            # IMMEDIATE: a transaction that begins with a read may find the file locked when it
            # first writes, and then fails at once, whatever its timeout.
            self.connection.execute("BEGIN IMMEDIATE")
        if self._is_shared:
            yield self.connection.execute
            return
        try:
            yield self.connection.execute
            self._commit()
        finally:
            self._roll_back()

    @contextmanager
    def own_transaction(self) -> Iterator[None]:
        """Run statements of another table in one transaction."""
        with self._transaction():
            yield

    @contextmanager
    def unsynced_transaction(self) -> Iterator[None]:
        """Run statements in one transaction that a loss of power may take back."""
        self.connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with self._transaction():
                yield
        finally:
            self.connection.execute("PRAGMA synchronous = FULL")

    @contextmanager
    def shared_transaction(self) -> Iterator[Callable[[], None]]:
        """Let the methods called in the block share a transaction, and the wait for the disk.

        Yields the function that commits it: otherwise nothing that they have written is kept.
        """
        self._is_shared = True
        try:
            yield self._commit
        finally:
            self._is_shared = False
            self._roll_back()

    def _commit(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("COMMIT")
        # This connection's own changes must not look like changes by other connections.
        version, changes = self._last_change
        self._last_change = version, changes + self._uncommitted_changes
        self._uncommitted_changes = 0

    def _roll_back(self) -> None:
        """Drop what was not committed."""
        self._uncommitted_changes = 0
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def _set_up(self) -> None:
        self._set_write_ahead_log()
        # What `append` and `enqueue` have stored when they return must survive a loss of power.
        self.connection.execute("PRAGMA synchronous = FULL")
        if self._pending_migrations():
            with self._transaction() as ask:
                ask(VERSIONS)
                for version, statements in self._pending_migrations():
                    for statement in statements:
                        ask(statement)
                    ask("INSERT INTO agentgraph_migrations VALUES (?)", (version,))

    def _pending_migrations(self) -> list[tuple[int, Sequence[str]]]:
        table = "SELECT 1 FROM sqlite_master WHERE name = 'agentgraph_migrations'"
        version = None
        if self._row(table) is not None:
            row = self._row("SELECT max(version) FROM agentgraph_migrations")
            version = row and row[0]
        return due_migrations(f"the SQLite file {self._path!r}", version or 0, SQLITE)

    def _set_write_ahead_log(self) -> None:
        # Where two connections set this at once, one of them fails as locked, whatever its timeout.
        for _ in range(int(TIMEOUT_S / _WAL_PAUSE_S)):
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                threading.Event().wait(_WAL_PAUSE_S)
        raise StorageError(f"the SQLite file {self._path!r} is locked by somebody else")


def _decode(value: bytes) -> str:
    return value.decode("ascii", "surrogateescape")
