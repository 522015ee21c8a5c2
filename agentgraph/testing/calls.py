"""The tool calls of a script, well formed or not."""

from __future__ import annotations

import json
from typing import TypeAlias

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.tool import tool_call_chunk

__all__ = ["Call", "bad_call", "call", "calls_of"]

Call: TypeAlias = ToolCall | InvalidToolCall


def call(name: str, /, **args: object) -> ToolCall:
    """Make a tool call; it gets its id when the model makes it."""
    return ToolCall(name=name, args=json.loads(json.dumps(args)), id=None, type="tool_call")


def bad_call(name: str, arguments: str = '{"reason": oops}') -> InvalidToolCall:
    """Make a tool call whose arguments are no JSON object."""
    chunk = tool_call_chunk(name=name, args=arguments, id="probe", index=0)
    if AIMessageChunk(content="", tool_call_chunks=[chunk]).tool_calls:
        raise ValueError(f"LangChain can read these arguments: {arguments!r}")
    return InvalidToolCall(name=name, args=arguments, id=None, error=None, type="invalid_tool_call")


def calls_of(message: AIMessage) -> list[Call]:
    """Return the calls of a message, the malformed ones last."""
    return [*message.tool_calls, *message.invalid_tool_calls]
