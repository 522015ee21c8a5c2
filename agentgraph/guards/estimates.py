"""About how many tokens a model call uses, without a tokenizer and in a time that does not grow.

A conversation is asked about again with each step, and only its end is new: what a message or a
tool was found to hold is remembered for as long as it lives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Generic, TypeVar
from weakref import ReferenceType, ref

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

__all__ = ["estimate"]

_UNKNOWN_OUTPUT = 1_024
_BYTES_PER_TOKEN = 3
_PER_MESSAGE = 8
_PER_MEDIUM = 2_000
_NEW = -1

_as_json = json.JSONEncoder(ensure_ascii=False, default=str, skipkeys=True).encode

T = TypeVar("T")


def estimate(
    messages: Sequence[BaseMessage], tools: Sequence[object] = (), max_output: int | None = None
) -> int:
    """Return about how many tokens a call uses at most, without a tokenizer."""
    output = _UNKNOWN_OUTPUT if max_output is None else max_output
    return output + _messages.total(messages) + _tools.total(tools)


class _Remembered(Generic[T]):
    """The sizes of living things, each measured again once it holds something else."""

    def __init__(self, measure: Callable[[T], int], held: Callable[[T], object]) -> None:
        self._measure = measure
        self._held = held
        # Whoever dies takes its entries along: a known id is that of the thing that was measured.
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, object] = {}
        self._living: dict[int, ReferenceType[T]] = {}

    def total(self, things: Sequence[T]) -> int:
        """Add up the sizes, without a look at each that is known."""
        ids, parts = list(map(id, things)), list(map(self._held, things))
        sizes = [*map(self._sizes.get, ids, repeat(_NEW))]
        while _NEW in sizes:
            new = sizes.index(_NEW)
            sizes[new] = self._measured(things[new], parts[new])
        if list(map(self._parts.get, ids)) != parts:
            for at, part in enumerate(parts):
                if self._parts.get(ids[at]) is not part:
                    sizes[at] = self._measured(things[at], part)
        return sum(sizes)

    def _measured(self, thing: T, part: object) -> int:
        size = self._measure(thing)
        with suppress(TypeError):  # a dict, a tool of the provider's, takes no reference
            self._living[id(thing)] = ref(thing, partial(self._forget, id(thing)))
            self._sizes[id(thing)], self._parts[id(thing)] = size, part
        return size

    def _forget(self, identity: int, gone: ReferenceType[T]) -> None:
        if self._living.get(identity) is gone:
            for entries in (self._living, self._sizes, self._parts):
                entries.pop(identity, None)


def _size_of_message(message: BaseMessage) -> int:
    size = _PER_MESSAGE + _tokens(message.name or "")
    for part in [message.content] if isinstance(message.content, str) else message.content:
        size += _size_of_part(part)
    if isinstance(message, AIMessage) and message.tool_calls:
        size += _tokens(_as_json(message.tool_calls))
    return size


def _size_of_part(part: str | dict[object, object]) -> int:
    if isinstance(part, str):
        return _tokens(part)
    kind = part.get("type")
    if isinstance(kind, str) and kind.startswith(("image", "audio", "input_", "video", "file")):
        # Its base64 text would count as hundreds of thousands of tokens, and deny the call.
        return _PER_MEDIUM
    return _tokens(_as_json(part))


def _size_of_tool(tool: object) -> int:
    return _PER_MESSAGE + _tokens(_specified(tool))


_messages = _Remembered(_size_of_message, attrgetter("content"))
_tools = _Remembered(_size_of_tool, type)  # which stays as it is, unlike what a message says


def _specified(tool: object) -> str:
    try:
        return _as_json(tool if isinstance(tool, Mapping) else convert_to_openai_tool(tool))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(tool)


def _tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return math.ceil(size / _BYTES_PER_TOKEN)
