"""Time limits around blocks of code; the code inside can pause them while it waits for a reader.

All limits of an event loop share one timer: nearly every call of a run has a limit and hardly any
limit expires, so a timer for each would be the most expensive part of a guarded step.

A coroutine may catch its cancellation and go on. The code that waits for it in `cut_off` does not:
it goes on at the limit, and what the call does afterwards has no part in the run any more.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context, ContextVar
from types import TracebackType
from types import coroutine as awaitable
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary, ref

from agentgraph.contexts import scope

T = TypeVar("T")


class Limit(Protocol):
    """A time limit that can be paused; it counts again when all pauses have been resumed."""

    def pause(self) -> None:
        """Stop counting."""
        ...

    def resume(self) -> None:
        """End one pause; count again if it was the last."""
        ...


class _Timer:
    """The limits of the running loop, and one timer for the one that expires first."""

    def __init__(self) -> None:
        self._due: dict[TimeLimit, float] = {}
        self._handle: ref[asyncio.TimerHandle] | None = None
        """A weak reference, because the handle refers to its loop, which may be closed earlier."""
        self._at = math.inf

    def add(self, limit: TimeLimit, due: float) -> None:
        self._due[limit] = due
        if due < self._at:
            self._schedule(due)

    def remove(self, limit: TimeLimit) -> float | None:
        # The handle is not cancelled: when it fires, no limit is due, or only a later one.
        return self._due.pop(limit, None)

    def _schedule(self, due: float) -> None:
        if self._handle is not None and (handle := self._handle()) is not None:
            handle.cancel()
        loop = asyncio.get_running_loop()
        # In an empty context: otherwise the timer would keep the first caller's context alive.
        self._handle, self._at = ref(loop.call_at(due, self._expire_due, context=Context())), due

    def _expire_due(self) -> None:
        self._handle, self._at = None, math.inf
        now = asyncio.get_running_loop().time()
        for limit in [limit for limit, due in self._due.items() if due <= now]:
            del self._due[limit]
            limit.expire()
        if self._due:
            self._schedule(min(self._due.values()))


_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Timer] = WeakKeyDictionary()
_limits: ContextVar[tuple[Limit, ...]] = ContextVar("agentgraph_limits", default=())


class TimeLimit:
    """Cancel a block after some seconds and raise `TimeoutError`; None sets no limit.

    It works like `asyncio.timeout`, and can be paused. Enter each object only once.
    """

    __slots__ = (
        "_cancellations",
        "_is_met",
        "_pauses",
        "_remaining_s",
        "_seconds",
        "_task",
        "_timer",
        "_token",
    )

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._is_met = False
        self._pauses = 0
        self._remaining_s: float | None = None

    def __enter__(self) -> Self:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is entered in a task")
        self._task, self._cancellations = task, task.cancelling()
        self._token = _limits.set((*_limits.get(), self))
        timer = _timers.get(loop)
        if timer is None:
            timer = _timers[loop] = _Timer()
        self._timer = timer
        if self._seconds is not None:
            timer.add(self, loop.time() + self._seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _limits.reset(self._token)
        self._timer.remove(self)
        self._remaining_s = None
        # Any other cancellation stays a cancellation, even if it came at the same time.
        is_own = self._is_met and self._task.uncancel() <= self._cancellations
        if is_own and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the block."""
        self._is_met = True
        self._task.cancel()

    def pause(self) -> None:
        """Stop counting."""
        self._pauses += 1
        if self._pauses == 1:
            due = self._timer.remove(self)
            self._remaining_s = None if due is None else due - asyncio.get_running_loop().time()

    def resume(self) -> None:
        """End one pause; if it was the last, count on with the remaining time."""
        self._pauses -= 1
        if self._pauses == 0 and self._remaining_s is not None:
            self._timer.add(self, asyncio.get_running_loop().time() + self._remaining_s)


@contextmanager
def inside_limit(limit: Limit) -> Iterator[None]:
    """Let the code in here pause a limit that is not a `TimeLimit`, such as a fake clock's."""
    token = _limits.set((*_limits.get(), limit))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def without_limits() -> Iterator[None]:
    """Keep code in here from pausing the limits around it, which belong to another run or loop."""
    token = _limits.set(())
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def paused_limits() -> Iterator[None]:
    """Pause the time limits around this code while it waits in here."""
    limits = _limits.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.resume()


# Calls that are left behind.


_GRACE_TURNS = 10
"""For how many turns of the event loop a call may go on after it was cut off."""


class _Call:
    """A call that may be left behind, and with it all calls inside of it."""

    __slots__ = ("_outer", "is_over")

    def __init__(self, outer: _Call | None) -> None:
        self._outer = outer
        self.is_over = False

    @property
    def is_left(self) -> bool:
        return self.is_over or (self._outer is not None and self._outer.is_left)


_current: ContextVar[_Call | None] = ContextVar("agentgraph_cutoff", default=None)
_left_tasks: set[asyncio.Future[Any]] = set()
"""The tasks that were left behind: asyncio itself keeps no reference to them."""


def is_left_behind() -> bool:
    """Tell whether the run has gone on without this code, which must not write to it any more."""
    call = _current.get()
    return call is not None and call.is_left


async def cut_off(
    work: Callable[[], Awaitable[T]],
    limit: Callable[[], AbstractContextManager[object]],
) -> T:
    """Return the result of a call within a time limit, in a task of its own.

    Raises what the limit raises as soon as it is met, though the call may swallow its cancellation.
    A cancellation from outside waits until the call has ended, for as long as the limit allows.
    """
    call = _Call(_current.get())
    task: asyncio.Future[T] | None = None
    try:
        with limit():
            with scope(_current, call):
                task = asyncio.ensure_future(work())
            await _end_of(task)
            return task.result()
    except asyncio.CancelledError:
        if task is not None and not task.done():
            task.cancel()
            with suppress(TimeoutError), limit():
                await _end_of(task)
        raise
    finally:
        if task is not None and not task.done():
            await _leave(task, call)


async def _end_of(task: asyncio.Future[Any]) -> None:
    """Wait until a task has ended; a cancellation ends this wait and not the task."""
    end = asyncio.get_running_loop().create_future()

    def resolve(_: asyncio.Future[Any]) -> None:
        if not end.done():
            end.set_result(None)

    task.add_done_callback(resolve)
    await end


async def _leave(task: asyncio.Future[Any], call: _Call) -> None:
    """Cancel a task, and leave it behind where it does not end."""
    task.cancel()
    try:
        for _ in range(_GRACE_TURNS):
            await _turn()
            if task.done():
                break
    finally:
        call.is_over = True
        _left_tasks.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Future[Any]) -> None:
    _left_tasks.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not warn


@awaitable
def _turn() -> Generator[None, None, None]:
    """Let the event loop run once."""
    yield
