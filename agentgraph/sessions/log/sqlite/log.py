"""Sessions in a SQLite file, accessed by a thread of its own.

On the event loop the two writers of the file would deadlock: the checkpoint saver holds the file's
write lock while it waits for the loop to go on.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from agentgraph.errors import StorageError
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.listing import labels_of
from agentgraph.sessions.log.live import LiveNotice, WatchNotice
from agentgraph.sessions.log.protocol import (
    ALL_SESSIONS,
    NO_BLOBS,
    AppendNotice,
    ChangeListener,
    InboxEntry,
    SessionQuery,
    SessionSummary,
    SharedBlobs,
    StoredSession,
)
from agentgraph.sessions.log.sqlite.file import SessionFile
from agentgraph.sessions.log.sqlite.live import SQLiteLiveTable
from agentgraph.sessions.log.sqlite.webhooks import SQLiteWebhookTable
from agentgraph.sessions.log.sqlite.worker import Job, Worker
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

T = TypeVar("T")

POLL_S = 0.05
"""How often the thread polls: the delay with which it notices changes by other processes."""
LIVE_POLL_S = 0.02
"""How often it polls while the process watches sessions that others run."""


class _FileAccess:
    """The objects that the worker's thread uses: the file while it is open, and the listeners.

    They are kept apart from the log, to which the thread must not refer: the thread must end once
    the log is garbage collected.
    """

    def __init__(self, path: str, listeners: Listeners) -> None:
        self.path = path
        self.file: SessionFile | None = None
        self.listeners = listeners
        self.watch_count = 0
        self._notices: list[str | None] | None = None
        """The changes of a shared transaction, of which nobody hears before it is committed."""

    def open(self) -> None:
        """Open the file, unless it is open already."""
        if self.file is None:
            try:
                self.file = SessionFile(self.path)
            except sqlite3.Error as error:
                raise StorageError(f"cannot open the SQLite file {self.path!r}: {error}") from error

    def ask(self, work: Callable[[SessionFile], T]) -> T:
        """Return the result of an operation; `sqlite3.Error` becomes `StorageError`."""
        if self.file is None:
            raise _not_open(self.path)
        try:
            return work(self.file)
        except sqlite3.Error as error:
            raise StorageError(
                f"the SQLite file {self.path!r} cannot be used ({type(error).__name__}: {error}): "
                "check that it is there and writable, and that nobody else keeps it locked"
            ) from error

    def ask_and_notify(self, work: Callable[[SessionFile], T], session_id: str | None) -> T:
        """Return the result of a change, and notify the listeners if it did not fail."""
        result = self.ask(work)
        self.notify(session_id)
        return result

    def notify(self, session_id: str | None) -> None:
        """Notify the listeners of a change, once it is committed."""
        # In the thread: the task that waits for the result may have been cancelled.
        if self._notices is None:
            self.listeners.notify(session_id)
        else:
            self._notices.append(session_id)

    def run_together(self, jobs: Sequence[Job]) -> None:
        """Run jobs in one transaction, whose commit they share; if one fails, each in its own."""
        notices = self._notices = []
        is_committed = self._share(jobs)
        self._notices = None
        if is_committed:
            for session_id in notices:
                self.listeners.notify(session_id)
            return
        for job in jobs:
            job.run()

    def _share(self, jobs: Sequence[Job]) -> bool:
        if self.file is None:
            return False
        with suppress(sqlite3.Error), self.file.shared_transaction() as commit:
            for job in jobs:
                job.run()
                if job.failure is not None:
                    return False
            commit()
            return True
        return False

    def is_due(self) -> bool:
        return self.file is not None and bool(self.listeners)

    def pause_s(self) -> float:
        return LIVE_POLL_S if self.watch_count else POLL_S

    def poll(self) -> None:
        with suppress(sqlite3.Error):  # locked or gone: the next operation raises that
            if self.file is None or not self.file.has_commit():
                return
            if self.file.has_other_watchers():
                self.listeners.notify(WatchNotice())
            if self.file.has_changed():
                self.listeners.notify(None)
            elif self.watch_count:
                self.listeners.notify(LiveNotice())

    def end(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            file.close()


class SQLiteLog:
    """A log in a file, which several processes and several hubs of each may share.

        log = SQLiteLog("sessions.db")
        await log.open()

    An operation that is cancelled is carried out all the same; only its result is lost.
    """

    is_beside_checkpoints = True
    """Savers of the same URL have their tables beside this log's, and check epochs there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listeners = Listeners()
        self._access = _FileAccess(path, self._listeners)
        self._worker: Worker | None = None

    @property
    def live(self) -> SQLiteLiveTable:
        """The live events of sessions that other processes watch."""
        return SQLiteLiveTable(self._submit)

    @property
    def webhooks(self) -> SQLiteWebhookTable:
        """The webhooks that wait to be called."""
        return SQLiteWebhookTable(self._submit)

    async def open(self) -> None:
        if self._worker is None:
            self._worker = Worker("agentgraph-sessions", self._access)
        worker = self._worker
        try:
            await worker.submit(self._access.open)
        except StorageError:
            # A later `open` must be able to try again, with a new thread.
            if self._worker is worker:
                self._worker = None
            worker.stop()
            raise

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            future = worker.submit(self._access.end)
            worker.stop()
            await future

    async def create(
        self,
        record: SessionRecord,
        envelopes: Sequence[Envelope],
        state: SessionState,
        *,
        due_at: float | None = None,
        runnable: bool | None = None,
        parent_epoch: int | None = None,
        blobs: SharedBlobs | None = None,
    ) -> bool:
        columns = {**r.record_columns(record), **r.state_columns(state, due_at, runnable)}
        rows, keys = r.envelope_rows(envelopes, 0), r.keys_of(envelopes)
        labels = labels_of(record)
        parent = None if parent_epoch is None else (record.parent_key or "", parent_epoch)

        def work(access: _FileAccess) -> bool:
            is_new = access.ask(
                lambda file: file.create(columns, rows, keys, labels, parent, blobs)
            )
            if is_new:
                access.notify(record.key)
            return is_new

        return await self._submit(work)

    async def load(self, session_id: str) -> StoredSession | None:
        row = await self._ask(lambda file: file.load(session_id))
        return None if row is None else r.read_session(session_id, row)

    async def sessions(self, query: SessionQuery = ALL_SESSIONS) -> list[SessionSummary]:
        return [r.read_summary(row) for row in await self._ask(lambda file: file.sessions(query))]

    async def append(
        self,
        session_id: str,
        envelopes: Sequence[Envelope],
        head: int,
        state: SessionState,
        *,
        epoch: int | None = None,
        due_at: float | None = None,
        admitted_ids: Collection[str] = (),
        attempts: int | None = None,
        blobs: Mapping[str, str] = NO_BLOBS,
    ) -> None:
        rows, keys = r.envelope_rows(envelopes, head), r.keys_of(envelopes)
        entry_ids = tuple(admitted_ids)
        columns = {
            **r.state_columns(state, due_at),
            "head": head,
            "count": len(rows),
            "said": r.view_count(rows),
            "epoch": epoch,
            "attempts": attempts,
        }
        await self._ask_and_notify(
            lambda file: file.append(session_id, columns, rows, keys, entry_ids, blobs),
            AppendNotice(session_id),
        )

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        after = max(after, 0)

        # Decoded in the thread: decoding thousands of envelopes would block the event loop.
        def work(file: SessionFile) -> list[Envelope]:
            return r.read_rows(session_id, file.read(session_id, after, limit), after, limit)

        return await self._submit(lambda access: access.ask(work), may_share=False)

    async def fold(self, state: SessionState, limit: int) -> SessionState:
        def work(file: SessionFile) -> SessionState:
            return r.fold_rows(state, file.read(state.key, state.sequence, limit), limit)

        return await self._submit(lambda access: access.ask(work), may_share=False)

    async def milestone(self, session_id: str, at: int) -> SessionState | None:
        def work(file: SessionFile) -> SessionState | None:
            before = at
            while row := file.milestone(session_id, before):
                state = r.read_snapshot(session_id, row[1], row[0])
                if state is not None:
                    return state
                before = row[0] - 1
            return None

        return await self._ask(work)

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        rows = await self._ask(lambda file: file.tail(session_id, count, before))
        return r.tail_rows(session_id, rows, before, count)

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        sequence, data = await self._ask(lambda file: file.find(session_id, envelope_id))
        return None if sequence is None else r.envelope_of(session_id, sequence, data)

    async def sessions_with(self, envelope_id: str) -> list[str]:
        rows = await self._ask(lambda file: file.sessions_with(envelope_id))
        return [r.from_ascii(key) for (key,) in rows]

    async def store_blobs(self, session_id: str, blobs: Mapping[str, str]) -> None:
        await self._ask(lambda file: file.store_blobs(session_id, blobs))

    async def blobs(self, session_id: str, digests: Collection[str]) -> dict[str, str]:
        return await self._ask(lambda file: file.blobs(session_id, digests))

    async def enqueue(self, session_id: str, entry: InboxEntry) -> str:
        row = r.inbox_row(entry)

        def work(access: _FileAccess) -> str:
            entry_id = access.ask(lambda file: file.enqueue(session_id, row))
            if entry_id == row.envelope_id:
                access.notify(session_id)
            return entry_id

        return r.from_ascii(await self._submit(work))

    async def accepted_id(self, session_id: str, sender_id: str, key: str) -> str | None:
        entry_id = await self._ask(lambda file: file.find_key(session_id, r.digest(sender_id, key)))
        return None if entry_id is None else r.from_ascii(entry_id)

    async def inbox(self, session_id: str) -> list[InboxEntry]:
        rows = await self._ask(lambda file: file.inbox(session_id))
        return r.read_inbox(session_id, rows)

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
        at_rest: bool = False,
    ) -> int | None:
        # Read in one transaction and claimed in another: repeated where another hub was faster.
        # `is_gone` belongs to the caller, so it is called on the loop and not in the thread.
        while True:
            lease = await self._ask(lambda file: file.lease(session_id))
            if lease.is_held_by(owner, now):
                return lease.epoch
            is_withheld = not force and lease.is_withheld_from(owner, now, is_gone)
            if is_withheld and not at_rest:
                return None
            # A lease that is still valid is overridden: `is_gone` has said that its owner is dead.
            # One that has expired may have been renewed since, which the statement checks.
            sure = force or (lease.until or 0) > now
            terms = r.ClaimTerms(sure, is_withheld, now)
            epoch = await self._claim(session_id, owner, lease, terms)
            if epoch is not None or is_withheld:
                return epoch

    async def _claim(
        self, session_id: str, owner: str, lease: r.Lease, terms: r.ClaimTerms
    ) -> int | None:
        return await self._ask(lambda file: file.claim(session_id, owner, lease, terms))

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        await self._ask(lambda file: file.release(session_id, owner, attempts))

    async def attempt(self, session_id: str, epoch: int) -> int:
        return await self._ask(lambda file: file.attempt(session_id, epoch))

    async def heartbeat(self, owner: str, until: float) -> None:
        await self._ask(lambda file: file.heartbeat(owner, until))

    async def release_all(self, owner: str) -> None:
        await self._ask_and_notify(lambda file: file.release_all(owner), None)

    async def unfinished_sessions(self, now: float) -> list[str]:
        rows = await self._ask(lambda file: file.unfinished_sessions(now))
        return r.read_unfinished(rows)

    async def owned_sessions(self, owner: str) -> list[str]:
        rows = await self._ask(lambda file: file.owned_sessions(owner))
        return [r.from_ascii(row[0]) for row in rows]

    async def next_due(self, after: float = float("-inf")) -> float | None:
        return await self._ask(lambda file: file.next_due(after))

    async def children(self, session_id: str) -> list[str]:
        rows = await self._ask(lambda file: file.children(session_id))
        return [r.from_ascii(row[0]) for row in rows]

    async def forget(self, session_id: str, epoch: int) -> None:
        await self._ask_and_notify(lambda file: file.forget(session_id, epoch), session_id)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        unsubscribe = self._listeners.subscribe(listener)
        if self._worker is not None:
            self._worker.wake()
        return unsubscribe

    async def _ask(self, work: Callable[[SessionFile], T]) -> T:
        return await self._submit(lambda access: access.ask(work))

    async def _ask_and_notify(self, work: Callable[[SessionFile], T], session_id: str | None) -> T:
        return await self._submit(lambda access: access.ask_and_notify(work, session_id))

    def _submit(
        self, work: Callable[[_FileAccess], T], *, may_share: bool = True
    ) -> asyncio.Future[T]:
        if self._worker is None:
            raise _not_open(self._path)
        access = self._access  # the job must not refer to the log
        return self._worker.submit(lambda: work(access), may_share=may_share)


def _not_open(path: str) -> StorageError:
    return StorageError(f"the SQLite file {path!r} is not open: call `open` first")
