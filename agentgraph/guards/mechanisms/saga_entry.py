"""The entries of a saga: one for each action, as it is stored, and how two copies are merged.

An interrupted input leaves several stored copies of its state. The merge does not depend on their
order: whichever copy is read first, no finished action looks unfinished again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

EntryState = Literal["started", "waiting", "done", "failed", "compensated", "compensation_failed"]
"""How far an action has come.

- started: registered before it ran; until it is done, it is unknown whether it changed anything
- waiting: it has asked a human before it did anything
- failed: it surely changed nothing
- compensated, compensation_failed: it was undone, or could not be
"""

_PROGRESS: Mapping[EntryState, int] = {
    "started": 0,
    "waiting": 0,
    "failed": 0,
    "done": 1,
    "compensation_failed": 2,
    "compensated": 3,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One action of a tool, registered before it starts."""

    number: int
    """In which order the actions of the run began; they are undone in the opposite one."""
    key: str
    """Identifies the action: the same when its call is repeated."""
    tool: str
    args: Mapping[str, object]
    input_hash: str
    """A digest of tool and arguments: shows that a different action comes under the same key."""
    state: EntryState = "started"
    result: object = None
    compensates: bool = False
    """Whether there is a function that undoes it."""
    tries: int = 1
    beside: Mapping[str, object] = field(default_factory=dict)
    """What it led to beside its result, such as a handoff: replayed together with the result."""
    session: str = ""
    """The inner session in which the action began, "" outside of one."""
    call_id: str = ""
    """The id of the model's call, "" where it is not known."""

    def to_dict(self) -> dict[str, object]:
        """Return the entry as JSON-able values; nested values are shared: do not change them."""
        return {
            name: value
            for name in _FIELDS
            if (value := getattr(self, name)) or name not in _LEFT_OUT_IF_EMPTY
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Entry:
        """Read what `to_dict` returned; skip fields that a later version has added."""
        return cls(**{name: values[name] for name in _FIELDS if name in values})  # type: ignore[arg-type]


_FIELDS = tuple(entry_field.name for entry_field in fields(Entry))
_LEFT_OUT_IF_EMPTY = ("session", "call_id")


def entries_of(state: Mapping[str, object]) -> dict[str, Entry]:
    """Read the entries from the dump of a saga, by their keys."""
    return {key: Entry.from_dict(values) for key, values in _raw_entries(state).items()}


def merge_entries(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    """Merge the dumps of two sagas; of each action, keep the entry with the higher `rank`."""
    entries = _raw_entries(first)
    for key, values in _raw_entries(second).items():
        present = entries.setdefault(key, values)
        # Most entries are equal, and within one process the very same object: only entries that
        # differ are parsed.
        if present is not values and present != values:
            further = max(Entry.from_dict(present), Entry.from_dict(values), key=_exact_rank)
            entries[key] = further.to_dict()
    order = sorted(entries.items(), key=lambda item: (item[1]["number"], item[0]))
    return {"entries": dict(order)}


def rank(entry: Entry) -> tuple[int, int, bool]:
    """Return how far an action has come, to compare two entries of the same action.

    An action that failed or waited begins again under the same key, with `tries` one higher: the
    new start ranks above its earlier end.
    """
    return _PROGRESS[entry.state], entry.tries, entry.state in ("failed", "waiting")


def _exact_rank(entry: Entry) -> tuple[object, ...]:
    # Between equal ranks the text of the entry decides: a merge must not depend on the order.
    return *rank(entry), entry.number, json.dumps(entry.to_dict(), sort_keys=True)


def _raw_entries(state: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    entries = state.get("entries")
    return dict(entries) if isinstance(entries, Mapping) else {}
