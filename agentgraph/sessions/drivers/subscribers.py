"""The subscribers of a hub's sessions: waiters for a change, readers of live events, handlers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

from langchain_core.callbacks import BaseCallbackHandler

from agentgraph.errors import SessionError
from agentgraph.running import Run, current_run
from agentgraph.sessions.envelopes.envelope import EV_SESSION_CLOSED, Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.protocol import is_unknown
from agentgraph.sessions.log.rows import unknown_session
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.rounds.round import current_attempt, current_round
from agentgraph.sessions.state.visibility import Audience
from agentgraph.stream import AnyEvent, Event
from agentgraph.telling import EventBuffer, EventEmitter, ModelCallbacks, PutEvent

logger = logging.getLogger("agentgraph")

_QUEUE_SIZE = 64
_BATCH = 200

EventQueue: TypeAlias = asyncio.Queue[AnyEvent | None]
"""The live events of a session; None marks the end."""
Item: TypeAlias = Envelope | AnyEvent
Handler: TypeAlias = Callable[[Envelope], Any]
MaySee: TypeAlias = Callable[[Envelope], bool]
"""Tells whether a reader may see an envelope."""
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]


class Subscribers:
    """Wakes the tasks that wait for a change of a session, and passes on live events of its runs.

    Live events are lost if no reader takes them, or a reader is too slow. The log has everything
    that must not be lost.
    """

    def __init__(self) -> None:
        self._changes: dict[str, asyncio.Event] = {}
        self._last_changes: WeakSet[asyncio.Event] = WeakSet()
        """The changes that were the last of their sessions, which were forgotten."""
        self._queues: dict[str, dict[EventQueue, str | None]] = defaultdict(dict)
        self._buffers: dict[str, list[EventBuffer]] = defaultdict(list)
        """The buffers of readers for whom a run waits, by session."""
        self._is_closed = False

    async def wait_until(
        self, session_id: str, is_ready: Callable[[], Coroutine[Any, Any, bool]]
    ) -> None:
        """Wait until `is_ready` returns true; each change of the session calls it again."""
        while True:
            # Registered before `is_ready` is called, so that a change meanwhile is not missed.
            change = self._changes.setdefault(session_id, asyncio.Event())
            if await is_ready():
                self.notify(session_id)  # drops the entry: nothing is kept without waiters
                return
            if self._is_closed:
                raise SessionError("the hub is closed", code="hub_closed")
            await change.wait()
            if change in self._last_changes:
                raise unknown_session(session_id)

    def forget(self, session_id: str) -> None:
        """End all that waits for a session: a later session may have its id."""
        if (change := self._changes.get(session_id)) is not None:
            self._last_changes.add(change)
        self.notify(session_id)

    def notify(self, session_id: str | None = None) -> None:
        """Wake all waiters of a session, or with None those of all sessions."""
        for name in [session_id] if session_id is not None else list(self._changes):
            change = self._changes.pop(name, None)
            if change is not None:
                change.set()

    def subscribe(self, session_id: str, reader: str | None = None) -> EventQueue:
        """Return a queue of a session's live events; in a full one they replace the oldest.

        With a `reader` it has only the events of rounds that this participant may see.
        """
        queue: EventQueue = asyncio.Queue(_QUEUE_SIZE)
        self._queues[session_id][queue] = reader
        return queue

    def unsubscribe(self, session_id: str, queue: EventQueue) -> None:
        """Stop putting events into a queue."""
        self._queues[session_id].pop(queue, None)
        if not self._queues[session_id]:
            del self._queues[session_id]

    @contextmanager
    def all_events(self, session_id: str) -> Iterator[EventBuffer]:
        """Yield a buffer of all live events of a session, whose runs wait for its reader."""
        buffer = EventBuffer()
        self._buffers[session_id].append(buffer)
        try:
            yield buffer
        finally:
            buffer.close()
            self._buffers[session_id].remove(buffer)
            if not self._buffers[session_id]:
                del self._buffers[session_id]

    def connect(self, session: OwnedSession, run: Run) -> None:
        """Pass on a run's events while the session has readers, who may come and go.

        The callbacks for tokens are requested turn by turn: a turn without readers needs none.
        """
        emitter = EventEmitter(run, session.record.team, self._put_in(session), current_attempt)

        def has_readers() -> bool:
            return self.has_readers(session.id) or session.id in self._buffers

        async def tell(event: Event) -> None:
            if has_readers():
                await emitter.emit(event)

        def listeners() -> Sequence[BaseCallbackHandler]:
            return [ModelCallbacks(emitter)] if current_run() is run and has_readers() else []

        run.tell, session.listeners = tell, listeners

    def has_readers(self, session_id: str) -> bool:
        """Tell whether anybody reads the live events of a session."""
        return bool(self._queues.get(session_id))

    def close(self) -> None:
        """End all queues, and wake all waiters."""
        self._is_closed = True
        for queues in self._queues.values():
            for queue in queues:
                _offer(queue, None)
        self.notify()

    def _put_in(self, session: OwnedSession) -> PutEvent:
        async def put_event(event: AnyEvent) -> None:
            audience = _audience_here(session)
            for queue, reader in self._queues.get(session.id, {}).items():
                if audience is None or reader is None or reader in audience:
                    _offer(queue, event)
            for buffer in tuple(self._buffers.get(session.id, ())):
                await buffer.put(event)

        return put_event


def _audience_here(session: OwnedSession) -> Audience:
    """Return the audience of the round of a session, or of one inside it, that this code runs in.

    The round is asked before the session's state: an event may come late, when the next round, with
    another audience, has begun.
    """
    round = current_round()
    if round is None:
        return session.state.audience
    return round.audience if round.session is session else round.session.outer_audience


def _offer(queue: EventQueue, event: AnyEvent | None) -> None:
    """Put an event into a queue; if it is full, drop the oldest event first."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)


