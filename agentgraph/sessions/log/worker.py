"""A thread that does one thing after the other, and looks around while it has nothing to do."""

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
_EXIT_TIMEOUT_S = 15.0

_Job: TypeAlias = Callable[[], None]
_Jobs: TypeAlias = "queue.SimpleQueue[_Job | None]"

# The machine's: that of a test may stand still.
_now = SystemClock().monotonic


class Chore(Protocol):
    """What a worker does of its own accord."""

    def is_due(self) -> bool:
        """Tell whether there is anything to look for."""
        ...

    def poll(self) -> None:
        """Look for it."""
        ...

    def end(self) -> None:
        """Clean up."""
        ...


class Worker:
    """Work in a thread that ends with its owner, and keeps no process alive."""

    def __init__(self, name: str, chore: Chore) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs, chore), name=name, daemon=True)
        thread.start()
        # Also at exit: a daemon thread is otherwise cut off in the middle of what it does.
        weakref.finalize(self, _stop, self._jobs, thread)

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have something done; to cancel the future cancels only the wait for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # its loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, result, failure)

        self._jobs.put(job)
        return future

    def nudge(self) -> None:
        """Have it look around, as there may be something to look for now."""
        self._jobs.put(_nothing)

    def stop(self) -> None:
        """End the thread once all is done that was submitted."""
        self._jobs.put(None)


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


def _work(jobs: _Jobs, chore: Chore) -> None:
    polled_at = float("-inf")
    while True:
        wait = POLL_S - (_now() - polled_at) if chore.is_due() else None
        if wait is not None and wait <= 0:
            chore.poll()
            polled_at = _now()
            continue
        try:
            job = jobs.get(timeout=wait)
        except queue.Empty:
            continue
        if job is None:
            break
        job()
        del job  # it would else keep alive what it has done it for, until there is another
    chore.end()


def _stop(jobs: _Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(_EXIT_TIMEOUT_S)


def _nothing() -> None: ...
