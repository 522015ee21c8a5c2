"""The actions that a saga remembers, and which of two memories of one is further."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

__all__ = ["Entry", "EntryState", "entries_of", "merge_entries", "rank"]

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

    def to_dict(self) -> dict[str, object]:
        """Return the entry as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, object]) -> Entry:
        """Read what `to_dict` has told; what a later version adds is left out."""
        return cls(**{one.name: told[one.name] for one in fields(cls) if one.name in told})  # type: ignore[arg-type]


def merge_entries(left: Mapping[str, object], right: Mapping[str, object]) -> dict[str, object]:
    """Merge what two sagas have dumped: of each action the state that is further."""
    merged = entries_of(left)
    for key, entry in entries_of(right).items():
        merged[key] = max(merged.get(key, entry), entry, key=_exact_rank)
    order = sorted(merged.values(), key=lambda entry: (entry.number, entry.key))
    return {"entries": {entry.key: entry.to_dict() for entry in order}}


def rank(entry: Entry) -> tuple[int, int, bool]:
    """Return how far an action has come, for comparison with the same one."""
    # One that failed is begun again by the same key, and then is further than before.
    return _PROGRESS[entry.state], entry.tries, entry.state in ("failed", "waiting")


def _exact_rank(entry: Entry) -> tuple[object, ...]:
    return *rank(entry), entry.number, json.dumps(entry.to_dict(), sort_keys=True)


def entries_of(dumped: Mapping[str, object]) -> dict[str, Entry]:
    """Read what a saga has dumped."""
    entries = dumped.get("entries")
    if not isinstance(entries, Mapping):
        return {}
    return {str(key): Entry.from_dict(told) for key, told in entries.items()}
