"""A turn as Server-Sent Events, each as it happens; whatever ends it, the reader is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TypedDict

import anyio
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from agentgraph import AgentGraphError
from agentgraph.stream import ErrorEvent, Event
from agentgraph_server.catalogue import Hold
from agentgraph_server.gone import ServerEnding

__all__ = ["TurnStream"]

_log = logging.getLogger("agentgraph_server")

FAREWELL_S = 5.0
STALLED_S = 300.0


class _Place(TypedDict):
    agent: str
    thread_id: str
    run_id: str
    sequence: int


class TurnStream(EventSourceResponse):
    """Stream a turn; its thread is held until the stream ends, however it ends."""

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        hold: Hold,
        begin: Event,
        headers: Mapping[str, str],
    ) -> None:
        self._hold = hold
        farewell = Farewell()
        super().__init__(
            _told(events, hold, farewell, begin),
            headers=headers,
            send_timeout=STALLED_S,
            shutdown_event=farewell,
            shutdown_grace_period=FAREWELL_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._hold.release()


class Farewell(anyio.Event):
    """The end of the server: it interrupts the wait for the next event, so that it can be told."""

    def __new__(cls) -> Farewell:
        return object.__new__(cls)

    def __init__(self) -> None:
        self._said = False
        self._waiting: asyncio.Task[object] | None = None

    def set(self) -> None:
        self._said = True
        if self._waiting is not None:
            self._waiting.cancel()

    def is_set(self) -> bool:
        return self._said

    async def next_of(self, events: AsyncGenerator[Event, None]) -> Event | None:
        """Return the next event, None at the end of the run or of the server."""
        if self._said:
            return None
        self._waiting = task = asyncio.current_task()
        try:
            return await anext(events, None)
        except asyncio.CancelledError:
            if not self._said or task is None:
                raise
            task.uncancel()
            return None
        finally:
            self._waiting = None


async def _told(
    events: AsyncGenerator[Event, None], hold: Hold, farewell: Farewell, last: Event
) -> AsyncIterator[bytes]:
    async with aclosing(events):
        try:
            while (event := await farewell.next_of(events)) is not None:
                last = event
                yield _frame(event.type, event)
        except AgentGraphError:
            pass  # told as an event
        except Exception:
            _log.exception("a turn on thread %r failed", last.thread_id)
    if farewell.is_set():
        last = ErrorEvent(code=ServerEnding.code, message=str(ServerEnding()), **_after(last))
        yield _frame(last.type, last)
    await hold.release()  # now: whoever reads `done` may go on at once
    yield _frame("done", Event(**_after(last)))


def _after(event: Event) -> _Place:
    return {
        "agent": event.agent,
        "thread_id": event.thread_id,
        "run_id": event.run_id,
        "sequence": event.sequence + 1,
    }


def _frame(name: str, event: Event) -> bytes:
    # JSON has no raw line breaks, so one `data:` line is enough.
    return b"event: %b\r\ndata: %b\r\n\r\n" % (name.encode(), event.to_json())
