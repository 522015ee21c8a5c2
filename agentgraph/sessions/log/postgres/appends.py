"""Appends to Postgres: those that arrive while others are under way share a transaction.

A commit waits for the disk, and each statement for the network: many sessions at once then wait
together, and not one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from agentgraph.sessions.log.postgres.connection import LogConnection, Values

_MOST_TOGETHER = 32
"""How many appends share a transaction: the first one waits for the last."""
_MOST_AT_ONCE = 2
"""How many transactions there are at a time, so that one that waits for a lock holds up not all."""


class Operations(Protocol):
    """How a log carries out an operation on one of its connections."""

    async def __call__(
        self,
        work: Callable[[LogConnection], Awaitable[None]],
        *,
        again: Callable[[LogConnection], Awaitable[None]] | None = None,
        since: float | None = None,
    ) -> None: ...


@dataclass(slots=True, eq=False)
class _Append:
    """One append, and the future that its caller waits for."""

    session_id: str
    values: Values
    future: asyncio.Future[None]
    since: float
    """When it was asked for: with a dead server it waits no longer than one that is alone."""


class Appends:
    """The appends of a log to sessions that go on; those that end a session run by themselves."""

    def __init__(self, do: Operations) -> None:
        self._do = do
        self._queue: list[_Append] = []
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, session_id: str, values: Values) -> None:
        """Append; raise what `LogConnection.append` raises.

        What a cancelled caller has asked for may be carried out all the same.
        """
        if self._count < _MOST_AT_ONCE:
            self._count += 1
            try:
                await self._append(session_id, values)
            finally:
                self._count -= 1
                self._go_on()
            return
        loop = asyncio.get_running_loop()
        append = _Append(session_id, values, loop.create_future(), loop.time())
        self._queue.append(append)
        await append.future

    def _go_on(self) -> None:
        """Start a task for the appends that wait, if there are any."""
        if self._queue:
            self._count += 1
            task = asyncio.ensure_future(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:_MOST_TOGETHER], self._queue[_MOST_TOGETHER:]
                await self._run_together(batch)
        finally:
            self._count -= 1

    async def _run_together(self, batch: list[_Append]) -> None:
        # All processes lock rows of sessions in this order, so none of them waits in a circle.
        batch.sort(key=lambda append: append.session_id)

        async def work(connection: LogConnection) -> None:
            appends = [(append.session_id, append.values) for append in batch]
            errors = await connection.append_together(appends)
            for append, error in zip(batch, errors, strict=True):
                _settle(append.future, error)

        try:
            await self._do(work, since=min(append.since for append in batch))
        except Exception:
            # It is unknown whether they were carried out; and one of them may have failed all.
            rest = [append for append in batch if not append.future.done()]
            await asyncio.gather(*map(self._repeat, rest))

    async def _repeat(self, append: _Append) -> None:
        error: Exception | None = None
        try:
            await self._append(append.session_id, append.values, repeated_since=append.since)
        except Exception as failure:
            error = failure
        _settle(append.future, error)

    async def _append(
        self, session_id: str, values: Values, *, repeated_since: float | None = None
    ) -> None:
        async def work(connection: LogConnection) -> None:
            await connection.append(session_id, values)

        async def again(connection: LogConnection) -> None:
            await connection.append_again(session_id, values)

        first = work if repeated_since is None else again
        await self._do(first, again=again, since=repeated_since)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
