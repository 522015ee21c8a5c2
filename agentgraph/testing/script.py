"""The script of a model: its turns, how far it has come, and what was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeAlias

from langchain_core.messages import BaseMessage

from agentgraph.testing.request import Request
from agentgraph.testing.turns import Scripted

__all__ = ["Script", "ScriptExhausted", "Turns"]

Turns: TypeAlias = (
    Sequence[Scripted] | Callable[[list[BaseMessage]], Scripted | Awaitable[Scripted]]
)


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has turns."""


class Script:
    """A script, its cursor and the record, shared by all copies of a model."""

    def __init__(self, turns: Turns) -> None:
        if isinstance(turns, str):
            raise TypeError("A script is a sequence of turns: write [text], not text.")
        self._turns = turns if callable(turns) else tuple(turns)
        self._asked = count()
        self.requests: list[Request] = []

    def __deepcopy__(self, memo: object) -> Script:
        return self

    def next(self, messages: list[BaseMessage]) -> Scripted | Awaitable[Scripted]:
        if callable(self._turns):
            return self._turns(messages)
        # `next` on a count is one bytecode under the GIL: no two runs get the same turn.
        index = next(self._asked)
        if index < len(self._turns):
            return self._turns[index]
        turns = "1 turn" if len(self._turns) == 1 else f"{len(self._turns)} turns"
        last = messages[-1] if messages else None
        raise ScriptExhausted(f"The script has {turns}, and turn {index + 1} was asked by {last!r}")
