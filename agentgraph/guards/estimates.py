"""About how many tokens a model call uses, without a tokenizer.

This is asked before each call, and looks at the whole conversation: it has to be quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar
from weakref import ReferenceType, ref

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

__all__ = ["estimate"]

_UNKNOWN_OUTPUT = 1_024
_BYTES_PER_TOKEN = 3
_PER_MESSAGE = 8
_PER_MEDIUM = 2_000

_as_json = json.JSONEncoder(ensure_ascii=False, default=str, skipkeys=True).encode


def estimate(
    messages: Sequence[BaseMessage], tools: Sequence[object] = (), max_output: int | None = None
) -> int:
    """Return about how many tokens a call uses at most, without a tokenizer."""
    output = _UNKNOWN_OUTPUT if max_output is None else max_output
    return output + sum(map(_size_of_message, messages)) + sum(map(_size_of_tool, tools))


def _size_of_message(message: BaseMessage) -> int:
    content = message.content
    if type(content) is str and content.isascii():  # as most are, of which there are many
        size = _PER_MESSAGE - (-len(content) // _BYTES_PER_TOKEN)
    else:
        size = _PER_MESSAGE + (_tokens(content) if isinstance(content, str) else _size_of(content))
    if message.name:
        size += _tokens(message.name)
    if isinstance(message, AIMessage) and message.tool_calls:
        size += _remembered(message, message.tool_calls, _calls_of)
    return size


def _size_of(parts: Iterable[str | dict[object, object]]) -> int:
    return sum(_tokens(part) if isinstance(part, str) else _size_of_block(part) for part in parts)


def _size_of_block(block: Mapping[object, object]) -> int:
    kind = block.get("type")
    if isinstance(kind, str) and kind.startswith(("image", "audio", "input_", "video", "file")):
        # Its base64 text would count as hundreds of thousands of tokens, and deny the call.
        return _PER_MEDIUM
    return _tokens(_as_json(block))


T = TypeVar("T")

_sizes: dict[int, tuple[ReferenceType[object], object, int]] = {}
"""What was written out to be measured, by the ids of living things, and the part that was."""


def _remembered(thing: T, part: object, written: Callable[[T], str]) -> int:
    """Return the size of what a thing holds: to write out schemas and arguments takes long."""
    known = _sizes.get(id(thing))
    if known is not None and known[0]() is thing and known[1] is part:
        return known[2]
    size, key = _tokens(written(thing)), id(thing)
    with suppress(TypeError):  # a dict, a tool of the provider's, takes no reference
        _sizes[key] = ref(thing, lambda _: _sizes.pop(key, None)), part, size
    return size


def _size_of_tool(tool: object) -> int:
    return _PER_MESSAGE + _remembered(tool, None, _specified)


def _calls_of(message: AIMessage) -> str:
    return repr(message.tool_calls)  # as long as JSON, and much quicker


def _specified(tool: object) -> str:
    try:
        return _as_json(tool if isinstance(tool, Mapping) else convert_to_openai_tool(tool))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(tool)


def _tokens(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES_PER_TOKEN)
