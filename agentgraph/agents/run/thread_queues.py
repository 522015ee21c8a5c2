"""One run at a time on a thread: first come first served in a process, then among processes."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentgraph.clock import clock
from agentgraph.running import Run
from agentgraph.storage import LazySaver

_MOST_UNFINISHED = 1_000
_POLL_S = 0.05
_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class ThreadQueues:
    """The queues of all threads of one checkpointer; a queue exists only while it is used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiter]] = {}
        self.unfinished_runs: dict[str, Run] = {}
        """The last run of each thread that was cut off, or waits for a decision; at most 1,000."""

    @asynccontextmanager
    async def take(self, thread_id: str, saver: object) -> AsyncIterator[None]:
        """Wait until the thread is free, and free it at the end."""
        await self._enter(thread_id)
        try:
            async with _claim(saver, thread_id):
                yield
        finally:
            self._leave(thread_id)

    def keep(self, run: Run) -> None:
        """Remember an unfinished run; the oldest goes when there are too many."""
        self.unfinished_runs.pop(run.thread_id, None)
        self.unfinished_runs[run.thread_id] = run
        while len(self.unfinished_runs) > _MOST_UNFINISHED:
            del self.unfinished_runs[next(iter(self.unfinished_runs))]

    def drop(self, run: Run | None) -> None:
        """Forget a run of a thread that was deleted elsewhere."""
        if run is not None and self.unfinished_runs.get(run.thread_id) is run:
            del self.unfinished_runs[run.thread_id]

    async def _enter(self, thread_id: str) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            queue = self._queues.get(thread_id)
            if queue is None:
                self._queues[thread_id] = deque()
                return
            turn = loop.create_future()
            queue.append((loop, turn))
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                is_queued = (loop, turn) in queue
                if is_queued:
                    queue.remove((loop, turn))
            if not is_queued:  # the thread was given to us while we were giving up
                self._leave(thread_id)
            raise

    def _leave(self, thread_id: str) -> None:
        with self._lock:
            queue = self._queues[thread_id]
            while queue:
                loop, turn = queue.popleft()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_wake, turn)
                    return
            del self._queues[thread_id]


@asynccontextmanager
async def _claim(saver: object, thread_id: str) -> AsyncIterator[None]:
    """Wait until no other process runs the thread, where the store can tell."""
    if not isinstance(saver, LazySaver):
        yield
        return
    while (claim := await saver.atake(thread_id)) is None:
        await clock().sleep(_POLL_S)
    try:
        yield
    finally:
        await claim.release()


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
