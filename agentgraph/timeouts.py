"""Time limits around blocks of code, which whoever waits in there for a reader can stop.

All limits of an event loop share one timer: nearly every call of a run has a limit and hardly one
is ever met, so that to set and cancel a timer for each would be the dearest part of a guarded step.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakKeyDictionary, ref

from agentgraph.scoped import scoped

__all__ = ["Limit", "TimeLimit", "apart", "limited", "unhurried"]


class Limit(Protocol):
    """A time limit that can be stopped; it runs again once all who have stopped it let it."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


class _Watch:
    """The limits of the running loop, and the timer for the first of them that may be met."""

    def __init__(self) -> None:
        self._due: dict[TimeLimit, float] = {}
        self._timer: ref[asyncio.TimerHandle] | None = None
        """Weak, as it holds its loop, which may be closed before."""
        self._at = math.inf

    def add(self, limit: TimeLimit, due: float) -> None:
        self._due[limit] = due
        if due < self._at:
            self._wind(due)

    def remove(self, limit: TimeLimit) -> float | None:
        # The timer stays: it finds nothing then, or what came later.
        return self._due.pop(limit, None)

    def _wind(self, due: float) -> None:
        if self._timer is not None and (before := self._timer()) is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        # In a context of its own: that of whoever came first would live as long.
        self._timer, self._at = ref(loop.call_at(due, self._look, context=Context())), due

    def _look(self) -> None:
        self._timer, self._at = None, math.inf
        now = asyncio.get_running_loop().time()
        for limit in [limit for limit, due in self._due.items() if due <= now]:
            del self._due[limit]
            limit.expire()
        if self._due:
            self._wind(min(self._due.values()))


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watch] = WeakKeyDictionary()
_limits: ContextVar[tuple[Limit, ...]] = ContextVar("agentgraph_limits", default=())


class TimeLimit:
    """Cut a block off after so many seconds, with a `TimeoutError`; None never does.

    It does what `asyncio.timeout` does, and can be stopped; it is not to be entered again.
    """

    __slots__ = ("_before", "_is_met", "_left", "_pauses", "_seconds", "_task", "_token", "_watch")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._is_met = False
        self._pauses = 0
        self._left: float | None = None

    def __enter__(self) -> Self:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is entered in a task")
        self._task, self._before = task, task.cancelling()
        self._token = _limits.set((*_limits.get(), self))
        watch = _watches.get(loop)
        if watch is None:
            watch = _watches[loop] = _Watch()
        self._watch = watch
        if self._seconds is not None:
            watch.add(self, loop.time() + self._seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _limits.reset(self._token)
        self._watch.remove(self)
        self._left = None
        # Another's cancellation stays what it is, be it at the same time.
        is_own = self._is_met and self._task.uncancel() <= self._before
        if is_own and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cut the block off."""
        self._is_met = True
        self._task.cancel()

    def pause(self) -> None:
        """Stop."""
        self._pauses += 1
        if self._pauses == 1:
            due = self._watch.remove(self)
            self._left = None if due is None else due - asyncio.get_running_loop().time()

    def go_on(self) -> None:
        """Run again."""
        self._pauses -= 1
        if self._pauses == 0 and self._left is not None:
            self._watch.add(self, asyncio.get_running_loop().time() + self._left)


@contextmanager
def limited(limit: Limit) -> Iterator[None]:
    """Let what runs in here stop a limit that holds for it."""
    token = _limits.set((*_limits.get(), limit))
    try:
        yield
    finally:
        _limits.reset(token)


def apart() -> scoped[tuple[Limit, ...]]:
    """Let nobody in here stop the limits around it: they are another run's, or another loop's."""
    return scoped(_limits, ())


@contextmanager
def unhurried() -> Iterator[None]:
    """Stop the time limits around this code while it waits in here."""
    limits = _limits.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.go_on()
