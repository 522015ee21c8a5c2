"""A run as a stream of events: in a task of its own, behind a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from langchain_core.messages import AIMessageChunk

from agentgraph.agents.call_model import AGENT_TAG
from agentgraph.agents.reply import Outcome, Reply
from agentgraph.errors import AgentGraphError
from agentgraph.running import Run
from agentgraph.stream import ErrorEvent, Event, FinalStateEvent, InterruptEvent, TokenEvent

__all__ = ["Put", "Teller", "closing_events", "follow"]

QUEUE_SIZE = 64

Put: TypeAlias = Callable[[Event], Awaitable[None]]


async def follow(produce: Callable[[Put], Awaitable[None]]) -> AsyncGenerator[Event, None]:
    """Yield what a run puts; closing this ends the run and waits until it has put things away."""
    queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_SIZE)

    async def run() -> None:
        try:
            await produce(queue.put)
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
    sequence: int = 0
    errors: set[str] = field(default_factory=set)

    async def tell(self, event: Event) -> None:
        """Put an event with its stamp."""
        self.sequence += 1
        if isinstance(event, ErrorEvent):
            self.errors.add(event.message)
        stamped = replace(
            event,
            agent=event.agent or self.agent,
            thread_id=self.run.thread_id,
            run_id=self.run.id,
            sequence=self.sequence,
        )
        await self.put(stamped)

    async def tell_failure(self, error: Exception) -> None:
        """Tell what ended the run, unless a node has told it."""
        event = _failure(error)
        if event.message not in self.errors:
            await self.tell(event)

    async def tell_parts(self, parts: AsyncIterator[Any]) -> Outcome:
        """Tell what LangGraph streams; return what it leaves behind."""
        values: Mapping[str, Any] = {}
        asked: dict[str, Any] = {}
        async for part in parts:
            if part["type"] == "values":
                if not part["ns"]:
                    values = part["data"]
                    # Told once each, and not again with the values that come after.
                    asked |= {interrupt.id: interrupt for interrupt in part.get("interrupts", ())}
                continue
            event = _event_of(part)
            if event is not None and self._is_ours(event):
                await self.tell(event)
        return Outcome(values, tuple(asked.values()))

    def _is_ours(self, event: Event) -> bool:
        # An agent that a tool runs for itself streams into the same place.
        return event.agent.partition("/")[0] in ("", self.agent)


def closing_events(reply: Reply) -> Iterator[Event]:
    """Yield what is told at the end of a run."""
    for question in reply.interrupts:
        yield InterruptEvent(
            agent=reply.agent,
            id=question.id,
            payload=question.payload,
            response_schema=question.response_schema,
        )
    yield FinalStateEvent(
        agent=reply.agent,
        text=reply.text,
        usage=reply.usage.to_dict(),
        close_reason=reply.close_reason,
    )


def _event_of(part: Mapping[str, Any]) -> Event | None:
    if part["type"] == "custom":
        return part["data"] if isinstance(part["data"], Event) else None
    chunk, metadata = part["data"]
    agent = metadata.get(AGENT_TAG)
    if agent is None or not isinstance(chunk, AIMessageChunk) or not chunk.text:
        return None
    return TokenEvent(agent=agent, text=str(chunk.text), message_id=chunk.id or "")


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
