"""Live events between hubs: written for those that watch elsewhere, read where they are watched.

The hub that runs a session writes its live events to the store's `LiveTable` for as long as another
hub watches the session, those of some milliseconds and of all its sessions in one commit. A hub
that watches reads them with the session's envelopes, in their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, kind_of
from agentgraph.sessions.drivers.feed import Entry, Feed, LiveEvent, Turns, cursor_of
from agentgraph.sessions.drivers.lease import Lease
from agentgraph.sessions.drivers.live_rows import place_row, read_row, rows_of, start_row
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.live import Cursor, LiveRow, LiveTable, WatchNotice
from agentgraph.sessions.log.rows import unknown_session
from agentgraph.stream import ReasoningEvent, TokenEvent, ToolArgsEvent

logger = logging.getLogger("agentgraph")

BATCH_S = 0.02
"""How long the pieces of a text wait for more: those of all sessions share a commit."""
TRIM_S = 2.0
"""How long live events stay after their turn has ended, for those who are about to read them."""
START_S = 2.0
"""How long a reader who was in the middle of a turn waits for what its owner has of that turn."""
_PAGE = 200
_PIECES = (TokenEvent, ReasoningEvent, ToolArgsEvent)


class Feeds(Protocol):
    """The feeds of a hub."""

    def feeds_elsewhere(self, session_ids: Collection[str] | None = None) -> list[Feed]:
        """Return the feeds of sessions that other hubs own, or nobody."""
        ...

    def backfill(self, session_id: str) -> Feed | None:
        """Return the feed of a session whose turns run here; None if they do not."""
        ...

    def is_owned(self, session_id: str) -> bool:
        """Tell whether this hub owns a session, and so gives the places."""
        ...

    def fail(self, feed: Feed, error: Exception) -> None:
        """End a feed for its readers."""
        ...

    def drop_unread(self) -> None:
        """Drop the feeds that nobody reads any more."""
        ...


class Relay:
    """Writes live events for other hubs, and reads theirs; without a table it reads envelopes."""

    def __init__(
        self,
        log: Log,
        table: LiveTable | None,
        lease: Lease,
        feeds: Feeds,
        spawn: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self.elsewhere: frozenset[str] = frozenset()
        """The sessions that other hubs watch."""
        self._log = log
        self._table = table
        self._lease = lease
        self._feeds = feeds
        self._spawn = spawn
        self._lock = asyncio.Lock()
        self._events: dict[str, list[LiveEvent]] = {}
        self._rows: list[LiveRow] = []
        self._trims: dict[str, int] = {}
        self._timers: dict[Callable[[], Coroutine[Any, Any, None]], asyncio.TimerHandle] = {}
        self._watched_ids: set[str] = set()
        self._news = asyncio.Event()
        self._noticed_ids: set[str] | None = set()
        """The sessions to look at, None for all."""
        self._has_new_watchers = True

    # What is written.

    def send(self, session_id: str, event: LiveEvent) -> None:
        """Write a live event, soon, if another hub watches the session."""
        if session_id in self.elsewhere:
            self._events.setdefault(session_id, []).append(event)
            self._after(BATCH_S if isinstance(event.event, _PIECES) else 0.0, self._write)

    async def flush(self, session_id: str) -> None:
        """Write what waits to be written."""
        if session_id in self.elsewhere:
            await self._write()

    def trim(self, session_id: str, sequence: int) -> None:
        """Delete, a little later, what was written of a session before a sequence."""
        if session_id in self.elsewhere:
            self._trims[session_id] = sequence
            self._after(TRIM_S, self._trim)

    async def leave_place(self, session_id: str, place: Cursor) -> None:
        """Write which place was the last, so that the next owner gives none of them again."""
        if self._table is not None and place.number:
            with suppress(AgentGraphError):
                await self._write()
                await self._table.add([place_row(session_id, place)])

    async def last_place(self, session_id: str) -> Cursor:
        """Return the last place that any owner has given, as far as it was written."""
        rows = [] if self._table is None else await self._table.read(session_id, Cursor())
        return rows[-1].cursor if rows else Cursor()

    async def _write(self) -> None:
        async with self._lock:
            events, self._events = self._events, {}
            rows, self._rows = self._rows, []
            for session_id, own in events.items():
                rows += rows_of(session_id, own)
            if not rows or self._table is None:
                return
            try:
                await self._table.add(rows)
            except Exception as error:  # who watches notices the gap
                logger.warning("live events could not be passed on: %s", kind_of(error))

    async def _trim(self) -> None:
        trims, self._trims = self._trims, {}
        if self._table is not None:
            with suppress(AgentGraphError):  # what is left goes with the next turn
                await self._table.trim(trims)

    def _after(self, delay_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do some work after a while, once, however often that is asked for until then."""
        loop, timer = asyncio.get_running_loop(), self._timers.get(work)
        if timer is not None and timer.when() <= loop.time() + delay_s:
            return
        if timer is not None:
            timer.cancel()

        def begin() -> None:
            del self._timers[work]
            self._spawn(work())

        self._timers[work] = loop.call_later(delay_s, begin)

    # What is read.

    def notice(self, notice: str | None) -> None:
        """Look at a session, or with None or "" at all, as the store has changed."""
        self._has_new_watchers |= notice is None or isinstance(notice, WatchNotice)
        if not notice and not isinstance(notice, WatchNotice):
            self._noticed_ids = None
        elif notice and self._noticed_ids is not None:
            self._noticed_ids.add(notice)
        self._news.set()

    async def run(self) -> None:
        """Read what other hubs write, for as long as the hub is open."""
        while True:
            await self._news.wait()
            self._news.clear()
            session_ids, self._noticed_ids = self._noticed_ids, set()
            try:
                if self._has_new_watchers:
                    self._has_new_watchers = False
                    await self.look_who_watches()
                for feed in await self._feeds_with_news(session_ids):
                    await self._read(feed)
            except AgentGraphError as error:
                logger.warning("other hubs' sessions cannot be followed: %s", kind_of(error))

    async def watch(self, session_id: str) -> None:
        """Have the hub that runs a session write its live events."""
        if self._table is not None and session_id not in self._watched_ids:
            self._watched_ids.add(session_id)
            await self._table.watch(session_id, self._lease.owner)

    def unwatch(self, session_id: str) -> None:
        """End what `watch` began."""
        if self._table is not None and session_id in self._watched_ids:
            self._watched_ids.discard(session_id)
            self._spawn(self._unwatch(self._table, session_id))

    async def start_of(self, feed: Feed, sequence: int) -> None:
        """Wait until the owner has written what it has of a turn under way, or does not."""
        if self._table is None:
            return
        with suppress(TimeoutError):
            # The loop's own time, as the clock of a test may stand still.
            async with asyncio.timeout(START_S):
                while feed.floor is None and feed.error is None:
                    if await self._table.read(feed.session_id, Cursor(sequence)):
                        return
                    feed.news.clear()
                    await feed.news.wait()

    async def _unwatch(self, table: LiveTable, session_id: str) -> None:
        with suppress(AgentGraphError):  # it ends with this hub's lease
            await table.unwatch(session_id, self._lease.owner)

    async def look_who_watches(self) -> None:
        """Find out which sessions other hubs watch; write what they have missed of turns here."""
        if self._table is None:
            return
        session_ids = await self._table.sessions_watched(self._lease.owner, clock().wall())
        for session_id in session_ids - self.elsewhere:
            feed = self._feeds.backfill(session_id)
            if feed is not None:
                place, turns, events = feed.turns_under_way()
                self._rows.append(start_row(session_id, place, turns))
                self._events[session_id] = events
                self._after(0.0, self._write)
        self.elsewhere = frozenset(session_ids)
        self._feeds.drop_unread()

    async def _feeds_with_news(self, session_ids: Collection[str] | None) -> list[Feed]:
        feeds = self._feeds.feeds_elsewhere(session_ids)
        for feed in feeds:
            feed.news.set()
        feeds = [feed for feed in feeds if feed.floor is not None]
        if session_ids is not None or self._table is None or not feeds:
            return feeds
        news = await self._table.news([feed.session_id for feed in feeds])
        with_news = []
        for feed in feeds:
            head, place = news.get(feed.session_id, (None, Cursor()))
            if head is None:
                self._feeds.fail(feed, unknown_session(feed.session_id))
            elif head > feed.last.sequence or place > feed.last:
                with_news.append(feed)
        return with_news

    async def _read(self, feed: Feed) -> None:
        """Put on a feed what has happened in its session since."""
        try:
            is_more = True
            while is_more:
                is_more = await self._read_page(feed)
        except Exception as error:
            self._feeds.fail(feed, error)

    async def _read_page(self, feed: Feed) -> bool:
        """Read one page; tell whether there is more."""
        key, after = feed.session_id, feed.last
        # First the log: its owner writes the live events before an envelope, and then that.
        envelopes = await self._log.read(key, after.sequence, _PAGE)
        upto = envelopes[-1].sequence if envelopes else after.sequence
        rows = [] if self._table is None else await self._table.read(key, after)
        if self._feeds.is_owned(key):
            return False  # this hub has taken the session over meanwhile
        _put_all(feed, envelopes, [row for row in rows if row.sequence <= upto])
        return len(envelopes) == _PAGE or any(row.sequence > upto for row in rows)


def _put_all(feed: Feed, envelopes: list[Envelope], rows: list[LiveRow]) -> None:
    starts: list[tuple[Cursor, Turns]] = []
    entries: list[Entry] = [*envelopes]
    for row in rows:
        turns, events = read_row(row)
        if turns is not None:
            starts.append((row.cursor, turns))
        entries += events
    for entry in sorted(entries, key=cursor_of):
        while starts and starts[0][0] < cursor_of(entry):
            feed.add_start(*starts.pop(0))
        feed.add(entry)
    for start in starts:
        feed.add_start(*start)
    feed.end_of_late()
