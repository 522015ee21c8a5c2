"""`scope` sets a context variable for a block; `run_sync` runs a coroutine from sync code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextvars import Context, ContextVar, Token, copy_context
from functools import lru_cache
from typing import Generic, TypeVar

from agentgraph.errors import AgentGraphError

T = TypeVar("T")

_LOOP_THREAD = "agentgraph-sync"


class scope(Generic[T]):
    """Give a context variable another value inside of a `with` block.

    It is a class and no generator because each call of a run enters several of them.
    """

    __slots__ = ("_token", "_value", "_variable")

    _token: Token[T]

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *error: object) -> None:
        self._variable.reset(self._token)


def run_sync(work: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end from synchronous code, also where a loop is already running.

    All calls share one loop in a thread of its own: savers and pools bind to their loop, so a loop
    per call would cost a connection per call. Raises `AgentGraphError` if called on that loop,
    which would wait for itself.
    """
    loop = _background_loop()
    if threading.current_thread().name == _LOOP_THREAD:
        work.close()
        raise AgentGraphError("a synchronous call inside an asynchronous run: await the async one")
    future = asyncio.run_coroutine_threadsafe(_in_context(work, copy_context()), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # Ctrl-C must end the run, not only this wait
        raise


async def _in_context(work: Coroutine[object, object, T], context: Context) -> T:
    return await asyncio.get_running_loop().create_task(work, context=context)


@lru_cache(maxsize=1)
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=_LOOP_THREAD, daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_background_loop.cache_clear)  # a fork inherits no thread
