"""A turn: an input of a session that lives with its connection, and ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Any, Protocol

from starlette.requests import Request

from agentgraph import AgentGraphError
from agentgraph.clock import new_id
from agentgraph.errors import ModelError, RoutingError, SessionError
from agentgraph.sessions import Answer as SessionAnswer
from agentgraph.sessions import Receipt
from agentgraph.sessions.hub.questions import OpenQuestion
from agentgraph.sessions.hub.run import RunFailure
from agentgraph.stream import AnyEvent, ErrorEvent, Event, FinalStateEvent, InterruptEvent
from agentgraph.telling import EventBuffer
from agentgraph_server.agents.earlier_threads import EarlierTurn, ThreadBusy
from agentgraph_server.agents.schemas import Answer
from agentgraph_server.agents.threads import Thread
from agentgraph_server.api.own_sessions import OwnSession
from agentgraph_server.api.run_slots import RunSlot, run_slot

_PATIENCE_S = 1.0
"""How long a run that is cancelled may wait for its reader while it cleans up, and be counted."""


class Turn(Protocol):
    """A turn that is under way; it must be ended by `end`."""

    name: str
    """The name of its agent."""
    thread_id: str

    async def answer(self) -> Answer:
        """Wait for the answer; raise the error of a turn that has failed."""
        ...

    def events(self) -> AsyncGenerator[Event, None]:
        """Yield all that happens, then questions and answer; raise the error after its event."""
        ...

    async def end(self) -> None:
        """Cancel what is still under way; what it did is kept."""
        ...


async def begin_turn(thread: Thread, prompt: str, request: Request, *, streams: bool) -> Turn:
    """Begin the answer to a prompt; `ThreadBusy` if a turn is under way on the thread.

    Raises `LimitReached` before anything is stored, if the principal may begin no run now.
    """
    with run_slot(request) as slot:
        own, earlier = await thread.opened()
        turn = SessionTurn(thread, own, slot)
        await turn.begin(own.session.begin(own.sender, prompt, earlier=earlier), streams=streams)
        return turn


async def resume_turn(
    thread: Thread, decisions: Mapping[str, Any], request: Request, *, streams: bool
) -> Turn:
    """Go on with decisions on open questions; `RoutingError` if one is on none.

    Whoever streams is told of that error as an event. Raises `LimitReached` as `begin_turn` does.
    """
    own = await thread.session()
    earlier = await thread.earlier(own)
    if earlier is not None:
        with run_slot(request) as slot:
            return EarlierTurn(earlier, thread.id, decisions, slot)
    try:
        if own is None:
            raise _not_awaited(thread.id, decisions, ())
        if await thread.is_busy(own):
            raise ThreadBusy.on(thread.id)
        with run_slot(request) as slot:
            turn = SessionTurn(thread, own, slot)
            try:
                await turn.begin(own.session.begin_decided(own.sender, decisions), streams=streams)
            except SessionError as error:
                if error.code != "unknown_interrupt":
                    raise
                questions = await own.session.questions(reader=own.reader)
                raise _not_awaited(thread.id, decisions, [q.id for q in questions]) from None
    except RoutingError as error:
        if streams:
            return FailedTurn(thread, error)
        raise
    return turn


class FailedTurn:
    """A turn that could not begin."""

    def __init__(self, thread: Thread, error: AgentGraphError) -> None:
        self.name, self.thread_id = thread.team.name, thread.id
        self._error = error

    async def answer(self) -> Answer:
        """Raise why it could not."""
        raise self._error

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield why it could not, and raise it."""
        yield _Stamp(self.thread_id).on(ErrorEvent.of(self._error, self.name))
        raise self._error

    async def end(self) -> None:
        """Do nothing."""