async def watch(
    log: Log, subscribers: Subscribers, session_id: str, after: int, may_see: MaySee
) -> AsyncGenerator[Envelope, None]:
    """Yield the envelopes that a reader may see, until the session ends or is forgotten."""

    async def has_more() -> bool:
        return bool(await log.read(session_id, position, 1))

    stored_session = await log.load(session_id)
    state = stored_session.state if stored_session is not None else None
    is_over = state is not None and state.is_ended
    # A reader that waits for a sequence far ahead must still see the end, if that comes earlier.
    position = after if state is None else min(after, state.sequence)
    while True:
        try:
            batch = await log.read(session_id, position, _BATCH)
            if not batch and not is_over:
                await subscribers.wait_until(session_id, has_more)
                continue
        except SessionError as error:
            if stored_session is None or not is_unknown(error):
                raise
            return  # it was forgotten
        for envelope in batch:
            position = envelope.sequence
            if position > after and may_see(envelope):
                yield envelope
            if envelope.event_type == EV_SESSION_CLOSED:
                return
        if not batch:
            return


async def stream(
    envelopes: AsyncGenerator[Envelope, None],
    subscribers: Subscribers,
    session_id: str,
    reader: str | None,
    wake: Callable[[], None],
) -> AsyncGenerator[Item, None]:
    """Yield envelopes and live events; call `wake` once the reader is subscribed to events."""
    events = subscribers.subscribe(session_id, reader)
    items: asyncio.Queue[Item | BaseException | None] = asyncio.Queue(1)

    async def put_envelopes() -> None:
        try:
            async for envelope in envelopes:
                await items.put(envelope)
        except Exception as error:
            await items.put(error)
        else:
            await items.put(None)

    async def put_events() -> None:
        while (event := await events.get()) is not None:
            await items.put(event)

    tasks = [asyncio.ensure_future(put_envelopes()), asyncio.ensure_future(put_events())]
    wake()
    try:
        while (item := await items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        subscribers.unsubscribe(session_id, events)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _Subscription:
    """The handlers of one session, and the sequence up to which they were called."""

    sequence: int
    entries: list[tuple[str, Handler]] = field(default_factory=list)


class Handlers:
    """The handlers of sessions' envelopes: each handler gets each envelope once, in order.

    A hub learns of envelopes from its own appends and from notifications of the log, of some twice:
    the sequence up to which handlers were called filters out repetitions. `spawn` runs what a
    handler returns, if that is awaitable.
    """

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._subscriptions: dict[str, _Subscription] = {}

    def add(self, session_id: str, event_type: str, handler: Handler, after: int) -> None:
        """Call a handler with the envelopes after the sequence `after`."""
        subscription = self._subscriptions.setdefault(session_id, _Subscription(after))
        subscription.entries.append((event_type, handler))

    def remove(self, session_id: str, event_type: str, handler: Handler) -> None:
        """Stop calling a handler."""
        subscription = self._subscriptions.get(session_id)
        if subscription is not None and (event_type, handler) in subscription.entries:
            subscription.entries.remove((event_type, handler))
            if not subscription.entries:
                del self._subscriptions[session_id]

    def drop(self, session_id: str) -> None:
        """Drop the handlers of a session that was forgotten."""
        self._subscriptions.pop(session_id, None)

    @property
    def session_ids(self) -> Sequence[str]:
        """The sessions that have handlers."""
        return [*self._subscriptions]

    def sequence_of(self, session_id: str) -> int | None:
        """Return the sequence up to which handlers were called, None where there are none."""
        subscription = self._subscriptions.get(session_id)
        return None if subscription is None else subscription.sequence

    def notify(self, session_id: str, envelopes: Sequence[Envelope]) -> None:
        """Call the handlers with those envelopes that they have not been called with."""
        subscription = self._subscriptions.get(session_id)
        if subscription is None:
            return
        fresh = [envelope for envelope in envelopes if envelope.sequence > subscription.sequence]
        if not fresh:
            return
        subscription.sequence = fresh[-1].sequence
        for envelope in fresh:
            for event_type, handler in list(subscription.entries):
                if event_type in (envelope.event_type, "*"):
                    self.call(handler, envelope)
        if fresh[-1].event_type == EV_SESSION_CLOSED:
            self._subscriptions.pop(session_id, None)

    def call(self, handler: Handler, envelope: Envelope) -> None:
        """Call a handler; its errors are logged, and do not stop the session."""

        async def finish(result: Any) -> None:
            try:
                await result
            except Exception:
                logger.exception("a handler of %s failed", envelope.event_type)

        try:
            result = handler(envelope)
        except Exception:
            logger.exception("a handler of %s failed", envelope.event_type)
            return
        if inspect.isawaitable(result):
            self._spawn(finish(result))
