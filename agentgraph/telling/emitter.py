"""Emit the events of a run, and read them as a stream.

The run is a task of its own behind a bounded queue, and the emitter of an event waits for room in
the queue. LangGraph's own stream is unbounded: if its reader stopped, the run would go on, and
memory would grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
)
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar, cast

from agentgraph.errors import AgentGraphError
from agentgraph.running import Run, current_delegation, waiting_for_reader
from agentgraph.stream import (
    AIMessageEvent,
    AnyEvent,
    ErrorEvent,
    Event,
    StageEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from agentgraph.timeouts import is_left_behind

T = TypeVar("T")

QUEUE_SIZE = 64

PutEvent: TypeAlias = Callable[[AnyEvent], Awaitable[None]]
Position: TypeAlias = tuple[str, int, int]
"""The position in a session: the speaker, the round, and the attempt at it."""


class EventBuffer:
    """A bounded buffer of events between a run and its reader: who puts one waits for room."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[AnyEvent | None] = asyncio.Queue(QUEUE_SIZE)
        self._is_closed = False

    async def put(self, event: AnyEvent) -> None:
        """Put an event, as soon as there is room; drop it if nobody reads any more."""
        if self._is_closed:
            return
        if not self._queue.full():
            self._queue.put_nowait(event)
            return
        with waiting_for_reader():  # no limit of the run counts the reader's time
            await self._queue.put(event)

    async def end(self) -> None:
        """Put the end of the events."""
        await self._queue.put(None)

    async def get(self) -> AnyEvent | None:
        """Wait for the next event, and return it; None is their end."""
        return await self._queue.get()

    def close(self) -> None:
        """Let nobody wait for room any more, as nobody reads."""
        self._is_closed = True
        while not self._queue.empty():
            self._queue.get_nowait()


async def event_stream(
    produce: Callable[[PutEvent], Awaitable[None]],
) -> AsyncGenerator[AnyEvent, None]:
    """Yield the events that a run puts; raise the error that ends it.

    Closing the stream cancels the run and waits until it has cleaned up.
    """
    buffer = EventBuffer()

    async def run() -> None:
        try:
            await produce(buffer.put)
        finally:
            if not task.cancelling():
                await buffer.end()

    task = asyncio.ensure_future(run())
    try:
        while (event := await buffer.get()) is not None:
            yield event
        await task
    finally:
        await _end(task)


@dataclass(slots=True)
class EventEmitter:
    """Emits a run's events in order, each stamped with its run, its position and its sequence."""

    run: Run
    agent: str
    put_event: PutEvent
    position: Callable[[], Position] = lambda: ("", 0, 0)
    sequence: int = 0
    error_messages: set[str] = field(default_factory=set)
    emitted_keys: set[tuple[Position, str, str]] = field(default_factory=set)
    """The texts, calls and answers that were emitted, as an outer graph may emit them again.

    Only those of one turn: in the next turn a provider may give the same id to another call.
    """
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def emit(self, event: Event) -> None:
        """Stamp an event and put it on the queue, in order, as soon as there is room."""
        if is_left_behind():
            return
        if isinstance(event, ErrorEvent):
            self.error_messages.add(event.message)
        position = self.position()
        await self._acquire_order()
        try:
            await self._put_next(event, position)
        finally:
            self._order.release()

    async def emit_failure(self, error: Exception) -> None:
        """Emit the error that ended the run, unless a node has emitted it."""
        event = _failure(error)
        if event.message not in self.error_messages:
            await self.emit(event)

    async def _acquire_order(self) -> None:
        """Acquire the lock that keeps the order; waiting for it is the reader's time too."""
        if not self._order.locked():
            await self._order.acquire()
            return
        with waiting_for_reader():  # the owner of the lock waits for the reader
            await self._order.acquire()

    async def _put_next(self, event: Event, position: Position) -> None:
        """Put an event, unless it was emitted in this turn already."""
        _, round, attempt = position
        event_key = _key(event)
        key = None if event_key is None else (position, *event_key)
        if key in self.emitted_keys:
            return
        stamped_event = replace(
            event,
            round=round,
            # That of a stage is the flow's own, and not the session's.
            attempt=event.attempt if isinstance(event, StageEvent) else attempt,
            agent=event.agent or self.agent,
            thread_id=self.run.thread_id,
            run_id=self.run.id,
            sequence=self.sequence + 1,
        )
        # Users' own classes are beside the union: a union cannot have members that are unknown.
        await self.put_event(cast(AnyEvent, stamped_event))
        if isinstance(event, TokenEvent):
            visit = stamped_event.agent, current_delegation()
            self.run.token_counts[visit] = self.run.token_counts.get(visit, 0) + 1
        # Only now: an event that is cancelled while it waits for room must not leave a gap.
        self.sequence += 1
        if key is not None:
            self.emitted_keys.add(key)


def _key(event: Event) -> tuple[str, str] | None:
    """Return the type and id by which an event is emitted once in a turn, None for all others."""
    match event:
        case AIMessageEvent(message_id=str(message_id)):
            return (event.type, message_id) if message_id else None
        case ToolUsageEvent(call_id=call_id) | ToolResponseEvent(call_id=call_id):
            return (event.type, call_id) if call_id else None
        case _:
            return None


def _failure(error: Exception) -> ErrorEvent:
    """Return the event of an error that ended a run."""
    if isinstance(error, AgentGraphError):
        return ErrorEvent.of(error)
    # Without the error's text, which may contain secrets.
    return ErrorEvent(code="error", message=f"the run failed: {type(error).__name__}")


async def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task if it runs, and wait until it has cleaned up."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not warn
