"""`FakeClock`: time for tests, which stands still until it is advanced."""

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

        with FakeClock().installed() as clock:
            task = asyncio.create_task(agent.ainvoke("hello"))
            await clock.asleep()  # until it waits for a retry
            clock.advance(60)
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
        """Set the wall clock, back or forth, without an effect on sleepers."""
        self._offset = _nanoseconds(instant) - self._monotonic

    def advance(self, seconds: float) -> None:
        """Move time on, and wake all sleepers that are due, in the order of their times."""
        if seconds < 0:
            raise ValueError("Time cannot be advanced backwards: see `set_wall`.")
        with self._lock:
            # Before any sleeper wakes: in another thread's loop a sleeper runs at once, and may
            # read the time.
            self._monotonic += _nanoseconds(seconds)
            for heap in (self._timers, self._sleepers):
                while heap and heap[0].due <= self._monotonic:
                    _wake(heapq.heappop(heap).future)

    @property
    def sleepers(self) -> int:
        """Return how many tasks are asleep."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been advanced so far."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            due = self._monotonic + _nanoseconds(seconds)
            sleeper = _Sleeper(due, next(self._order), future)
            if due <= self._monotonic:
                _wake(future)
            else:
                heapq.heappush(self._sleepers, sleeper)
                self._wake_watchers()
        try:
            await future
        finally:
            self._forget(sleeper)

    @contextmanager
    def timeout(self, seconds: float | None) -> Iterator[None]:
        """Raise `TimeoutError` in a block when the clock is advanced so far; not a sleeper."""
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
        """Wait until at least `count` tasks are asleep: then it is time to advance."""
        with self._lock:
            if len(self._sleepers) >= count:
                return
            is_reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((count, is_reached))
        await is_reached

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Put this clock in force for a block and all that it starts."""
        with use_clock(self):
            yield self

    def _start_timer(self, duration: int, future: asyncio.Future[None]) -> _Sleeper:
        """Start a timer that resolves a future after `duration` nanoseconds."""
        with self._lock:
            timer = _Sleeper(self._monotonic + duration, next(self._order), future)
            if duration <= 0:
                _wake(future)
            else:
                heapq.heappush(self._timers, timer)
            return timer

    def _stop_timer(self, timer: _Sleeper) -> int:
        """Stop a timer, and return the nanoseconds that were left of it."""
        with self._lock:
            if timer in self._timers:
                self._timers.remove(timer)
                heapq.heapify(self._timers)
            return timer.due - self._monotonic

    def _wake_watchers(self) -> None:
        """Wake the callers of `asleep` whose count is reached; the caller has the lock."""
        asleep = len(self._sleepers)
        for minimum, is_reached in self._watchers:
            if minimum <= asleep:
                _wake(is_reached)
        self._watchers = [watcher for watcher in self._watchers if watcher[0] > asleep]

    def _forget(self, sleeper: _Sleeper) -> None:
        """Remove a sleeper that was cancelled."""
        with self._lock:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)


class _Timer:
    """Expires a `TimeLimit` when the fake clock is advanced; pauses nest."""

    def __init__(self, clock: FakeClock, limit: TimeLimit, duration: int) -> None:
        self._clock = clock
        self._limit = limit
        self._remaining_ns: int | None = duration
        """None when the timer has expired or ended."""
        self._pauses = 0
        self._sleeper: _Sleeper | None = None
        self._start()

    def pause(self) -> None:
        """Stop the time; `paused_limits` calls it."""
        self._pauses += 1
        if self._sleeper is not None:
            self._remaining_ns = self._clock._stop_timer(self._sleeper)
            self._sleeper = None

    def resume(self) -> None:
        """Let the time run on once all pauses are over."""
        self._pauses -= 1
        if self._pauses == 0 and self._sleeper is None:
            self._start()

    def end(self) -> None:
        self.pause()
        self._remaining_ns = None

    def _start(self) -> None:
        if self._remaining_ns is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(self._expire)
        self._sleeper = self._clock._start_timer(self._remaining_ns, future)

    def _expire(self, future: asyncio.Future[None]) -> None:
        """Expire the limit."""
        # The callback comes a loop cycle late: the block may have ended or paused meanwhile.
        if self._sleeper is not None and self._sleeper.future is future:
            self._sleeper = self._remaining_ns = None
            self._limit.expire()


@dataclass(order=True, frozen=True, slots=True)
class _Sleeper:
    """When a future is due; of two equal times, the one made first comes first."""

    due: int
    order: int
    future: asyncio.Future[None] = field(compare=False)


def _wake(future: asyncio.Future[None]) -> None:
    """Resolve a future of any loop, from any thread."""
    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nanoseconds(time: float | datetime) -> int:
    seconds = time.timestamp() if isinstance(time, datetime) else time
    return round(seconds * _NANO)
