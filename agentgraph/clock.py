"""The only reader of time and randomness; everything else asks here, so that a test can fake it."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Protocol

from agentgraph.timeouts import TimeLimit

__all__ = [
    "Clock",
    "SystemClock",
    "clock",
    "new_id",
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

    def timeout(self, seconds: float | None) -> AbstractContextManager[object]:
        """Cut a block of a task off after so many seconds, with a `TimeoutError`; None never does.

        Seconds that somebody inside has spent inside `paused_limits` do not count.
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

    # Not methods of ours around them: each step of a run asks for the time some ten times.
    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractContextManager[object]:
        return TimeLimit(seconds)

    def random(self) -> float:
        return random.random()

    def new_id(self) -> str:
        return uuid.uuid4().hex


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
