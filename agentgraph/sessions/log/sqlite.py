"""Sessions in a SQLite file, by a thread of their own.

On the event loop they would lock up with the checkpoint saver: it holds the file's write lock while
it waits for the loop to go on.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

from agentgraph.errors import StorageError
from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.listeners import Listeners
from agentgraph.sessions.log.protocol import Changed, Grown, Stored, Summary, Waiting
from agentgraph.sessions.log.sqlite_file import SessionFile
from agentgraph.sessions.log.worker import Worker
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

T = TypeVar("T")


class _Desk:
    """What the thread has before it; not the log, so that one can be forgotten."""

    def __init__(self, path: str, listeners: Listeners) -> None:
        self.path = path
        self.listeners = listeners
        self.file: SessionFile | None = None

    def open(self) -> None:
        if self.file is None:
            try:
                self.file = SessionFile(self.path)
            except sqlite3.Error as error:
                raise StorageError(f"cannot open the SQLite file {self.path!r}: {error}") from error

    def ask(self, work: Callable[[SessionFile], T]) -> T:
        if self.file is None:
            raise _not_open(self.path)
        try:
            return work(self.file)
        except sqlite3.Error as error:
            raise StorageError(
                f"the SQLite file {self.path!r} cannot be used ({type(error).__name__}: {error}): "
                "check that it is there and writable, and that nobody else keeps it locked"
            ) from error

    def change(self, work: Callable[[SessionFile], T], session_id: str | None) -> T:
        result = self.ask(work)
        # From here, as whoever waits for the result may have been cancelled by now.
        self.listeners.tell(session_id)
        return result

    def is_due(self) -> bool:
        return self.file is not None and bool(self.listeners)

    def poll(self) -> None:
        with suppress(sqlite3.Error):  # it is locked, or gone: whoever uses it next is told so
            if self.file is not None and self.file.has_changed():
                self.listeners.tell(None)

    def end(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            file.close()


class SQLiteLog:
    """Keep sessions in a file, which several processes and several hubs of each may share."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listeners = Listeners()
        self._desk = _Desk(path, self._listeners)
        self._worker: Worker | None = None

    async def open(self) -> None:
        if self._worker is None:
            self._worker = Worker("agentgraph-sessions", self._desk)
        worker = self._worker
        try:
            await worker.submit(self._desk.open)
        except StorageError:
            if self._worker is worker:
                self._worker = None
            worker.stop()
            raise

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            closing = worker.submit(self._desk.end)
            worker.stop()
            await closing

    async def create(
        self,
        record: SessionRecord,
        envelopes: Sequence[Envelope],
        state: SessionState,
        *,
        due_at: float | None = None,
        runnable: bool | None = None,
    ) -> bool:
        columns = {**r.record_columns(record), **r.state_columns(state, due_at, runnable)}
        rows, keys = r.envelope_rows(envelopes, 0), r.keys_of(envelopes)

        def work(desk: _Desk) -> bool:
            created = desk.ask(lambda file: file.create(columns, rows, keys))
            if created:
                desk.listeners.tell(record.session_id)
            return created

        return await self._submit(work)

    async def load(self, session_id: str) -> Stored | None:
        row = await self._ask(lambda file: file.load(session_id))
        return None if row is None else r.stored(session_id, row)

    async def sessions(self, status: str | None = None) -> list[Summary]:
        return [r.summary(row) for row in await self._ask(lambda file: file.sessions(status))]

    async def append(
        self,
        session_id: str,
        envelopes: Sequence[Envelope],
        head: int,
        state: SessionState,
        *,
        epoch: int | None = None,
        due_at: float | None = None,
        taken: Collection[str] = (),
        attempts: int | None = None,
    ) -> None:
        rows, keys, gone = r.envelope_rows(envelopes, head), r.keys_of(envelopes), tuple(taken)
        columns = {
            **r.state_columns(state, due_at),
            "head": head,
            "count": len(rows),
            "said": r.spoken(rows),
            "epoch": epoch,
            "attempts": attempts,
        }
        await self._change(
            lambda file: file.append(session_id, columns, rows, keys, gone), Grown(session_id)
        )

    async def read(
        self, session_id: str, after: int = 0, limit: int | None = None
    ) -> list[Envelope]:
        after = max(after, 0)

        # Decoded in the thread, as there may be thousands.
        def work(file: SessionFile) -> list[Envelope]:
            return r.read_rows(session_id, file.read(session_id, after, limit), after, limit)

        return await self._ask(work)

    async def tail(self, session_id: str, count: int, before: int | None = None) -> list[Envelope]:
        rows = await self._ask(lambda file: file.tail(session_id, count, before))
        return r.tail_rows(session_id, rows, before, count)

    async def find(self, session_id: str, envelope_id: str) -> Envelope | None:
        sequence, data = await self._ask(lambda file: file.find(session_id, envelope_id))
        return None if sequence is None else r.envelope_of(session_id, sequence, data)

    async def put(self, session_id: str, waiting: Waiting) -> str:
        row = r.inbox_row(waiting)

        def work(desk: _Desk) -> str:
            found = desk.ask(lambda file: file.put(session_id, row))
            if found == row.envelope_id:
                desk.listeners.tell(session_id)
            return found

        return r.plain(await self._submit(work))

    async def waiting(self, session_id: str) -> list[Waiting]:
        rows = await self._ask(lambda file: file.waiting(session_id))
        return r.waiting_rows(session_id, rows)

    async def claim(
        self,
        session_id: str,
        owner: str,
        now: float,
        *,
        is_gone: Callable[[str], bool] = lambda owner: False,
        force: bool = False,
    ) -> int | None:
        # Asked here, and not in the thread: `is_gone` is the caller's, and may be anything.
        while True:
            held = await self._ask(lambda file: file.held(session_id))
            if held.is_kept_by(owner, now):
                return held.epoch
            if not force and held.is_withheld_from(owner, now, is_gone):
                return None
            sure = force or (held.until or 0) > now
            epoch = await self._claim(session_id, owner, held, sure=sure, now=now)
            if epoch is not None:
                return epoch

    async def _claim(
        self, session_id: str, owner: str, held: r.Held, *, sure: bool, now: float
    ) -> int | None:
        return await self._ask(lambda file: file.claim(session_id, owner, held, sure=sure, now=now))

    async def release(self, session_id: str, owner: str, *, attempts: int | None = None) -> None:
        await self._ask(lambda file: file.release(session_id, owner, attempts))

    async def attempt(self, session_id: str, epoch: int) -> int:
        return await self._ask(lambda file: file.attempt(session_id, epoch))

    async def beat(self, owner: str, until: float) -> None:
        await self._ask(lambda file: file.beat(owner, until))

    async def retire(self, owner: str) -> None:
        await self._change(lambda file: file.retire(owner), None)

    async def unfinished(self, now: float) -> list[str]:
        rows = await self._ask(lambda file: file.unfinished(now))
        return [r.plain(row[1]) for row in rows]

    async def next_due(self) -> float | None:
        return await self._ask(lambda file: file.next_due())

    def subscribe(self, changed: Changed) -> Callable[[], None]:
        end = self._listeners.add(changed)
        if self._worker is not None:
            self._worker.nudge()
        return end

    async def _ask(self, work: Callable[[SessionFile], T]) -> T:
        return await self._submit(lambda desk: desk.ask(work))

    async def _change(self, work: Callable[[SessionFile], T], session_id: str | None) -> T:
        return await self._submit(lambda desk: desk.change(work, session_id))

    def _submit(self, work: Callable[[_Desk], T]) -> asyncio.Future[T]:
        if self._worker is None:
            raise _not_open(self._path)
        desk = self._desk
        return self._worker.submit(lambda: work(desk))


def _not_open(path: str) -> StorageError:
    return StorageError(f"the SQLite file {path!r} is not open: call `open` first")
