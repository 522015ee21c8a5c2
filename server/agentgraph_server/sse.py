"""A turn as a stream of Server-Sent Events; the last event is always `done`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TypedDict

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from agentgraph import AgentGraphError
from agentgraph.stream import ErrorEvent, Event
from agentgraph_server.catalogue import ThreadLock
from agentgraph_server.disconnects import ServerStopping

_log = logging.getLogger("agentgraph_server")

SHUTDOWN_GRACE_S = 5.0
"""How long a stream may take to end when the server stops."""
STALLED_S = 300.0
"""How long a client may read nothing before its run is cancelled."""


class _Stamp(TypedDict):
    agent: str
    thread_id: str
    run_id: str
    sequence: int


class TurnStream(EventSourceResponse):
    """Streams a turn; the thread stays locked until the stream ends, for whatever reason.

    A client that disconnects cancels the stream, and with it the run. A client that stops reading
    blocks the run, and is disconnected after `STALLED_S`.
    """

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        lock: ThreadLock,
        begin: Event,
        headers: Mapping[str, str],
    ) -> None:
        self._lock = lock
        shutdown = ShutdownSignal()
        super().__init__(
            _frames(events, lock, shutdown, begin),
            headers=headers,
            send_timeout=STALLED_S,
            shutdown_event=shutdown,
            shutdown_grace_period=SHUTDOWN_GRACE_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lock.release()


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

    async def next_of(self, events: AsyncGenerator[Event, None]) -> Event | None:
        """Return the next event, None if the run has ended or the server stops."""
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


async def _frames(
    events: AsyncGenerator[Event, None], lock: ThreadLock, shutdown: ShutdownSignal, last: Event
) -> AsyncIterator[bytes]:
    """Yield the frames of a turn: its events, an error if the server stops, then `done`."""
    async with aclosing(events):
        try:
            while (event := await shutdown.next_of(events)) is not None:
                last = _public(event)
                yield _frame(last.type, last)
        except AgentGraphError:
            pass  # the run has emitted it as an event
        except Exception:
            _log.exception("a turn on thread %r failed", last.thread_id)
    if shutdown.is_set():
        last = ErrorEvent(code=ServerStopping.code, message=str(ServerStopping()), **_after(last))
        yield _frame(last.type, last)
    await lock.release()  # before `done`, as a client may send the next prompt at once
    yield _frame("done", Event(**_after(last)))


def _public(event: Event) -> Event:
    """Return an event without a provider's words about its error: those are for the operator."""
    if isinstance(event, ErrorEvent) and event.public:
        return replace(event, message=event.public)
    return event


def _after(event: Event) -> _Stamp:
    """Return the stamp of the event after `event`."""
    return {
        "agent": event.agent,
        "thread_id": event.thread_id,
        "run_id": event.run_id,
        "sequence": event.sequence + 1,
    }


def _frame(name: str, event: Event) -> bytes:
    # JSON has no raw line breaks, so one `data:` line is enough.
    return b"event: %b\r\ndata: %b\r\n\r\n" % (name.encode(), event.to_json())
