"""How often tools have failed in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

__all__ = ["FailureStreaks"]


@dataclass(slots=True)
class FailureStreaks:
    """The failures of each tool in a row, those of one message counted once.

    The model learns of them together, so their order is none of its doing.
    """

    _message: str = field(default="", init=False)
    _before: dict[str, int] = field(default_factory=dict, init=False)
    _failed: list[str] = field(default_factory=list, init=False)
    _worked: list[str] = field(default_factory=list, init=False)

    def count(self, tool: str, failed: bool, message: str) -> int:
        """Count a call; return the streak that it lengthens, 0 when it lengthens none."""
        if not message or message != self._message:
            self._turn(message)
        known = self._failed if failed else self._worked
        lengthens = failed and tool not in self._failed and tool not in self._worked
        if tool not in known:
            known.append(tool)
        return self._before.get(tool, 0) + 1 if lengthens else 0

    def _turn(self, message: str) -> None:
        if self._failed or self._before:
            lengthened = [tool for tool in self._failed if tool not in self._worked]
            self._before = {tool: self._before.get(tool, 0) + 1 for tool in lengthened}
        self._message, self._failed, self._worked = message, [], []

    def dump(self) -> list[object]:
        """Return the memory as JSON-able values."""
        return [self._message, dict(self._before), [*self._failed], [*self._worked]]

    def load(self, dumped: Sequence[object]) -> None:
        """Take the memory that `dump` gave."""
        message, before, failed, worked = cast(
            tuple[str, Mapping[str, int], Sequence[str], Sequence[str]], dumped
        )
        self._message, self._before = message, dict(before)
        self._failed, self._worked = [*failed], [*worked]
