"""A thread that runs jobs one after another, and polls while it has none.

The thread does not refer to its `Worker`, so it ends when the `Worker` is garbage collected.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from agentgraph.clock import SystemClock

T = TypeVar("T")

POLL_S = 0.05
"""How often a worker polls: the delay with which it notices changes by other processes."""
_EXIT_TIMEOUT_S = 15.0
"""How long the process waits at its exit for the last jobs to finish."""

_Job: TypeAlias = Callable[[], None]
_Jobs: TypeAlias = "queue.SimpleQueue[_Job | None]"

# The machine's clock, as the clock of a test may stand still.
_now = SystemClock().monotonic


class Poller(Protocol):
    """The polling of a worker between jobs; all methods are called in the worker's thread."""

    def is_due(self) -> bool:
        """Tell whether a poll is needed at all."""
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

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a job in the thread; cancelling the future cancels only the wait for the job."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed, so no task waits any more
                loop.call_soon_threadsafe(_settle, future, result, failure)

        self._jobs.put(job)
        return future

    def wake(self) -> None:
        """Make the thread ask the poller again whether a poll is due."""
        self._jobs.put(lambda: None)

    def stop(self) -> None:
        """End the thread once all submitted jobs are done."""
        self._jobs.put(None)


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():  # it was cancelled meanwhile
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


def _work(jobs: _Jobs, poller: Poller) -> None:
    """Do jobs until one is None; poll every `POLL_S` while that is due, between jobs too."""
    polled_at = float("-inf")
    while True:
        wait = POLL_S - (_now() - polled_at) if poller.is_due() else None
        if wait is not None and wait <= 0:
            poller.poll()
            polled_at = _now()
            continue
        try:
            job = jobs.get(timeout=wait)
        except queue.Empty:
            continue
        if job is None:
            break
        job()
        del job  # else it keeps alive all that the job refers to, until the next job
    poller.end()


def _stop(jobs: _Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(_EXIT_TIMEOUT_S)
