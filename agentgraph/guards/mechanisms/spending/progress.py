"""How an input gets on: its model calls since it learned something, and its handoffs in a row.

There is one `Progress` for an input in a process; all levels and inner sessions of the input share
it. It remembers which results it has seen by a few bits each, so that its size is fixed: after many
hundreds of results, some new ones are taken for old ones, and none the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from agentgraph.guards.mechanisms.canonical import canonical

_BITS = 512
_BITS_PER_RESULT = 2


class Progress:
    """What an input has learned, and what its models have done since then."""

    __slots__ = ("_seen", "handoffs", "learned_at", "steps")

    def __init__(self) -> None:
        self.steps = 0
        """How many model calls were made; each attempt at a provider is one."""
        self.learned_at = 0
        """How many had been made before the one that led to the last new result."""
        self.handoffs = 0
        """How many handoffs models have made in a row, without a tool's work between them."""
        self._seen = 0

    @property
    def idle_steps(self) -> int:
        """Return the number of model calls since the last new result, with that which led to it."""
        return self.steps - self.learned_at

    def learn(self, result: object) -> None:
        """Note a result; one that was not seen before starts the count of model calls anew."""
        mask = _mask_of(result)
        if self._seen & mask != mask:
            self._seen |= mask
            self.learned_at = max(self.steps - 1, self.learned_at)

    def dump(self) -> dict[str, Any]:
        """Return the memory as JSON-able values."""
        return {**self.counts(), "seen": f"{self._seen:x}"} if self._seen else self.counts()

    def counts(self) -> dict[str, Any]:
        """Return the counts alone: for a session's log, of which each byte is kept."""
        values: dict[str, Any] = {"steps": self.steps}
        if self.learned_at:
            values["learned_at"] = self.learned_at
        if self.handoffs:
            values["in_a_row"] = self.handoffs
        return values

    def merge(self, values: Mapping[str, Any], *, is_latest: bool) -> None:
        """Add what another process has dumped, and its handoffs in a row if that is the latest."""
        self.steps = max(self.steps, values.get("steps", 0))
        self.learned_at = max(self.learned_at, values.get("learned_at", 0))
        self._seen |= int(values.get("seen", "0"), 16)
        if is_latest:
            self.handoffs = values.get("in_a_row", 0)


def _mask_of(result: object) -> int:
    text = result if isinstance(result, str) else canonical(result)
    # Not `hash`, which differs from process to process. Strict UTF-8 cannot write half of a
    # surrogate pair.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    mask = 0
    for at in range(_BITS_PER_RESULT):
        mask |= 1 << int.from_bytes(digest[4 * at : 4 * at + 4]) % _BITS
    return mask
