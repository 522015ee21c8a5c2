"""What streams of Server-Sent Events have in common: frames, and an end when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

import anyio

T = TypeVar("T")

SHUTDOWN_GRACE_S = 5.0
"""How long a stream may take to end when the server stops."""
STALLED_S = 300.0
"""How long a client may read nothing before its run is cancelled."""


class ShutdownSignal(anyio.Event):
    """Set when the server stops; it cancels the wait for the next event, so that the stream ends.

    sse-starlette requires an `anyio.Event`, whose constructor returns another class.
    """

    def __new__(cls) -> ShutdownSignal:
        return object.__new__(cls)

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Task[object] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None:
            self._waiter.cancel()

    def is_set(self) -> bool:
        return self._is_set

    async def next_of(self, events: AsyncGenerator[T, None]) -> T | None:
        """Return the next event, None if there are no more or the server stops."""
        if self._is_set:
            return None
        self._waiter = task = asyncio.current_task()
        try:
            return await anext(events, None)
        except asyncio.CancelledError:
            if not self._is_set or task is None:
                raise
            task.uncancel()  # `set` has cancelled it; the task goes on and writes the end
            return None
        finally:
            self._waiter = None


def frame(name: str, data: bytes, id: str = "") -> bytes:
    """Return an event as it goes over the wire; `data` is JSON, which has no raw line breaks.

    What a client has read up to an event with an `id` it need not read again: with that id as
    `Last-Event-ID` a stream goes on after it.
    """
    head = f"event: {name}\r\nid: {id}" if id else f"event: {name}"
    return b"%b\r\ndata: %b\r\n\r\n" % (head.encode(), data)
