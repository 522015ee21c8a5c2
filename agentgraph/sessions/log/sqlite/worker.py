"""A thread that runs jobs, and polls while it has none.

It runs one job after another; several that wait may share a transaction. The thread does not refer
to its `Worker`, so it ends when the `Worker` is garbage collected.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from agentgraph.clock import SystemClock

T = TypeVar("T")

_EXIT_TIMEOUT_S = 15.0
"""How long the process waits at its exit for the last jobs to finish."""
_MOST_TOGETHER = 64
"""How many jobs share a transaction: the first one waits for the last."""

_Jobs: TypeAlias = "queue.SimpleQueue[Job | None]"

# The machine's clock, as the clock of a test may stand still.
_now = SystemClock().monotonic


@dataclass(slots=True, eq=False)
class Job:
    """A function to run in the thread, and what has come of it."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Any] | None = None
    may_share: bool = False
    result: Any = None
    failure: BaseException | None = None

    def run(self) -> None:
        """Run the function, once more if it has run before."""
        self.result = self.failure = None
        try:
            self.result = self.work()
        except BaseException as error:
            self.failure = error

    def settle(self) -> None:
        """Resolve the future; call it on the loop."""
        if self.future is None or self.future.done():  # the wait for it was cancelled
            return
        if self.failure is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.failure)


class Poller(Protocol):
    """Runs several jobs together, and polls between jobs; all in the worker's thread."""

    def run_together(self, jobs: Sequence[Job]) -> None:
        """Run jobs in one transaction, or each in its own."""
        ...

    def is_due(self) -> bool:
        """Tell whether a poll is needed at all."""
        ...

    def pause_s(self) -> float:
        """Return the time between two polls."""
        ...

    def poll(self) -> None:
        """Look for changes, once."""
        ...

    def end(self) -> None:
        """Clean up, when the thread ends."""
        ...


class Worker:
    """A thread that ends when its worker is garbage collected, and keeps no process alive."""

    def __init__(self, name: str, poller: Poller) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs, poller), name=name, daemon=True)
        thread.start()
        # Called at exit as well: a daemon thread is otherwise cut off in the middle of a job.
        weakref.finalize(self, _stop, self._jobs, thread)

    def submit(self, work: Callable[[], T], *, may_share: bool = False) -> asyncio.Future[T]:
        """Run a job in the thread; cancelling the future cancels only the wait for the job.

        Jobs that may share a transaction are run together where several wait. Such a job has to be
        one that can be run again, as it is if another one of them fails.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(Job(work, loop, future, may_share))
        return future

    def wake(self) -> None:
        """Make the thread ask the poller again whether a poll is due."""
        self._jobs.put(Job(lambda: None))

    def stop(self) -> None:
        """End the thread once all submitted jobs are done."""
        self._jobs.put(None)


def _work(jobs: _Jobs, poller: Poller) -> None:
    """Do jobs until one is None; poll as often as the poller wants it, between jobs too."""
    polled_at = float("-inf")
    next_job: Job | None = None  # it was taken, and could not be run with those before it
    while True:
        wait = poller.pause_s() - (_now() - polled_at) if poller.is_due() else None
        if wait is not None and wait <= 0:
            poller.poll()
            polled_at = _now()
            continue
        try:
            job = next_job or jobs.get(timeout=wait)
        except queue.Empty:
            continue
        if job is None:
            break
        together, next_job, is_last = _gather(job, jobs)
        if len(together) > 1:
            poller.run_together(together)
        else:
            job.run()
        _settle(together)
        del job, together  # else they keep alive all that they refer to, until the next job
        if is_last:
            break
    poller.end()


def _gather(first: Job, jobs: _Jobs) -> tuple[list[Job], Job | None, bool]:
    """Return the jobs to run with the first one, the job after these, and if there is no other."""
    together = [first]
    while first.may_share and len(together) < _MOST_TOGETHER:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            break
        if job is None:
            return together, None, True
        if not job.may_share:
            return together, job, False
        together.append(job)
    return together, None, False


def _settle(jobs: Sequence[Job]) -> None:
    for job in jobs:
        with suppress(RuntimeError):  # the loop is closed, so no task waits any more
            if job.loop is not None:
                job.loop.call_soon_threadsafe(job.settle)


def _stop(jobs: _Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(_EXIT_TIMEOUT_S)
