"""The failures of each tool in a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast


@dataclass(slots=True)
class FailureStreaks:
    """The consecutive failures of each tool; the failures in one message count once.

    The model gets the results of a message together, so their order says nothing about it: a tool
    that has succeeded once within the message has not failed in it.
    """

    _message: str = field(default="", init=False)
    _streaks: dict[str, int] = field(default_factory=dict, init=False)
    """The streaks as they were before the message, by tool."""
    _failures: list[str] = field(default_factory=list, init=False)
    _successes: list[str] = field(default_factory=list, init=False)
    """The tools that have failed, and those that have succeeded, in the message."""

    def count(self, tool: str, failed: bool, message: str) -> int:
        """Count a call; return the length of the streak that it extends, 0 for none."""
        if not message or message != self._message:
            self._begin(message)
        tools = self._failures if failed else self._successes
        extends = failed and tool not in self._failures and tool not in self._successes
        if tool not in tools:
            tools.append(tool)
        return self._streaks.get(tool, 0) + 1 if extends else 0

    def _begin(self, message: str) -> None:
        if self._failures or self._streaks:
            tools = [tool for tool in self._failures if tool not in self._successes]
            self._streaks = {tool: self._streaks.get(tool, 0) + 1 for tool in tools}
        self._message, self._failures, self._successes = message, [], []

    def dump(self) -> list[object]:
        """Return the memory as JSON-able values."""
        return [self._message, dict(self._streaks), [*self._failures], [*self._successes]]

    def load(self, state: Sequence[object]) -> None:
        """Take the memory that `dump` gave."""
        message, streaks, failures, successes = cast(
            tuple[str, Mapping[str, int], Sequence[str], Sequence[str]], state
        )
        self._message, self._streaks = message, dict(streaks)
        self._failures, self._successes = [*failures], [*successes]
