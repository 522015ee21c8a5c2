"""A session as a stream of Server-Sent Events: its envelopes, and what happens as it happens.

An envelope's `id` is its sequence. That of a live event is `<sequence>.<attempt>.<n>`: the sequence
of the last envelope before it, the attempt at the round, and its number since that envelope.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import NamedTuple

from pydantic_core import to_json
from sse_starlette import EventSourceResponse

from agentgraph import AgentGraphError
from agentgraph.sessions import Answer, Envelope
from agentgraph.stream import ErrorEvent, Event, FinalStateEvent
from agentgraph_server.api.own_sessions import OwnSession
from agentgraph_server.disconnects import ServerStopping
from agentgraph_server.masking import public_event, public_fields
from agentgraph_server.streams import SHUTDOWN_GRACE_S, STALLED_S, ShutdownSignal, frame

_log = logging.getLogger("agentgraph_server")


class Cursor(NamedTuple):
    """A place in the events of a session."""

    sequence: int = 0
    attempt: int = 0
    number: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self)) if self.number else str(self.sequence)


def cursor_of(text: str) -> Cursor:
    """Read the id of an event; what is none is the beginning."""
    parts = text.split(".")
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return Cursor()
    return Cursor(*(min(int(part), 2**62) for part in parts))


class SessionEvents(EventSourceResponse):
    """Streams a session from a place on; with a `run_id`, up to the end of that run.

    A client that disconnects ends its stream, and no run. A stream that ends at the end of a run
    ends with `done`, after `message`, the answer; or after `error`, if the run has failed.
    """

    def __init__(
        self,
        own: OwnSession,
        cursor: Cursor | None = None,
        *,
        run_id: str | None = None,
        is_live: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        shutdown = ShutdownSignal()
        if run_id is not None:
            frames = _frames_of_run(own, run_id, cursor, shutdown)
        elif is_live:
            frames = _frames(own, cursor or Cursor(), shutdown)
        else:
            frames = _frames_of_log(own, cursor or Cursor())
        super().__init__(
            frames,
            headers=headers,
            send_timeout=STALLED_S,
            shutdown_event=shutdown,
            shutdown_grace_period=SHUTDOWN_GRACE_S,
        )


async def _frames_of_log(own: OwnSession, cursor: Cursor) -> AsyncIterator[bytes]:
    for envelope in await own.session.history(cursor.sequence, reader=own.reader):
        yield _frame_of_envelope(envelope)


async def _frames(
    own: OwnSession, cursor: Cursor, shutdown: ShutdownSignal
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a session until it ends, or the server stops."""
    stamp = Cursor(cursor.sequence)
    async with aclosing(own.session.stream(cursor.sequence, reader=own.reader)) as items:
        while (item := await shutdown.next_of(items)) is not None:
            if isinstance(item, Envelope):
                stamp = Cursor(item.sequence)
                yield _frame_of_envelope(item)
            else:
                stamp = Cursor(stamp.sequence, item.attempt, stamp.number + 1)
                yield frame(item.type, public_event(item).to_json(), str(stamp))
    if shutdown.is_set():
        stopping = ErrorEvent(code=ServerStopping.code, message=str(ServerStopping()))
        yield frame("error", stopping.to_json(), str(stamp))  # where another server goes on


async def _frames_of_run(
    own: OwnSession, run_id: str, cursor: Cursor | None, shutdown: ShutdownSignal
) -> AsyncIterator[bytes]:
    """Yield the frames of a run, from its own envelope or from a place on, then its end."""
    if cursor is None:
        envelope = await own.session.envelope(run_id, reader=own.reader)
        cursor = Cursor(envelope.sequence - 1)
    answer = asyncio.ensure_future(own.session.answer(run_id, reader=own.reader))
    async with aclosing(_frames(own, cursor, shutdown)) as frames:
        pending = asyncio.ensure_future(anext(frames, None))
        try:
            while True:
                await asyncio.wait({answer, pending}, return_when=asyncio.FIRST_COMPLETED)
                if answer.done() and not pending.done():
                    break
                data = pending.result()
                if data is None:
                    break
                yield data
                pending = asyncio.ensure_future(anext(frames, None))
        finally:
            pending.cancel()
            await asyncio.wait({pending})
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


def _frame_of_envelope(envelope: Envelope) -> bytes:
    return frame(envelope.event_type, to_json(public_fields(envelope)), str(envelope.sequence))
