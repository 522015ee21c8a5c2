"""A session as a stream of Server-Sent Events: its envelopes, and what happens as it happens.

The `id` of each is its place in the session, the same on every connection and every server: of an
envelope its sequence, of a live event `<sequence>.<attempt>.<n>` (the sequence of the last envelope
before it, the attempt at the round, and its number since that envelope).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from pydantic_core import to_json
from sse_starlette import EventSourceResponse

from agentgraph import AgentGraphError
from agentgraph.sessions import Answer, Envelope
from agentgraph.stream import AnyEvent, ErrorEvent, Event, FinalStateEvent
from agentgraph_server.api.own_sessions import OwnSession
from agentgraph_server.disconnects import ServerStopping
from agentgraph_server.masking import public_event, public_fields
from agentgraph_server.streams import SHUTDOWN_GRACE_S, STALLED_S, ShutdownSignal, frame

_log = logging.getLogger("agentgraph_server")

CURSOR = r"^\d{1,15}(\.\d{1,9}\.\d{1,9})?$"
"""The pattern of a place in a session."""


class SessionEvents(EventSourceResponse):
    """Streams a session from a place on; with a `run_id`, up to the end of that run.

    A client that disconnects ends its stream, and no run. A stream that ends at the end of a run
    ends with `done`, after `message`, the answer; or after `error`, if the run has failed.
    """

    def __init__(
        self,
        own: OwnSession,
        cursor: str | None = None,
        *,
        run_id: str | None = None,
        is_live: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        shutdown = ShutdownSignal()
        if run_id is not None:
            frames = _frames_of_run(own, run_id, cursor, shutdown)
        elif is_live:
            frames = _frames(own.session.batches(cursor or 0, reader=own.reader), shutdown)
        else:
            frames = _frames_of_log(own, cursor or "0")
        super().__init__(
            frames,
            headers=headers,
            send_timeout=STALLED_S,
            shutdown_event=shutdown,
            shutdown_grace_period=SHUTDOWN_GRACE_S,
        )


async def _frames_of_log(own: OwnSession, cursor: str) -> AsyncIterator[bytes]:
    after = int(cursor.partition(".")[0])
    for envelope in await own.session.history(after, reader=own.reader):
        yield _frame_of(envelope)


async def _frames(
    batches: AsyncGenerator[Sequence[Envelope | AnyEvent], None], shutdown: ShutdownSignal
) -> AsyncIterator[bytes]:
    """Yield the frames of a session until its stream ends, or the server stops.

    What has happened at once is sent at once: a write to the socket costs more than an event.
    """
    last = ""
    async with aclosing(batches):
        while (items := await shutdown.next_of(batches)) is not None:
            last = items[-1].cursor
            yield b"".join(map(_frame_of, items))
    if shutdown.is_set():
        stopping = ErrorEvent(code=ServerStopping.code, message=str(ServerStopping()))
        yield frame("error", stopping.to_json(), last)  # where another server goes on


async def _frames_of_run(
    own: OwnSession, run_id: str, cursor: str | None, shutdown: ShutdownSignal
) -> AsyncIterator[bytes]:
    """Yield the frames of a run, from its own envelope or from a place on, then its end."""
    batches = own.session.run_batches(run_id, cursor, reader=own.reader)
    async for data in _frames(batches, shutdown):
        yield data
    if shutdown.is_set():
        return
    answer = asyncio.ensure_future(own.session.answer(run_id, reader=own.reader))
    try:
        await asyncio.wait({answer})
    finally:
        answer.cancel()
        await asyncio.wait({answer})
    for name, event in _end(answer, own, run_id):
        yield frame(name, event.to_json())


def _end(answer: asyncio.Task[Answer], own: OwnSession, run_id: str) -> list[tuple[str, Event]]:
    """Return the last events of the stream of a run, by their names."""
    done = ("done", Event(run_id=run_id, thread_id=own.session.id))
    if answer.cancelled():
        return []  # the server stops: the stream has said so
    error = answer.exception()
    if error is None:
        given = answer.result()
        final = FinalStateEvent(
            text=given.text,
            usage=given.usage.to_dict(),
            close_reason=given.close_reason,
            agent=given.agent or "",
            run_id=run_id,
            thread_id=own.session.id,
        )
        return [("message", final), done]
    if isinstance(error, AgentGraphError):
        failure = public_event(ErrorEvent.of(error))
    else:
        _log.error("run %s of session %s failed", run_id, own.session.id, exc_info=error)
        failure = ErrorEvent(code="error", message=f"the run failed: {type(error).__name__}")
    return [("error", failure), done]


def _frame_of(item: Envelope | AnyEvent) -> bytes:
    if isinstance(item, Envelope):
        return frame(item.event_type, to_json(public_fields(item)), item.cursor)
    return frame(item.type, public_event(item).to_json(), item.cursor)
