"""A message in the pieces in which a provider streams it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk

from agentgraph.testing.calls import Call, calls_of

__all__ = ["chunks_of"]


def chunks_of(message: AIMessage) -> list[AIMessageChunk]:
    """Split a message as a provider streams it; the chunks add up to the message."""
    # A list and a string do not add up, so that the empty content has the type of the rest.
    empty: Any = "" if isinstance(message.content, str) else []
    # LangChain would read the raw calls of older messages as calls once more.
    extras = {k: v for k, v in message.additional_kwargs.items() if k != "tool_calls"}
    last = AIMessageChunk(
        content=empty,
        id=message.id,
        additional_kwargs=extras,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        chunk_position="last",
    )
    return [
        *(AIMessageChunk(content=piece, id=message.id) for piece in _pieces(message.content)),
        *(
            AIMessageChunk(content=empty, id=message.id, tool_call_chunks=[chunk])
            for index, one in enumerate(calls_of(message))
            for chunk in _call_chunks(index, one)
        ),
        last,
    ]


def _pieces(content: str | list[Any]) -> list[Any]:
    if isinstance(content, str):
        return re.findall(r"\s*\S+|\s+", content)
    return [[block] for block in content]


def _call_chunks(index: int, one: Call) -> Iterator[ToolCallChunk]:
    args = one["args"]
    text = args if isinstance(args, str) else json.dumps(args or {})
    half = len(text) // 2
    yield tool_call_chunk(index=index, name=one["name"], args="", id=one["id"])
    yield tool_call_chunk(index=index, args=text[:half])
    yield tool_call_chunk(index=index, args=text[half:])