class SessionTurn:
    """A turn of a session, in the hub of this server."""

    def __init__(self, thread: Thread, own: OwnSession, slot: RunSlot) -> None:
        self.name, self.thread_id = thread.team.name, thread.id
        self._hub, self._session, self._reader = thread.hub, own.session, own.reader
        self._turns, self._slot = thread.turns, slot
        self._run_id = ""
        self._is_over = False
        self._ending: asyncio.Task[None] | None = None
        self._readers = ExitStack()
        self._buffer: EventBuffer | None = None

    async def begin(self, begin: Coroutine[Any, Any, Receipt], *, streams: bool) -> None:
        """Begin the turn; with `streams` its run waits for the reader of the events."""
        if streams:
            all_events = self._hub.live.all_events(self._session.key)
            self._buffer = self._readers.enter_context(all_events)
        self._turns.add(self)  # a server that stops ends it
        beginning = asyncio.ensure_future(begin)
        try:
            # Shielded: a client that leaves now leaves a turn that may have begun.
            self._run_id = (await asyncio.shield(beginning)).id
            self._slot.run = self._session, self._run_id
        except asyncio.CancelledError:
            await asyncio.wait({beginning})
            await self.end()
            raise
        except BaseException as error:
            self._is_over = True
            await self.end()
            if isinstance(error, SessionError) and error.code == "busy":
                raise ThreadBusy.on(self.thread_id) from None
            raise

    async def answer(self) -> Answer:
        """Wait for the answer; raise the error of a turn that has failed."""
        answer, questions = await self._settle()
        return Answer.of_session(answer, questions, self.name, self.thread_id)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield all that happens, then questions and answer; raise the error after its event."""
        assert self._buffer is not None  # the turn was begun for a reader
        settle_task = asyncio.ensure_future(self._settle())
        stamp, errors = _Stamp(self.thread_id), set[str]()
        try:
            async with aclosing(_until_done(self._buffer, settle_task)) as events:
                async for event in events:
                    if isinstance(event, ErrorEvent):
                        errors |= {event.message, event.public}
                    yield stamp.on(event)
            try:
                answer, questions = settle_task.result()
            except AgentGraphError as error:
                if str(error) not in errors:
                    yield stamp.on(ErrorEvent.of(error, self.name))
                raise
            for last_event in _closing_events(answer, questions, self.name):
                yield stamp.on(last_event)
        finally:
            settle_task.cancel()
            await asyncio.wait({settle_task})

    async def end(self) -> None:
        """End the turn; what is under way is cancelled, and what it did is kept."""
        if not self._is_over:
            self._is_over = True
            # In the hub: whoever ends the turn may be cancelled meanwhile.
            self._ending = self._hub.spawn(self._cancel())
        if self._ending is not None:
            await asyncio.shield(self._ending)
        if self._slot.end_of_run is not None:  # the client may begin the next one at once
            await asyncio.wait({self._slot.end_of_run}, timeout=_PATIENCE_S)
        self._readers.close()
        self._turns.discard(self)

    async def _cancel(self) -> None:
        cancel_task = asyncio.ensure_future(self._session.cancel("the client left"))
        # The run waits for its reader until it is cancelled: let go before, it would go on.
        await asyncio.wait({cancel_task}, timeout=_PATIENCE_S)
        self._readers.close()
        await cancel_task

    async def _settle(self) -> tuple[SessionAnswer, Sequence[OpenQuestion]]:
        """Wait until the session has settled; return the answer, and what is asked."""
        session, run_id, reader = self._session, self._run_id, self._reader
        try:
            answer = await session.answer(run_id, reader=reader)
        except AgentGraphError as error:
            run = await session.run(run_id, reader=reader)
            self._is_over = run.has_ended
            raise error if run.error is None else _error_of(run.error) from None
        self._is_over = True
        return answer, await session.questions(reader=reader)


class _Stamp:
    """Stamps events as those of one run on a thread, in their order."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._run_id = ""
        self._sequence = 0

    def on(self, event: Event) -> Event:
        """Return an event with thread, run and sequence; mostly it has them already."""
        self._sequence += 1
        self._run_id = self._run_id or event.run_id or new_id()
        place = (event.thread_id, event.run_id, event.sequence)
        if place == (self._thread_id, self._run_id, self._sequence):
            return event
        return replace(
            event, thread_id=self._thread_id, run_id=self._run_id, sequence=self._sequence
        )


async def _until_done(
    buffer: EventBuffer, work: asyncio.Future[Any]
) -> AsyncGenerator[AnyEvent, None]:
    """Yield events until some work is done and nothing is left in the buffer."""

    async def end() -> None:
        await asyncio.wait({work})
        await buffer.end()

    ending = asyncio.ensure_future(end())
    try:
        while (event := await buffer.get()) is not None:
            yield event
    finally:
        ending.cancel()
        await asyncio.wait({ending})


def _not_awaited(
    thread_id: str, decisions: Mapping[str, Any], open_ids: Sequence[str]
) -> RoutingError:
    """Return the error for decisions of which one is on no question."""
    names = ", ".join(sorted(decisions.keys() - open_ids))
    awaited = ", ".join(sorted(open_ids)) or "nothing; go on with a message"
    return RoutingError(
        f"thread {thread_id!r} does not wait for {names}: it waits for {awaited}",
        code="unknown_interrupt",
    )


def _closing_events(
    answer: SessionAnswer, questions: Sequence[OpenQuestion], name: str
) -> list[Event]:
    agent = answer.agent or name
    events: list[Event] = [
        InterruptEvent(
            agent=question.speaker,
            id=question.id,
            payload=question.payload,
            response_schema=question.response_schema,
        )
        for question in questions
    ]
    final = FinalStateEvent(
        agent=agent,
        text="" if questions else answer.text,
        usage=answer.usage.to_dict(),
        close_reason=answer.close_reason,
    )
    return [*events, final]


def _error_of(failure: RunFailure) -> AgentGraphError:
    """Return the error of a failed turn, as it was before it was stored."""
    code, message = failure.code, failure.message
    if code in ("model", "output"):
        return ModelError(message, code=code)
    if code == "error":
        return AgentGraphError(f"the run failed: {message}")
    return AgentGraphError(message, code=code)
