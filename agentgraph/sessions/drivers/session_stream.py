"""The stream of a session from a place on: what one reader may see of what happens in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agentgraph.errors import SessionError
from agentgraph.sessions.drivers.feed import Entry, Feed, LiveEvent, Reader, cursor_of
from agentgraph.sessions.drivers.live import LiveEvents
from agentgraph.sessions.envelopes.envelope import EV_SESSION_CLOSED, Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.live import START, Cursor
from agentgraph.sessions.log.protocol import is_unknown
from agentgraph.stream import AnyEvent

Item: TypeAlias = Envelope | AnyEvent

_PAGE = 200


@dataclass(slots=True)
class SessionStream:
    """Reads a session for one reader, from the log and then from its feed.

    stream = SessionStream(log, live, key, Cursor(7), reader=None, show=show)
    async for items in stream.batches(): ...
    """

    log: Log
    live: LiveEvents
    session_id: str
    after: Cursor
    reader: str | None
    """Whose live events are read; None is all."""
    show: Callable[[Envelope], Envelope | None]
    """Returns an envelope as the reader may see it."""
    is_last: Callable[[Envelope], bool] = lambda envelope: False
    """Tells whether the stream ends with an envelope, whether the reader may see it or not."""
    wake: Callable[[], object] = lambda: None
    """Called once the reader is there, so that nothing that follows is missed."""
    _position: Cursor = field(init=False, default=START)
    _is_over: bool = field(init=False, default=False)

    async def batches(self) -> AsyncGenerator[Sequence[Item], None]:
        """Yield what has happened, as much as there is at a time, until the session ends."""
        stored_session = await self.log.load(self.session_id)
        state = stored_session.state if stored_session is not None else None
        head = stored_session.head if stored_session is not None else self.after.sequence
        # A reader that waits for a sequence far ahead must still see the end, if that is earlier.
        self._position = min(self.after, Cursor(head, self.after.attempt, self.after.number))
        if state is not None and state.is_ended and self._position.sequence >= head:
            return
        reader = Reader()
        feed = self.live.open(self.session_id, reader)
        try:
            self.wake()
            is_running = state is None or state.is_runnable
            await self._begin(feed, is_running=is_running)
            async for items in self._follow(feed, reader):
                yield items
        except SessionError as error:
            if stored_session is None or not is_unknown(error):
                raise  # else it was forgotten
        finally:
            self.live.leave(feed, reader)

    async def _begin(self, feed: Feed, *, is_running: bool) -> None:
        """Begin a feed of a session that another hub owns, or nobody."""
        if feed.floor is not None:
            return
        await self.live.relay.watch(self.session_id)
        if self._position.number and is_running:
            await self.live.relay.start_of(feed, self._position.sequence)
        stored_session = await self.log.load(self.session_id)
        head = stored_session.head if stored_session is not None else 0
        is_near = head - self._position.sequence < _PAGE
        is_inside = self._position.number and is_near
        self.live.begin(feed, Cursor(self._position.sequence if is_inside else head))

    async def _follow(self, feed: Feed, reader: Reader) -> AsyncGenerator[Sequence[Item], None]:
        while not self._is_over:
            if feed.error is not None:
                raise feed.error
            floor = feed.floor or Cursor()
            if self._position.sequence < floor.sequence:
                count = min(_PAGE, floor.sequence - self._position.sequence)
                page = await self.log.read(self.session_id, self._position.sequence, count)
                if items := self._items_of(page):
                    yield items
                if not page:
                    return
            elif self._position < floor or reader.is_cut:
                reset, reader.is_cut = feed.reset_for(self.reader), False
                self._position = max(self._position, floor)
                if reset is not None:
                    yield [reset]
            elif entries := feed.after(self._position):
                if items := self._items_of(entries):
                    yield items
            else:
                reader.news.clear()
                await reader.news.wait()

    def _items_of(self, entries: Sequence[Entry]) -> list[Item]:
        """Return what the reader may see of entries, up to the last of the stream."""
        items: list[Item] = []
        for entry in entries:
            self._position = cursor_of(entry)
            if isinstance(entry, LiveEvent):
                if entry.is_visible(self.reader):
                    items.append(entry.event)
                continue
            envelope = self.show(entry) if entry.sequence > self.after.sequence else None
            if envelope is not None:
                items.append(envelope)
            if entry.event_type == EV_SESSION_CLOSED or self.is_last(entry):
                self._is_over = True
                break
        return items
