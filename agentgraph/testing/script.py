"""The script of a model: its turns in order, and the requests that it has answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from agentgraph.testing.answers import Scripted

Bindable: TypeAlias = dict[str, Any] | type | Callable[..., Any] | BaseTool


Turns: TypeAlias = (
    Sequence[Scripted] | Callable[[list[BaseMessage]], Scripted | Awaitable[Scripted]]
)


class Script:
    """The turns, a cursor, and the record of requests, shared by all copies of a model."""

    def __init__(self, turns: Turns) -> None:
        if isinstance(turns, str):
            raise TypeError("A script is a sequence of turns: write [text], not text.")
        self._turns = turns if callable(turns) else tuple(turns)
        self._cursor = count()
        self.requests: list[Request] = []

    def __deepcopy__(self, memo: object) -> Script:
        return self  # pydantic copies a model deeply; the copies must share the cursor

    def next(self, messages: list[BaseMessage]) -> Scripted | Awaitable[Scripted]:
        """Return the next turn; raise `ScriptExhausted` where there is none."""
        if callable(self._turns):
            return self._turns(messages)
        # `next` on a count is one bytecode under the GIL: no two runs get the same turn.
        index = next(self._cursor)
        if index < len(self._turns):
            return self._turns[index]
        turns = "1 turn" if len(self._turns) == 1 else f"{len(self._turns)} turns"
        last = messages[-1] if messages else None
        raise ScriptExhausted(f"The script has {turns}, and turn {index + 1} was asked by {last!r}")


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has turns."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the model received in one call; `specs` are the tools as the client sent them."""

    messages: tuple[BaseMessage, ...]
    tools: tuple[str, ...] = ()
    tool_choice: object = None
    specs: tuple[Mapping[str, object], ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def system(self) -> str:
        """Return the system prompt, or an empty string."""
        first = self.messages[0] if self.messages else None
        return first.text if isinstance(first, SystemMessage) else ""


def request_of(messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> Request:
    """Return the record of a call with these messages and bound options."""
    options = dict(options)
    specs = tuple(options.pop("tools", None) or ())
    names = tuple(name for spec in specs if (name := spec.get("function", spec).get("name")))
    return Request(tuple(messages), names, options.pop("tool_choice", None), specs, options)


def spec_of(tool: Bindable) -> dict[str, Any]:
    """Return a tool in the form for providers; a dict stays as it is, except a JSON schema."""
    if isinstance(tool, dict) and "title" not in tool:
        return tool
    return convert_to_openai_tool(tool)
