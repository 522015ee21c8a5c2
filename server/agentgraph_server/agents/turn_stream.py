"""A turn as a stream of Server-Sent Events; the last event is always `done`."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias, TypedDict

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from agentgraph import AgentGraphError
from agentgraph.stream import ErrorEvent, Event
from agentgraph_server.disconnects import ServerStopping
from agentgraph_server.masking import public_event
from agentgraph_server.streams import SHUTDOWN_GRACE_S, STALLED_S, ShutdownSignal, frame

EndTurn: TypeAlias = Callable[[], Awaitable[None]]

_log = logging.getLogger("agentgraph_server")


class _Stamp(TypedDict):
    agent: str
    thread_id: str
    run_id: str
    sequence: int


class TurnStream(EventSourceResponse):
    """Streams a turn, which ends with the stream, for whatever reason.

    A client that disconnects cancels the stream, and with it the run. A client that stops reading
    blocks the run, and is disconnected after `STALLED_S`. `end` ends what is still under way.
    """

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        end: EndTurn,
        begin: Event,
        headers: Mapping[str, str],
    ) -> None:
        self._end = end
        shutdown = ShutdownSignal()
        super().__init__(
            _frames(events, end, shutdown, begin),
            headers=headers,
            send_timeout=STALLED_S,
            shutdown_event=shutdown,
            shutdown_grace_period=SHUTDOWN_GRACE_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()


async def _frames(
    events: AsyncGenerator[Event, None], end: EndTurn, shutdown: ShutdownSignal, last: Event
) -> AsyncIterator[bytes]:
    """Yield the frames of a turn: its events, an error if the server stops, then `done`."""
    async with aclosing(events):
        try:
            while (event := await shutdown.next_of(events)) is not None:
                last = public_event(event)
                yield frame(last.type, last.to_json(with_round=False))
        except AgentGraphError:
            pass  # the run has emitted it as an event
        except Exception:
            _log.exception("a turn on thread %r failed", last.thread_id)
    if shutdown.is_set():
        last = ErrorEvent(code=ServerStopping.code, message=str(ServerStopping()), **_after(last))
        yield frame(last.type, last.to_json())
    await end()  # before `done`, as a client may send the next prompt at once
    yield frame("done", Event(**_after(last)).to_json())


def _after(event: Event) -> _Stamp:
    """Return the stamp of the event after `event`."""
    return {
        "agent": event.agent,
        "thread_id": event.thread_id,
        "run_id": event.run_id,
        "sequence": event.sequence + 1,
    }
