"""The live events of a hub's sessions: their places, and the feeds from which they are read.

The hub that runs a session gives each live event its place, the same for all who read it. Readers
of this process read the session's feed; hubs that watch it from elsewhere get it by `Relay`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from langchain_core.callbacks import BaseCallbackHandler

from agentgraph.errors import SessionError
from agentgraph.running import Run, current_run
from agentgraph.sessions.drivers.feed import Feed, LiveEvent, Reader, turns_ended_by
from agentgraph.sessions.drivers.lease import Lease
from agentgraph.sessions.drivers.relay import Relay
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.live import Cursor, LiveTable
from agentgraph.sessions.log.rows import unknown_session
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.rounds.round import current_attempt, current_round
from agentgraph.sessions.state.visibility import Audience
from agentgraph.stream import AnyEvent, Event, ResetEvent
from agentgraph.telling import EventBuffer, EventEmitter, ModelCallbacks

GRACE_S = 30.0
"""How long a session without readers is still told live: one whose connection broke comes back."""
_TURN_OF_READERS = 16
"""After so many events the readers get a turn of the loop: a quick model may not take any."""


class OwnedSessions(Protocol):
    """The sessions that the hub owns."""

    def owned_session(self, session_id: str) -> OwnedSession | None:
        """Return a session, None if the hub does not own it."""
        ...


class LiveEvents:
    """Gives live events their places, keeps the feeds that are read, and passes events on.

    A session has a feed while it has readers, or may have them again, here or elsewhere. Without a
    feed nothing of its runs is told, and models need not stream.
    """

    def __init__(
        self,
        log: Log,
        lease: Lease,
        drivers: OwnedSessions,
        spawn: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self._drivers = drivers
        self._spawn = spawn
        self._feeds: dict[str, Feed] = {}
        self._leavings: dict[str, asyncio.TimerHandle] = {}
        """By session without readers, when its feed is dropped."""
        self._buffers: dict[str, list[EventBuffer]] = {}
        """The buffers of readers for whom a run waits, by session."""
        table: LiveTable | None = getattr(log, "live", None)
        self.relay = Relay(log, table, lease, self, spawn)

    def open(self, session_id: str, reader: Reader) -> Feed:
        """Return the feed of a session, and wake the reader whenever there is more of it."""
        feed = self._feed(session_id)
        if (timer := self._leavings.pop(session_id, None)) is not None:
            timer.cancel()
        feed.readers.add(reader)
        return feed

    @asynccontextmanager
    async def kept(self, session_id: str) -> AsyncIterator[None]:
        """Keep the feed of a session, for a reader who comes after the block."""
        reader = Reader()
        feed = self.open(session_id, reader)
        try:
            if not self.is_owned(session_id):
                await self.relay.watch(session_id)
            yield
        finally:
            self.leave(feed, reader)

    def leave(self, feed: Feed, reader: Reader) -> None:
        """Wake a reader no more; without others the feed is kept for a while."""
        feed.readers.discard(reader)
        key = feed.session_id
        if not feed.readers and self._feeds.get(key) is feed and key not in self._leavings:
            # The loop's own time: a connection breaks and comes back in that.
            drop = partial(self._drop, feed)
            self._leavings[key] = asyncio.get_running_loop().call_later(GRACE_S, drop)

    def feed(self, session_id: str) -> Feed | None:
        """Return the feed of a session, None if nobody reads it."""
        return self._feeds.get(session_id)

    def feeds_elsewhere(self, session_ids: Collection[str] | None = None) -> list[Feed]:
        """Return the feeds of sessions that other hubs own, or nobody."""
        feeds = self._feeds.values() if session_ids is None else map(self._feeds.get, session_ids)
        return [feed for feed in feeds if feed is not None and not self.is_owned(feed.session_id)]

    def is_owned(self, session_id: str) -> bool:
        """Tell whether this hub owns a session, and so gives the places."""
        return self._drivers.owned_session(session_id) is not None

    def is_told(self, session_id: str) -> bool:
        """Tell whether anybody reads, or may go on to read, what happens in a session."""
        return self._is_followed(session_id) or session_id in self._buffers

    @contextmanager
    def all_events(self, session_id: str) -> Iterator[EventBuffer]:
        """Yield a buffer of all live events of a session, whose runs wait for its reader."""
        buffer = EventBuffer()
        buffers = self._buffers.setdefault(session_id, [])
        buffers.append(buffer)
        try:
            yield buffer
        finally:
            buffer.close()
            buffers.remove(buffer)
            if not buffers:
                del self._buffers[session_id]

    def connect(self, session: OwnedSession, run: Run) -> None:
        """Tell a run's events while the session has readers, who may come and go.

        The callbacks for tokens are requested turn by turn: a turn without readers needs none.
        """

        async def put_event(event: AnyEvent) -> None:
            speaker, audience = _place_here(session)
            if self._is_followed(session.id):
                await self.tell(session, event, speaker, audience)
            for buffer in tuple(self._buffers.get(session.id, ())):
                await buffer.put(event)

        emitter = EventEmitter(run, session.record.team, put_event, current_attempt)

        async def tell(event: Event) -> None:
            if self.is_told(session.id):
                await emitter.emit(event)

        def listeners() -> Sequence[BaseCallbackHandler]:
            is_heard = current_run() is run and self.is_told(session.id)
            return [ModelCallbacks(emitter)] if is_heard else []

        run.tell, session.listeners = tell, listeners

    async def tell(
        self, session: OwnedSession, event: AnyEvent, speaker: str, audience: Audience
    ) -> None:
        """Put an event of a session that this hub owns on its feed."""
        feed = self._feed(session.id)
        if feed.is_delayed(event, speaker, audience):
            return
        self._add(feed, session, event, speaker, audience)
        if feed.readers and session.live_cursor.number % _TURN_OF_READERS == 0:
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait

    async def restart(self, session: OwnedSession) -> None:
        """Say that a turn which its former owner has left under way begins again."""
        session.live_cursor = max(session.live_cursor, await self.relay.last_place(session.id))
        session.has_void_events = True
        if self._is_followed(session.id):
            await self.tell(session, ResetEvent(), "", None)

    @asynccontextmanager
    async def around_append(self, session: OwnedSession) -> AsyncIterator[None]:
        """Hold live events back while an append is under way: each has its place before or after.

        What was told before is with the watchers elsewhere before the envelopes are in the log.
        """
        feed = self._feeds.get(session.id)
        if feed is None:
            yield
            return
        feed.delay()
        try:
            await self.relay.flush(session.id)
            yield
        finally:
            for event, speaker, audience in feed.take_delayed():
                self._add(feed, session, event, speaker, audience)

    def on_appended(self, session: OwnedSession, envelopes: Sequence[Envelope]) -> None:
        """Put what this hub has appended on the session's feed."""
        ends_turn = any(turns_ended_by(envelope) != () for envelope in envelopes)
        if ends_turn:
            session.has_void_events = False
        feed = self._feeds.get(session.id)
        if feed is None:
            return
        before = session.state.sequence - len(envelopes)
        if feed.floor is None or feed.last.sequence < before:
            self._begin(feed, session, before)  # another hub's envelopes are read from the log
        for envelope in envelopes:
            feed.add(envelope)
        if ends_turn:
            self.relay.trim(session.id, session.state.sequence)

    def take(self, session: OwnedSession) -> None:
        """Have the feed of a session that this hub has just taken begin where its owner is."""
        feed = self._feeds.get(session.id)
        if feed is not None and (feed.floor is None or feed.last.sequence < session.state.sequence):
            self._begin(feed, session, session.state.sequence)

    def begin(self, feed: Feed, at: Cursor) -> None:
        """Begin the feed of a session that another hub owns, or nobody, unless it has begun."""
        session = self._drivers.owned_session(feed.session_id)
        if session is not None:  # this hub has taken it meanwhile
            self.take(session)
        elif feed.floor is None:
            feed.begin(at)
            self.relay.notice(feed.session_id)

    def let_go(self, session_id: str) -> None:
        """Follow the feed of a session that this hub owns no more."""
        if (feed := self._feeds.get(session_id)) is not None and feed.readers:
            self._spawn(self.relay.watch(session_id))
            self.relay.notice(session_id)

    async def hand_over(self, session: OwnedSession) -> None:
        """Leave the last place of a turn under way to whoever runs it next."""
        if session.live_cursor.sequence == session.state.sequence:
            await self.relay.leave_place(session.id, session.live_cursor)

    def backfill(self, session_id: str) -> Feed | None:
        """Return the feed of a session whose turns run here; None if they do not."""
        session = self._drivers.owned_session(session_id)
        return None if session is None or not session.is_running else self._feed(session_id)

    def forget(self, session_id: str) -> None:
        """End the feed of a session that was forgotten: a later one may have its id."""
        if (feed := self._feeds.get(session_id)) is not None:
            self.fail(feed, unknown_session(session_id))

    def fail(self, feed: Feed, error: Exception) -> None:
        """End a feed for its readers; who comes later gets a new one."""
        feed.fail(error)
        self._drop(feed)

    def drop_unread(self) -> None:
        """Drop the feeds that nobody reads any more, here or elsewhere."""
        for key, feed in [*self._feeds.items()]:
            if not feed.readers and key not in self._leavings:
                self._drop(feed)

    def close(self) -> None:
        """End all feeds."""
        for timer in self._leavings.values():
            timer.cancel()
        self._leavings.clear()
        for feed in self._feeds.values():
            feed.fail(SessionError("the hub is closed", code="hub_closed"))

    def _is_followed(self, session_id: str) -> bool:
        return session_id in self._feeds or session_id in self.relay.elsewhere

    def _feed(self, session_id: str) -> Feed:
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = self._feeds[session_id] = Feed(session_id)
        session = self._drivers.owned_session(session_id)
        if feed.floor is None and session is not None:
            self._begin(feed, session, session.state.sequence)
        return feed

    def _begin(self, feed: Feed, session: OwnedSession, sequence: int) -> None:
        is_here = session.live_cursor.sequence == sequence
        has_lost = session.is_running and (
            session.live_cursor.number > 0 or session.has_void_events
        )
        feed.begin(session.live_cursor if is_here else Cursor(sequence), has_lost=has_lost)

    def _drop(self, feed: Feed) -> None:
        key = feed.session_id
        self._leavings.pop(key, None)
        if self._feeds.get(key) is feed and key not in self.relay.elsewhere:
            del self._feeds[key]
            self.relay.unwatch(key)

    def _add(
        self, feed: Feed, session: OwnedSession, event: AnyEvent, speaker: str, audience: Audience
    ) -> None:
        last, place = session.live_cursor, (session.state.sequence, max(session.attempts, 1))
        number = last.number + 1 if last[:2] == place else 1
        session.live_cursor = cursor = Cursor(*place, number)
        live_event = LiveEvent(cursor, replace(event, cursor=str(cursor)), speaker, audience)
        if isinstance(event, ResetEvent):
            live_event = replace(live_event, event=_with_session(live_event.event, session))
        feed.add(live_event)
        self.relay.send(session.id, live_event)


def _with_session(event: AnyEvent, session: OwnedSession) -> AnyEvent:
    attempt = max(session.attempts, 1)
    return replace(event, thread_id=session.id, round=session.state.round, attempt=attempt)


def _place_here(session: OwnedSession) -> tuple[str, Audience]:
    """Return the session's speaker in whose turn this code runs, and who may see the turn.

    The round is asked before the session's state: an event may come late, when the next round, with
    another audience, has begun. Inside it may be a round of an inner session.
    """
    round = current_round()
    if round is None:
        return "", session.state.audience
    if round.session is session:
        return round.speaker, round.audience
    inner: OwnedSession | None = round.session
    while inner is not None and inner.outer is not session:
        inner = inner.outer
    parent = inner.record.parent if inner is not None else None
    return (parent.speaker or "") if parent is not None else "", round.session.outer_audience
