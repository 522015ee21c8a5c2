"""Live events as rows of the table by which they reach other hubs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, make_dataclass
from functools import cache
from itertools import groupby
from typing import Any, cast, get_args

from agentgraph.sessions.drivers.feed import LiveEvent, Turns, turns_as_json, turns_of_json
from agentgraph.sessions.log.live import Cursor, LiveRow
from agentgraph.stream import AnyEvent, Event, stored_fields


def rows_of(session_id: str, events: Sequence[LiveEvent]) -> list[LiveRow]:
    """Return live events of a session as rows; the events of one row follow each other."""
    rows = []
    for _, group in groupby(enumerate(events), lambda pair: _run_of(*pair)):
        together = [event for _, event in group]
        data = [_encode_event(event) for event in together]
        rows.append(LiveRow(session_id, *together[-1].cursor, json.dumps({"events": data})))
    return rows


def start_row(session_id: str, place: Cursor, turns: Turns) -> LiveRow:
    """Return the row that says where the rows of a turn begin, and what was said until then."""
    data = json.dumps({"turns": turns_as_json(turns)})
    return LiveRow(session_id, place.sequence, max(place.attempt, 1), place.number, data)


def place_row(session_id: str, place: Cursor) -> LiveRow:
    """Return the row that says no more than which place was the last."""
    return LiveRow(session_id, *place, "{}")


def read_row(row: LiveRow) -> tuple[Turns | None, list[LiveEvent]]:
    """Return what was said before a row's place, if that is what it tells, and its events."""
    data = json.loads(row.data)
    turns = data.get("turns")
    events = [_decode_event(row, item) for item in data.get("events", ())]
    return None if turns is None else turns_of_json(turns), events


def _run_of(place: int, event: LiveEvent) -> tuple[int, int, int]:
    cursor = event.cursor
    return cursor.sequence, cursor.attempt, cursor.number - place


def _encode_event(live_event: LiveEvent) -> list[Any]:
    event = live_event.event
    values = stored_fields(event)
    return [live_event.cursor.number, event.type, live_event.speaker, live_event.audience, values]


def _decode_event(row: LiveRow, item: Sequence[Any]) -> LiveEvent:
    number, name, speaker, audience, values = item
    cursor = Cursor(row.sequence, row.attempt, number)
    event = _event_of(name, {**values, "cursor": str(cursor)})
    audience = None if audience is None else tuple(audience)
    return LiveEvent(cursor, cast(AnyEvent, event), speaker, audience)


def _event_of(name: str, values: Mapping[str, Any]) -> Event:
    """Return an event; one whose class is not known here, or is another version, has its fields."""
    known_class = _event_class(name)
    if known_class is not None:
        # Whatever a user's class raises: one event of it must not end the streams of its session.
        with suppress(Exception):
            return known_class(**values)
    return _other_class(name, tuple(values))(**values)


@cache
def _event_class(name: str) -> type[Event] | None:
    own: dict[str, type[Event]] = {
        **_own_classes(),
        **{event_class.type: event_class for event_class in get_args(AnyEvent)},
    }
    return own.get(name)


@cache
def _other_class(name: str, names: tuple[str, ...]) -> type[Event]:
    """Return a class for a type of events that has these fields."""
    own_names = {field.name for field in fields(Event)}
    new = [(field_name, object) for field_name in names if field_name not in own_names]
    namespace = {"type": name}
    other_class = make_dataclass(
        _OTHER_NAME, new, bases=(Event,), namespace=namespace, frozen=True, kw_only=True
    )
    return cast(type[Event], other_class)


_OTHER_NAME = "OtherEvent"


def _own_classes() -> Mapping[str, type[Event]]:
    """Return the users' own classes of events that this process knows, by their types."""
    return {
        event_class.type: event_class
        for event_class in _subclasses(Event)
        if getattr(sys.modules.get(event_class.__module__), event_class.__name__, None)
        is event_class
    }


def _subclasses(parent: type[Event]) -> Iterator[type[Event]]:
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)
