"""What happens in one session, in its order, for the readers that a hub has of it.

A feed has the session's last envelopes and the live events between them, in a ring: it is bounded,
however slow a reader is. A reader who is before the ring reads the log, and is told what the turns
under way have said so far (`ResetEvent`), in place of the live events that are gone.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.log.live import Cursor
from agentgraph.sessions.state.visibility import Audience
from agentgraph.stream import (
    AIMessageEvent,
    AnyEvent,
    ReasoningEvent,
    ResetEvent,
    TokenEvent,
    ToolArgsEvent,
)

MOST_ENTRIES = 512
MOST_WEIGHT = 64_000
"""The characters that a feed keeps, about."""

_ENTRY_WEIGHT = 100
_OTHER_WEIGHT = 1_000


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """A live event at its place in a session."""

    cursor: Cursor
    event: AnyEvent
    speaker: str
    """The participant whose turn it is part of; "" where that is not known."""
    audience: Audience

    def is_visible(self, reader: str | None) -> bool:
        """Tell whether a reader may see it; None may see all."""
        return self.audience is None or reader is None or reader in self.audience


Entry: TypeAlias = Envelope | LiveEvent


@dataclass(slots=True, eq=False)
class Reader:
    """One that reads a feed: `news` is set when there is more."""

    news: asyncio.Event = field(default_factory=asyncio.Event)
    is_cut: bool = False
    """Whether live events that it has not read are gone, though it was up to the floor."""


@dataclass(slots=True)
class Words:
    """What one message of a turn has said so far."""

    agent: str
    message_id: str
    audience: Audience
    text: str = ""


Turns: TypeAlias = dict[str, dict[str, Words]]
"""By speaker, the messages of its turn under way, by agent and id."""


class Feed:
    """The end of a session, in order, as its readers in this process read it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.readers: set[Reader] = set()
        self.news = asyncio.Event()
        """Set when the store may have more of it."""
        self.floor: Cursor | None = None
        """Everything after it is here; None while it is not known where to begin."""
        self.last = Cursor()
        """The place of what came last."""
        self.error: Exception | None = None
        """Why there is no more of it."""
        self.turns: Turns = {}
        """What turns under way had said at the floor; a turn without words has lost events."""
        self._entries: list[Entry] = []
        self._cursors: list[Cursor] = []
        self._weight = 0
        self._held_events: list[tuple[AnyEvent, str, Audience]] | None = None
        self._has_live_events = False
        self._is_late = False
        """Whether live events come that are before its floor: they are a part of `turns`."""

    def begin(self, at: Cursor, *, has_lost: bool = False) -> None:
        """Begin at a place; with `has_lost` the turns under way are not known from their start."""
        self._entries.clear()
        self._cursors.clear()
        self._weight = 0
        self.floor = self.last = at
        self.turns = {"": {}} if has_lost else {}
        self._wake()

    def add(self, entry: Entry) -> None:
        """Add what has happened; what is here already is left out."""
        cursor = cursor_of(entry)
        if self.floor is None or cursor <= self.last:
            if self._is_late and isinstance(entry, LiveEvent):
                fold_turns(self.turns, entry)
            return
        if not _follows(cursor, self.last):
            self._lose(Cursor(cursor.sequence - 1) if cursor.number == 0 else _before(cursor))
        self._entries.append(entry)
        self._cursors.append(cursor)
        self._weight += _weight(entry)
        self._has_live_events |= cursor.number > 0
        self.last = cursor
        if len(self._entries) > MOST_ENTRIES or self._weight > MOST_WEIGHT:
            self._evict()
        self._wake()

    def add_start(self, at: Cursor, turns: Turns) -> None:
        """Note where the live events of turns under way begin, and what was said until then."""
        if self.floor is None:
            return
        if at <= self.last:
            if not self._has_live_events:  # a reader was faster than the owner of the session
                self._is_late, self.turns = True, turns
            return
        if at.sequence == self.last.sequence and not at.number:
            return  # nothing is missing before it
        self._lose(at)
        self.turns = turns

    def end_of_late(self) -> None:
        """Tell readers what they have missed, if live events have come late."""
        if self._is_late and self.turns:
            for entry in self._entries:
                fold_turns(self.turns, entry)
            turns = self.turns
            self._lose(self.last)
            self.turns = turns
        self._is_late = False

    def after(self, cursor: Cursor) -> list[Entry]:
        """Return what has happened after a place, which is not before the floor."""
        return self._entries[bisect_right(self._cursors, cursor) :]

    def turns_under_way(self) -> tuple[Cursor, Turns, list[LiveEvent]]:
        """Return a place in the turns under way, what they had said by then, and what followed."""
        place, turns = self.floor or Cursor(), deepcopy(self.turns)
        events: list[LiveEvent] = []
        for entry in self._entries:
            if isinstance(entry, LiveEvent):
                events.append(entry)
            elif turns_ended_by(entry) != ():
                for earlier in events:
                    fold_turns(turns, earlier)
                fold_turns(turns, entry)
                place, events = cursor_of(entry), []
        return place, turns, events

    def reset_for(self, reader: str | None) -> ResetEvent | None:
        """Return what the turns under way had said at the floor; None if there are none."""
        if not self.turns or self.floor is None:
            return None
        messages = [
            words
            for turn in self.turns.values()
            for words in turn.values()
            if words.audience is None or reader is None or reader in words.audience
        ]
        return ResetEvent(
            agent=messages[-1].agent if messages else "",
            thread_id=self.session_id,
            attempt=self.floor.attempt,
            cursor=str(self.floor),
            text="".join(words.text for words in messages),
            messages=[
                {"agent": words.agent, "message_id": words.message_id, "text": words.text}
                for words in messages
            ],
        )

    def fail(self, error: Exception) -> None:
        """End it, for all its readers."""
        self.error = error
        self._wake()

    def delay(self) -> None:
        """Put off the live events that follow: an append is under way, which comes before them."""
        self._held_events = []

    def is_delayed(self, event: AnyEvent, speaker: str, audience: Audience) -> bool:
        """Put an event off if an append is under way, and tell whether that was done."""
        if self._held_events is None:
            return False
        self._held_events.append((event, speaker, audience))
        return True

    def take_delayed(self) -> Sequence[tuple[AnyEvent, str, Audience]]:
        """End the delay, and return what was put off."""
        events, self._held_events = self._held_events or (), None
        return events

    def _lose(self, floor: Cursor) -> None:
        """Begin anew at a place: something before it is missing."""
        self.begin(floor, has_lost=True)
        for reader in self.readers:
            reader.is_cut = True

    def _evict(self) -> None:
        """Drop the older half, but for what it says of turns under way."""
        count = max(len(self._entries) // 2, 1)
        for entry in self._entries[:count]:
            self._weight -= _weight(entry)
            fold_turns(self.turns, entry)
        self.floor = self._cursors[count - 1]
        del self._entries[:count], self._cursors[:count]

    def _wake(self) -> None:
        self.news.set()
        for reader in self.readers:
            reader.news.set()


def cursor_of(entry: Entry) -> Cursor:
    """Return the place of an entry."""
    return entry.cursor if isinstance(entry, LiveEvent) else Cursor(entry.sequence)


def fold_turns(turns: Turns, entry: Entry) -> None:
    """Add to what turns under way have said; the end of a turn removes it."""
    if isinstance(entry, LiveEvent):
        _add_words(turns, entry)
        return
    speakers = turns_ended_by(entry)
    if speakers is None:
        turns.clear()
    for speaker in speakers or ():
        turns.pop(speaker, None)
        turns.pop("", None)


def turns_ended_by(envelope: Envelope) -> Sequence[str] | None:
    """Return the speakers whose turns an envelope ends; None is all of them."""
    match envelope.event_type:
        case ev.EV_PACKET:
            return (envelope.sender_id,)
        case ev.EV_ROUND_FAILED | ev.EV_INTERRUPT:
            return (str(envelope.event_data.get("speaker")),)
        case ev.EV_CANCELLED | ev.EV_REWOUND | ev.EV_SESSION_CLOSED:
            return None
        case _:
            return ()


def turns_as_json(turns: Turns) -> dict[str, Any]:
    """Return turns as JSON."""
    return {
        speaker: [
            {"agent": w.agent, "message_id": w.message_id, "audience": w.audience, "text": w.text}
            for w in turn.values()
        ]
        for speaker, turn in turns.items()
    }


def turns_of_json(data: Mapping[str, Iterable[Mapping[str, Any]]]) -> Turns:
    """Read turns."""
    turns: Turns = {}
    for speaker, messages in data.items():
        turn = turns.setdefault(speaker, {})
        for words in messages:
            audience = words["audience"]
            audience = None if audience is None else tuple(audience)
            key = f"{words['agent']} {words['message_id']}"
            turn[key] = Words(words["agent"], words["message_id"], audience, words["text"])
    return turns


def _add_words(turns: Turns, entry: LiveEvent) -> None:
    event = entry.event
    if isinstance(event, ResetEvent):
        turns.clear()
    turn = turns.setdefault(entry.speaker, {})
    if isinstance(event, TokenEvent | AIMessageEvent):
        key = f"{event.agent} {event.message_id}"
        words = turn.setdefault(key, Words(event.agent, event.message_id, entry.audience))
        words.text = event.text if isinstance(event, AIMessageEvent) else words.text + event.text


def _follows(cursor: Cursor, last: Cursor) -> bool:
    """Tell whether nothing can be missing between two places."""
    if not cursor.number:
        return cursor.sequence == last.sequence + 1
    is_first = cursor.number == 1 and cursor.attempt > last.attempt
    is_next = cursor.attempt == last.attempt and cursor.number == last.number + 1
    return cursor.sequence == last.sequence and (is_first or is_next)


def _before(cursor: Cursor) -> Cursor:
    return cursor._replace(number=cursor.number - 1)


def _weight(entry: Entry) -> int:
    if isinstance(entry, LiveEvent):
        event = entry.event
        if isinstance(event, TokenEvent | ReasoningEvent):
            return _ENTRY_WEIGHT + len(event.text)
        if isinstance(event, ToolArgsEvent):
            return _ENTRY_WEIGHT + len(event.delta)
        return _ENTRY_WEIGHT + len(str(event))
    return _OTHER_WEIGHT + len(entry.text)
