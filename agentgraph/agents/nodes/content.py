"""The content of a model's message: citations and the provider's own tool calls, in one form.

Providers differ in their content blocks; LangChain's `content_blocks` gives them one form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage


@dataclass(frozen=True, slots=True)
class Citation:
    """A source that a text names."""

    url: str
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool that the provider has run itself."""

    id: str
    tool: str
    args: dict[str, object]


def citations_of(message: AIMessage) -> list[Citation]:
    """Return the sources that a message names, each once, in their order."""
    citations = {
        str(note["url"]): Citation(
            str(note["url"]), str(note.get("title") or ""), str(note.get("cited_text") or "")
        )
        for block in _blocks(message)
        for note in block.get("annotations") or ()
        if isinstance(note, dict) and note.get("url")
    }
    return list(citations.values())


def native_calls_of(message: AIMessage) -> list[NativeCall]:
    """Return the calls of the provider's own tools that a message reports."""
    return [
        NativeCall(str(block.get("id") or ""), str(block.get("name") or ""), _args(block))
        for block in _blocks(message)
        if block.get("type") == "server_tool_call"
    ]


def _args(block: dict[str, Any]) -> dict[str, object]:
    args = block.get("args")
    return args if isinstance(args, dict) else {}


def _blocks(message: AIMessage) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, list):  # a plain string has no such blocks
        yield from (dict(block) for block in message.content_blocks)
