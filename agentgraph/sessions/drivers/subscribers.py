"""The subscribers of a hub's sessions: waiters for a change, and handlers of envelopes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

from agentgraph.errors import SessionError
from agentgraph.sessions.envelopes.envelope import EV_SESSION_CLOSED, Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.protocol import is_unknown
from agentgraph.sessions.log.rows import unknown_session

logger = logging.getLogger("agentgraph")

_BATCH = 200

Handler: TypeAlias = Callable[[Envelope], Any]
MaySee: TypeAlias = Callable[[Envelope], bool]
"""Tells whether a reader may see an envelope."""
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]


class Subscribers:
    """Wakes the tasks that wait for a change of a session."""

    def __init__(self) -> None:
        self._changes: dict[str, asyncio.Event] = {}
        self._last_changes: WeakSet[asyncio.Event] = WeakSet()
        """The changes that were the last of their sessions, which were forgotten."""
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

    def close(self) -> None:
        """Wake all waiters: nothing changes any more."""
        self._is_closed = True
        self.notify()


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
