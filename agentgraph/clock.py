"""The only reader of time and randomness; everything else asks here, so that a test can fake it."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import (
    AbstractAsyncContextManager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, TypeAlias

__all__ = [
    "Clock",
    "Limit",
    "SystemClock",
    "clock",
    "limited",
    "new_id",
    "unhurried",
    "use_clock",
    "utc_now",
]


class Clock(Protocol):
    """Time and randomness, as a port."""

    def wall(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never run backwards; no meaning in another process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Cut a block off after so many seconds, with a `TimeoutError`; None never does.

        Seconds that somebody inside has spent `unhurried` do not count.
        """
        ...

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """Return an id that nobody else has."""
        ...


class SystemClock:
    """The machine's time and randomness."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        return _Scope(asyncio.timeout(seconds))

    def random(self) -> float:
        return random.random()

    def new_id(self) -> str:
        return uuid.uuid4().hex


class Limit(Protocol):
    """A time limit that can be stopped; it runs again once all who have stopped it let it."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


class _Scope:
    """A limit of asyncio's around a block; a class, for it is entered at each step of a run."""

    def __init__(self, scope: asyncio.Timeout) -> None:
        self._scope = scope
        self._pauses = 0
        self._left: float | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._token = _limits.set((*_limits.get(), self))

    async def __aexit__(self, *error: *_Error) -> None:
        _limits.reset(self._token)
        await self._scope.__aexit__(*error)

    def pause(self) -> None:
        self._pauses += 1
        due = self._scope.when()
        if self._pauses == 1 and due is not None:
            self._left = due - asyncio.get_running_loop().time()
            self._reschedule(None)

    def go_on(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and self._left is not None:
            self._reschedule(asyncio.get_running_loop().time() + self._left)

    def _reschedule(self, due: float | None) -> None:
        with suppress(RuntimeError):  # it is over already
            self._scope.reschedule(due)


_Error: TypeAlias = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

_limits: ContextVar[tuple[Limit, ...]] = ContextVar("agentgraph_limits", default=())


@contextmanager
def limited(limit: Limit) -> Iterator[None]:
    """Let what runs in here stop a limit that holds for it."""
    token = _limits.set((*_limits.get(), limit))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def unhurried() -> Iterator[None]:
    """Stop all time limits around this code while it waits in here."""
    limits = _limits.get()
    for limit in limits:
        limit.pause()
    try:
        yield
    finally:
        for limit in limits:
            limit.go_on()


_clock: ContextVar[Clock] = ContextVar("agentgraph_clock")
_system = SystemClock()


def clock() -> Clock:
    """Return the clock in force here."""
    return _clock.get(_system)


def new_id() -> str:
    """Return an id that nobody else has."""
    return clock().new_id()


def utc_now() -> datetime:
    """Return the present instant in UTC."""
    return datetime.fromtimestamp(clock().wall(), UTC)


@contextmanager
def use_clock(replacement: Clock) -> Iterator[None]:
    """Put another clock in force for a block and all that it starts."""
    token = _clock.set(replacement)
    try:
        yield
    finally:
        _clock.reset(token)
