"""Event loops in threads of their own, lent to synchronous calls and used again afterwards.

A loop serves one call at a time: an asynchronous tool that blocks its loop, for instance with a
call of `invoke`, then holds up no run but its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from typing import TypeAlias
from weakref import WeakSet

BackgroundLoop: TypeAlias = asyncio.AbstractEventLoop

_MOST_IDLE = 16
_MOST_THREADS = 1_000_000
_LOOP_THREAD = "agentgraph-sync"


class Threads(ThreadPoolExecutor):
    """As many threads as there are blocking functions at a time; idle threads are used again."""

    def __init__(self) -> None:
        super().__init__(_MOST_THREADS, "agentgraph-blocking")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: an event loop that closes would end the threads of all others."""


class LoopPool:
    """The loops that run in the background; the one used last is lent first.

    So a program that makes one call after the other has one loop, to which connections can bind.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[BackgroundLoop] = []
        self._all: WeakSet[BackgroundLoop] = WeakSet()

    def take(self) -> BackgroundLoop:
        """Return an idle loop, or a new one."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        loop = _new_loop()
        self._all.add(loop)
        return loop

    @cached_property
    def of_stores(self) -> BackgroundLoop:
        """The loop of all connections to stores: no tool runs there that could block it."""
        return _new_loop()

    def __contains__(self, loop: BackgroundLoop) -> bool:
        """Tell whether a loop is one of those that are lent."""
        return loop in self._all

    def give_back(self, loop: BackgroundLoop) -> None:
        """Take a loop back; it ends if there are enough idle ones. Call it on the loop."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE or asyncio.all_tasks(loop):
                self._idle.append(loop)
                return
        loop.stop()


@lru_cache(maxsize=1)
def threads() -> Threads:
    """Return the threads for blocking functions."""
    return Threads()


@lru_cache(maxsize=1)
def loops() -> LoopPool:
    """Return the loops of this process."""
    return LoopPool()


@contextmanager
def background_loop() -> Iterator[BackgroundLoop]:
    """Lend a loop for several calls of `run_sync` that belong together."""
    loop = loops().take()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loops().give_back, loop)


def _new_loop() -> BackgroundLoop:
    start: Future[BackgroundLoop] = Future()
    threading.Thread(target=_serve, args=(start,), name=_LOOP_THREAD, daemon=True).start()
    return start.result()


def _serve(start: Future[BackgroundLoop]) -> None:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(threads())
    asyncio.set_event_loop(loop)
    loop.call_soon(start.set_result, loop)
    is_stopped = False
    while not is_stopped:
        # A task that raises KeyboardInterrupt or SystemExit ends the loop's method, but not the
        # loop: its other tasks go on.
        with suppress(BaseException):
            loop.run_forever()
            is_stopped = True
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.cache_clear)  # a fork inherits no thread
    os.register_at_fork(after_in_child=loops.cache_clear)
