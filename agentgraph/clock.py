"""The clock: the only reader of time and randomness, which a test can replace by a `FakeClock`."""

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


class Clock(Protocol):
    """The interface of `SystemClock` and `agentgraph.testing.FakeClock`."""

    def wall(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease; they mean nothing in another process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...

    def timeout(self, seconds: float | None) -> AbstractContextManager[object]:
        """Return a context that raises `TimeoutError` after `seconds`; None sets no limit.

        Time that the code inside spends in `paused_limits` does not count.
        """
        ...

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """Return a unique id: 32 hexadecimal digits."""
        ...


class SystemClock:
    """The machine's time and randomness."""

    # Not wrapped in methods: each step of a run reads the time some ten times.
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
    """Return the clock in force: that of the innermost `use_clock`, else the machine's."""
    return _clock.get(_system)


def new_id() -> str:
    """Return a unique id: 32 hexadecimal digits."""
    return clock().new_id()


def utc_now() -> datetime:
    """Return the present instant in UTC."""
    return datetime.fromtimestamp(clock().wall(), UTC)


@contextmanager
def use_clock(replacement: Clock) -> Iterator[None]:
    """Put another clock in force for a block, and for all tasks that it starts."""
    token = _clock.set(replacement)
    try:
        yield
    finally:
        _clock.reset(token)
