"""The last messages of a model: their calls, the rounds that repeat, and what fails in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

FAILURE = "!"
"""The answer that is entered for every failed call: another error text is nothing new."""
PERIODS = (1, 2, 3, 4, 5)
"""How many messages a round may have."""
_MAX_CALLS = 64


class Call(NamedTuple):
    """A call of a tool, as digests."""

    tool: str
    question: str
    """The tool and its arguments."""
    result: str
    answer: str
    """What the result tells, without time stamps and the like."""
    identity: str
    """The question, or the earlier one that asked for the same in other words."""
    words: str
    """The wording of the question, "" where it was not needed."""


class Message:
    """The calls of one message of the model, which asked for all of them at once."""

    __slots__ = ("calls", "id", "key", "row")

    def __init__(self, id: str, *calls: Call) -> None:
        self.id = id
        self.calls = [*calls]
        self._update()

    def add(self, call: Call) -> bool:
        """Add a call; return False where the message has too many of them already."""
        if len(self.calls) >= _MAX_CALLS:
            return False
        self.calls.append(call)
        self._update()
        return True

    def has(self, question: str) -> bool:
        """Tell whether the message asks a question."""
        return any(call.question == question for call in self.calls)

    def _update(self) -> None:
        self.key: frozenset[tuple[str, str]] | None = None
        self.row: list[object] = [self.id, [_row_of(call) for call in self.calls]]
        """The message as JSON-able values, made once: the window is stored at each step."""


class Window:
    """The last messages, as many as a loop of the longest period needs."""

    __slots__ = ("_most", "_results", "messages")

    def __init__(self, most: int) -> None:
        self._most = most
        self.messages: list[Message] = []
        self._results: dict[str, int] = {}
        """How many calls in the window have each result."""

    def __contains__(self, result: str) -> bool:
        return result in self._results

    def enter(self, call: Call, message: str, *, joins_last: bool) -> None:
        """Add a call to the last message, or in a new one."""
        if not joins_last:
            self.messages.append(Message(message, call))
        elif not self.messages[-1].add(call):
            return
        self._results[call.result] = self._results.get(call.result, 0) + 1
        if len(self.messages) > self._most:
            self._forget(self.messages.pop(0))

    def _forget(self, message: Message) -> None:
        for call in message.calls:
            count = self._results.get(call.result, 0) - 1
            if count > 0:
                self._results[call.result] = count
            else:
                self._results.pop(call.result, None)

    def calls(self, messages: int | None = None) -> Iterator[Call]:
        """Yield the calls of the last messages, or of all, the last call first."""
        first = 0 if messages is None else max(0, len(self.messages) - messages)
        for message in reversed(self.messages[first:]):
            yield from reversed(message.calls)

    def round(self, times: int, longest: int) -> Sequence[Message]:
        """Return the shortest round that the last messages repeat so many times, else nothing."""
        for period in PERIODS:
            count = period * times
            if period > longest or count > len(self.messages):
                break
            keys = [_key_of(message) for message in self.messages[-count:]]
            if keys[period:] == keys[:-period]:
                return self.messages[-period:]
        return ()

    def dump(self) -> list[object]:
        """Return the messages as JSON-able values."""
        return [message.row for message in self.messages]

    def load(self, rows: Sequence[object]) -> None:
        """Take the messages that `dump` gave."""
        self.messages, self._results = [], {}
        for row in cast(Sequence[tuple[str, Sequence[Sequence[str]]]], rows):
            self.messages.append(Message(row[0], *map(_call_of, row[1])))
        for call in self.calls():
            self._results[call.result] = self._results.get(call.result, 0) + 1


def _key_of(message: Message) -> frozenset[tuple[str, str]]:
    """Return what a message asks for and is told, in any order."""
    if message.key is None:
        message.key = frozenset((call.identity, call.answer) for call in message.calls)
    return message.key


def _row_of(call: Call) -> list[str]:
    """Return a call as JSON-able values, without what it has twice."""
    tool, question, result, answer, identity, words = call
    return [
        tool,
        question,
        result,
        "" if answer == result else answer,
        "" if identity == question else identity,
        words,
    ]


def _call_of(row: Sequence[str]) -> Call:
    tool, question, result, answer, identity, words = row
    return Call(tool, question, result, answer or result, identity or question, words)


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
