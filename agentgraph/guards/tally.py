"""A count over the rounds of one input, of which what one speaker adds can be taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """What was counted before this round, and in it by speaker."""

    before: int = 0
    now: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return the whole count."""
        return self.before + sum(self.now.values())

    def count(self, speaker: str, times: int = 1) -> None:
        """Count one more, or several."""
        self.now[speaker] = self.now.get(speaker, 0) + times

    def take_back(self, speaker: str) -> None:
        """Count nothing of what a speaker did in this round: it is done again."""
        self.now.pop(speaker, None)

    def dump(self) -> dict[str, object]:
        """Return the count as JSON-able values."""
        return {"before": self.before, "now": dict(self.now)}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Take the count that `dump` gave."""
        self.before, self.now = dumped.get("before", 0), dict(dumped.get("now", {}))
