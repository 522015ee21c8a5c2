"""The actions that a saga remembers, and which of two memories of one is further."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

EntryState = Literal["started", "waiting", "done", "failed", "compensated", "compensation_failed"]

_PROGRESS = {
    "started": 0,
    "waiting": 0,
    "failed": 0,
    "done": 1,
    "compensation_failed": 2,
    "compensated": 3,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One action, from before it starts.

    "waiting" is one that has asked a human before it did anything, "failed" one that surely changed
    nothing.
    """

    number: int
    key: str
    tool: str
    args: Mapping[str, object]
    input_hash: str
    state: EntryState = "started"
    result: object = None
    compensates: bool = False
    tries: int = 1
    beside: Mapping[str, object] = field(default_factory=dict)
    """What it has led to beside its result, and leads to again where that is given again."""
    session: str = ""
    """The inner session in which it began, "" where it was none."""

    def to_dict(self) -> dict[str, object]:
        """Return the entry as JSON-able values, which are its own: they are not to be changed."""
        return {name: getattr(self, name) for name in _FIELDS if name != "session" or self.session}

    @classmethod
    def from_dict(cls, told: Mapping[str, object]) -> Entry:
        """Read what `to_dict` has told; what a later version adds is left out."""
        return cls(**{name: told[name] for name in _FIELDS if name in told})  # type: ignore[arg-type]


_FIELDS = tuple(one.name for one in fields(Entry))


def merge_entries(left: Mapping[str, object], right: Mapping[str, object]) -> dict[str, object]:
    """Merge what two sagas have dumped: of each action the state that is further."""
    merged = _told_of(left)
    for key, told in _told_of(right).items():
        known = merged.setdefault(key, told)
        # Most are the same, and the very same in one process: only what differs is read.
        if known is not told and known != told:
            further = max(Entry.from_dict(known), Entry.from_dict(told), key=_exact_rank)
            merged[key] = further.to_dict()
    order = sorted(merged.items(), key=lambda item: (item[1]["number"], item[0]))
    return {"entries": dict(order)}


def rank(entry: Entry) -> tuple[int, int, bool]:
    """Return how far an action has come, for comparison with the same one."""
    # One that failed is begun again by the same key, and then is further than before.
    return _PROGRESS[entry.state], entry.tries, entry.state in ("failed", "waiting")


def _exact_rank(entry: Entry) -> tuple[object, ...]:
    return *rank(entry), entry.number, json.dumps(entry.to_dict(), sort_keys=True)


def entries_of(dumped: Mapping[str, object]) -> dict[str, Entry]:
    """Read what a saga has dumped."""
    return {key: Entry.from_dict(told) for key, told in _told_of(dumped).items()}


def _told_of(dumped: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    entries = dumped.get("entries")
    return dict(entries) if isinstance(entries, Mapping) else {}
