"""Estimates of how many tokens a model call uses, without a tokenizer.

They err on the high side, with three bytes a token. An estimate is made before each call, and
conversations grow, so it has to be quick.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import is_
from typing import Any
from weakref import ReferenceType, ref

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic_core import to_json

_UNKNOWN_OUTPUT = 1_024
_BYTES_PER_TOKEN = 3
_MODELS = ("ai", "AIMessageChunk")
_TEXT = frozenset((str,))
_PER_MESSAGE = 8 * _BYTES_PER_TOKEN
_PER_MEDIUM = 2_000 * _BYTES_PER_TOKEN

_as_json = json.JSONEncoder(ensure_ascii=False, default=str, skipkeys=True).encode


def estimate(
    messages: Sequence[BaseMessage], tools: Sequence[object] = (), max_output: int | None = None
) -> int:
    """Return about how many tokens a call uses at most: those it sends and may write."""
    output = _UNKNOWN_OUTPUT if max_output is None else max_output
    return output + _tokens(_bytes_of(messages) + sum(map(_bytes_of_tool, tools)))


class Estimates:
    """Estimates the calls of a run; of a growing conversation, it measures only the new messages.

    It remembers one conversation, the last. Where agents that run in parallel share it, each change
    from one agent to another measures a whole conversation.
    """

    def __init__(self) -> None:
        self._conversation: Sequence[BaseMessage] = ()
        """The messages that were measured last, without the system prompt, which changes."""
        self._bytes = 0
        self._tools: Sequence[object] = ()
        self._bytes_of_tools = 0
        self.most_written = 0
        """The tokens of the longest answer so far."""

    @property
    def likely_output(self) -> int:
        """Return how much a model is assumed to write that does not say how much it may."""
        return max(self.most_written, _UNKNOWN_OUTPUT)

    def of(self, messages: Sequence[BaseMessage], tools: Sequence[object], max_output: int) -> int:
        """Return about how many tokens a call uses at most."""
        has_prompt = bool(messages) and isinstance(messages[0], SystemMessage)
        prompt = _bytes_of(messages[:1]) if has_prompt else 0
        conversation = messages[has_prompt:]
        old_length = len(self._conversation)
        if old_length > len(conversation) or not all(map(is_, self._conversation, conversation)):
            old_length = self._bytes = 0
        self._bytes += _bytes_of(conversation[old_length:])
        self._conversation = conversation
        if len(tools) != len(self._tools) or not all(map(is_, self._tools, tools)):
            self._tools, self._bytes_of_tools = [*tools], sum(map(_bytes_of_tool, tools))
        return max_output + _tokens(self._bytes + prompt + self._bytes_of_tools)


def _bytes_of(messages: Sequence[BaseMessage]) -> int:
    """Measure messages all at once: a conversation that was just loaded has many new ones."""
    contents: list[Any] = [message.content for message in messages]
    if _TEXT.issuperset(map(type, contents)):
        contents = ["".join(contents)]
    size = _PER_MESSAGE * len(messages) + sum(map(_bytes_of_content, contents))
    size += sum(map(len, [message.name for message in messages if message.name]))
    # By its type and not by `isinstance`, which is slow for abstract classes.
    models: list[Any] = [message for message in messages if message.type in _MODELS]
    return size + _bytes_of_calls([m.tool_calls for m in models if m.tool_calls])


def _bytes_of_calls(calls: Sequence[object]) -> int:
    if not calls:
        return 0
    try:
        # Without the brackets and commas around them, so that parts add up to the whole.
        return len(to_json(calls, fallback=repr)) - len(calls) - 1
    except ValueError:  # a text that no encoding has
        return sum(_bytes_of_content(repr(part)) for part in calls)


def _bytes_of_content(content: str | Sequence[str | dict[object, object]]) -> int:
    if isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode("utf-8", "surrogatepass"))
    return sum(
        _bytes_of_content(part) if isinstance(part, str) else _bytes_of_block(part)
        for part in content
    )


def _bytes_of_block(block: Mapping[object, object]) -> int:
    kind = block.get("type")
    if isinstance(kind, str) and kind.startswith(("image", "audio", "input_", "video", "file")):
        # Its base64 text would count as hundreds of thousands of tokens, and deny the call.
        return _PER_MEDIUM
    return _bytes_of_content(_as_json(block))


_tool_sizes: dict[int, tuple[ReferenceType[object], int]] = {}
"""The sizes of the living tools, by their ids: it takes long to write out a schema."""


def _bytes_of_tool(tool: object) -> int:
    entry = _tool_sizes.get(id(tool))
    if entry is not None and entry[0]() is tool:
        return entry[1]
    size, key = _PER_MESSAGE + _bytes_of_content(_json_of_tool(tool)), id(tool)
    with suppress(TypeError):  # a tool of the provider is a dict, which takes no weak reference
        _tool_sizes[key] = ref(tool, lambda _: _tool_sizes.pop(key, None)), size
    return size


def _json_of_tool(tool: object) -> str:
    try:
        return _as_json(tool if isinstance(tool, Mapping) else convert_to_openai_tool(tool))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(tool)


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)
