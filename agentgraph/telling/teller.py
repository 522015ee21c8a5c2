"""A run as a stream of events: in a task of its own, behind a bounded queue.

Whoever tells an event waits for room in the queue. LangGraph's own stream is unbounded: behind it a
reader who stops reading would not hold the run back, and its memory would grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
)
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from agentgraph.errors import AgentGraphError
from agentgraph.running import Run, current_delegation, waiting_for_reader
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    Event,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

T = TypeVar("T")

QUEUE_SIZE = 64

Put: TypeAlias = Callable[[Event], Awaitable[None]]
Place: TypeAlias = tuple[str, int, int]


async def follow(produce: Callable[[Put], Awaitable[None]]) -> AsyncGenerator[Event, None]:
    """Yield what a run puts; closing this ends the run and waits until it has put things away."""
    queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_SIZE)

    async def put(event: Event) -> None:
        if not queue.full():
            queue.put_nowait(event)
            return
        with waiting_for_reader():
            await queue.put(event)

    async def run() -> None:
        try:
            await produce(put)
        finally:
            if not task.cancelling():
                await queue.put(None)

    task = asyncio.ensure_future(run())
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        await _end(task)


@dataclass(slots=True)
class Teller:
    """Tell a run's events, each stamped with its place in it."""

    run: Run
    agent: str
    put: Put
    place: Callable[[], Place] = lambda: ("", 0, 0)
    """In whose turn, which round and which attempt at it of a session, an event happens."""
    sequence: int = 0
    errors: set[str] = field(default_factory=set)
    told: set[tuple[Place, str, str]] = field(default_factory=set)
    """The texts, calls and answers that were told: a graph around ours tells its own again.

    Only within a turn: in the next one a provider may give the same id to another call.
    """
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def tell(self, event: Event) -> None:
        """Put an event with its stamp, in the order of those who wait to do so."""
        if isinstance(event, ErrorEvent):
            self.errors.add(event.message)
        place = self.place()
        await self._come_first()
        try:
            await self._tell_next(event, place)
        finally:
            self._order.release()

    async def _come_first(self) -> None:
        if not self._order.locked():
            await self._order.acquire()
            return
        with waiting_for_reader():  # as whoever is before us is
            await self._order.acquire()

    async def _tell_next(self, event: Event, place: Place) -> None:
        _, round, attempt = place
        known_by = _key(event)
        key = None if known_by is None else (place, *known_by)
        if key in self.told:
            return
        stamped = replace(
            event,
            round=round,
            attempt=attempt,
            agent=event.agent or self.agent,
            thread_id=self.run.thread_id,
            run_id=self.run.id,
            sequence=self.sequence + 1,
        )
        await self.put(stamped)
        if isinstance(event, TokenEvent):
            visit = stamped.agent, current_delegation()
            self.run.token_counts[visit] = self.run.token_counts.get(visit, 0) + 1
        self.sequence += 1  # only now: who waits for room may be cancelled, and leave a gap
        if key is not None:
            self.told.add(key)

    async def tell_failure(self, error: Exception) -> None:
        """Tell what ended the run, unless a node has told it."""
        event = _failure(error)
        if event.message not in self.errors:
            await self.tell(event)


def _key(event: Event) -> tuple[str, str] | None:
    """Return what an event is told by once in a turn, None where it may come again."""
    match event:
        case AIMessageEvent(message_id=str(found)):
            return (event.type, found) if found else None
        case ToolUsageEvent(call_id=found) | ToolResponseEvent(call_id=found):
            return (event.type, found) if found else None
        case _:
            return None


def _failure(error: Exception) -> ErrorEvent:
    if isinstance(error, AgentGraphError):
        return ErrorEvent(code=error.code, message=str(error))
    # Not its text: whoever listens may be a stranger, and that could hold anything.
    return ErrorEvent(code="error", message=f"the run failed: {type(error).__name__}")


async def _end(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # seen, so that asyncio does not complain
