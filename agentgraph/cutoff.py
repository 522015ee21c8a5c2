"""Calls that are cut off at their time limit, and left behind where they do not end then.

A coroutine may catch its cancellation and go on. The code that waits for it must not: it goes on at
the limit, and what the call does afterwards has no part in the run any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from agentgraph.clock import clock
from agentgraph.contexts import scope

T = TypeVar("T")

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
_left: set[asyncio.Future[Any]] = set()
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
            await clock().sleep(0)
            if task.done():
                break
    finally:
        call.is_over = True
        _left.add(task)
        task.add_done_callback(_forget)


def _forget(task: asyncio.Future[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not warn
