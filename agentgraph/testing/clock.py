"""A clock for tests, which stands still until it is advanced."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from random import Random  # noqa: TID251 - a seeded one
from threading import Lock
from typing import Self

from agentgraph.clock import use_clock
from agentgraph.timeouts import TimeLimit, inside_limit

_NANO = 1_000_000_000


class FakeClock:
    """A clock that stands still until it is advanced; its random numbers and ids follow the seed.

    Times are kept in whole nanoseconds, so that ten steps of 0.1 s make one second.
    """

    def __init__(self, start: float | datetime = 1_700_000_000.0, *, seed: int = 0) -> None:
        self._monotonic = 0
        self._offset = _nanoseconds(start)
        self._seed = seed
        self._random = Random(seed)
        self._ids = count(1)
        self._order = count()
        self._sleepers: list[_Sleeper] = []
        self._timers: list[_Sleeper] = []
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []
        self._lock = Lock()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return (self._offset + self._monotonic) / _NANO

    def monotonic(self) -> float:
        """Return the seconds advanced so far."""
        return self._monotonic / _NANO

    def random(self) -> float:
        """Return the seed's next number in [0, 1)."""
        return self._random.random()

    def new_id(self) -> str:
        """Return the next id: 32 hexadecimal digits of seed and counter."""
        return f"{self._seed & 0xFFFF_FFFF_FFFF_FFFF:016x}{next(self._ids):016x}"

    def set_wall(self, instant: float | datetime) -> None:
        """Set the wall clock, back or forth; no sleeper notices."""
        self._offset = _nanoseconds(instant) - self._monotonic

    def advance(self, seconds: float) -> None:
        """Move on and wake whose time has come, in the order of their times."""
        if seconds < 0:
            raise ValueError("Time cannot be advanced backwards: see `set_wall`.")
        with self._lock:
            # First: a loop in another thread runs whom it wakes at once, who asks for the time.
            self._monotonic += _nanoseconds(seconds)
            for waiting in (self._timers, self._sleepers):
                while waiting and waiting[0].due <= self._monotonic:
                    _wake(heapq.heappop(waiting).woken)

    @property
    def sleepers(self) -> int:
        """Return how many are asleep."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced so far."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            due = self._monotonic + _nanoseconds(seconds)
            sleeper = _Sleeper(due, next(self._order), woken)
            if due <= self._monotonic:
                _wake(woken)
            else:
                heapq.heappush(self._sleepers, sleeper)
                self._tell_watchers()
        try:
            await woken
        finally:
            self._forget(sleeper)

    @contextmanager
    def timeout(self, seconds: float | None) -> Iterator[None]:
        """Cut a block off once the clock has been advanced so far; it is none of the sleepers."""
        if seconds is None:
            yield
            return
        with TimeLimit(None) as limit:
            timer = _Timer(self, limit, _nanoseconds(seconds))
            try:
                with inside_limit(timer):
                    yield
            finally:
                timer.end()

    async def asleep(self, count: int = 1) -> None:
        """Wait until at least so many are asleep: then it is time to advance."""
        with self._lock:
            if len(self._sleepers) >= count:
                return
            seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((count, seen))
        await seen

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Put this clock in force for a block and all that it starts."""
        with use_clock(self):
            yield self

    def _wind(self, left: int, woken: asyncio.Future[None]) -> _Sleeper:
        with self._lock:
            timer = _Sleeper(self._monotonic + left, next(self._order), woken)
            if left <= 0:
                _wake(woken)
            else:
                heapq.heappush(self._timers, timer)
            return timer

    def _unwind(self, timer: _Sleeper) -> int:
        """Stop a timer, and return what was left of it."""
        with self._lock:
            if timer in self._timers:
                self._timers.remove(timer)
                heapq.heapify(self._timers)
            return timer.due - self._monotonic

    def _tell_watchers(self) -> None:
        asleep = len(self._sleepers)
        for _, seen in (one for one in self._watchers if one[0] <= asleep):
            _wake(seen)
        self._watchers = [one for one in self._watchers if one[0] > asleep]

    def _forget(self, sleeper: _Sleeper) -> None:
        with self._lock:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)


class _Timer:
    """Has a limit met by a clock that is advanced."""

    def __init__(self, clock: FakeClock, limit: TimeLimit, left: int) -> None:
        self._clock = clock
        self._limit = limit
        self._left: int | None = left
        """The nanoseconds that are left, None once it is met or over."""
        self._pauses = 0
        self._running: _Sleeper | None = None
        self._start()

    def pause(self) -> None:
        self._pauses += 1
        if self._running is not None:
            self._left = self._clock._unwind(self._running)
            self._running = None

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and self._running is None:
            self._start()

    def end(self) -> None:
        self.pause()
        self._left = None

    def _start(self) -> None:
        if self._left is None:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        woken.add_done_callback(self._met)
        self._running = self._clock._wind(self._left, woken)

    def _met(self, woken: asyncio.Future[None]) -> None:
        if self._running is not None and self._running.woken is woken:  # else it is over, or paused
            self._running = self._left = None
            self._limit.expire()


@dataclass(order=True, frozen=True, slots=True)
class _Sleeper:
    due: int
    order: int
    woken: asyncio.Future[None] = field(compare=False)


def _wake(waiting: asyncio.Future[None]) -> None:
    """Resolve a future of any loop, from any thread."""
    loop = waiting.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_resolve, waiting)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _nanoseconds(time: float | datetime) -> int:
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return round(seconds * _NANO)
