"""Messages as providers accept them: whole calls with legal names, and text that can be encoded.

A model may write arguments that are no JSON object, or break off in the middle of them; many
providers refuse each later request that repeats such a call. The stored message keeps what the
model wrote, and only the copy that is sent is made whole, in the provider's content blocks too.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from langchain_core.messages import AIMessage, AnyMessage, InvalidToolCall, ToolCall
from langchain_core.utils.json import parse_partial_json

LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
"""The names of tools that providers accept."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_THOUGHTS = ("reasoning", "thinking", "redacted_thinking")
_TEXTS = ("text", "output_text", "plaintext")
_CALL_BLOCKS = ("tool_use", "tool_call", "invalid_tool_call", "tool_call_chunk", "function_call")
"""The types of content blocks that repeat a call: Anthropic's, LangChain's and OpenAI's."""


def with_whole_calls(message: AIMessage) -> AIMessage:
    """Return a message whose calls can be sent; the same message where they all can be.

    Malformed calls become legal ones, after the others. Their arguments are the part that can be
    read, or none. Each content block that repeats a call gets the arguments of that call.
    """
    whole = [_whole_call(call) for call in message.tool_calls]
    whole += [_whole_call(call) for call in message.invalid_tool_calls]
    content = message.content
    if isinstance(content, list):
        content = _whole_blocks(content, {str(call["id"]): call for call in whole})
    if whole == message.tool_calls and content == message.content:
        return message
    return message.model_copy(
        update={
            "tool_calls": whole,
            "invalid_tool_calls": [],
            "content": content,
            # Some clients read the raw calls in here in place of the others.
            "additional_kwargs": {
                k: v for k, v in message.additional_kwargs.items() if k != "tool_calls"
            },
        }
    )


def legal_name(name: str | None) -> str:
    """Return a tool's name in the characters that providers accept."""
    if name and LEGAL_NAME.fullmatch(name):
        return name
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name or "")[:128] or "unknown_tool"


def without_text(message: AIMessage) -> AIMessage:
    """Return a message that has calls without the text beside them."""
    content = message.content
    blocks = content if isinstance(content, list) else []
    return message.model_copy(update={"content": [b for b in blocks if not _is_text(b)] or ""})


def with_call_ids(message: AIMessage, new_ids: Mapping[int, str]) -> AIMessage:
    """Replace the ids of calls, by the positions of the calls, in the content blocks too.

    The malformed calls come after the others.
    """
    calls = [*message.tool_calls, *message.invalid_tool_calls]
    new_calls = [{**call, "id": new_ids.get(i, call["id"])} for i, call in enumerate(calls)]
    valid_count = len(message.tool_calls)
    ids_by_old: dict[str, deque[str]] = {}
    for old, new in zip(calls, new_calls, strict=True):
        ids_by_old.setdefault(old["id"] or "", deque()).append(str(new["id"]))
    content = message.content
    if isinstance(content, list):
        content = [_with_call_id(block, ids_by_old) for block in content]
    return message.model_copy(
        update={
            "tool_calls": new_calls[:valid_count],
            "invalid_tool_calls": new_calls[valid_count:],
            "content": content,
        }
    )


def with_sendable_text(message: AnyMessage) -> AnyMessage:
    """Return a message without blocks of empty text, and without halves of characters.

    Returns the same message where it has neither. Half of a surrogate pair has no encoding.
    """
    content = message.content
    if isinstance(content, str):
        if is_sendable(content):
            return message
        return message.model_copy(update={"content": _encodable(content)})
    blocks = [_encodable_block(block) for block in content if not is_blank_block(block)]
    return message if blocks == content else message.model_copy(update={"content": blocks or ""})


def is_sendable(text: str) -> bool:
    """Tell whether a text can be encoded: it has no half of a surrogate pair."""
    return _SURROGATES.search(text) is None


def is_blank_block(block: str | dict[Any, Any]) -> bool:
    """Tell whether a content block is an empty text."""
    if isinstance(block, str):
        return not block.strip()
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def is_thought(block: str | dict[Any, Any]) -> bool:
    """Tell whether a content block is a thought: thoughts alone are no answer to a provider."""
    return isinstance(block, dict) and block.get("type") in _THOUGHTS


def _is_text(block: str | dict[Any, Any]) -> bool:
    return isinstance(block, str) or block.get("type") in _TEXTS


def _encodable(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _encodable_block(block: Any) -> Any:
    text = block if isinstance(block, str) else block.get("text")
    if not isinstance(text, str) or not _SURROGATES.search(text):
        return block
    return _encodable(text) if isinstance(block, str) else {**block, "text": _encodable(text)}


def _with_call_id(block: str | dict[str, Any], new_ids: Mapping[str, deque[str]]) -> Any:
    # Anthropic repeats the call id in its content blocks, OpenAI's `responses/v1` as `call_id`.
    for key in ("call_id", "id"):
        old = block.get(key) if isinstance(block, dict) else None
        if old and new_ids.get(old):
            return {**block, key: new_ids[old].popleft()}  # type: ignore[dict-item]  # a dict
    return block


def _whole_call(call: ToolCall | InvalidToolCall) -> ToolCall:
    name, args = legal_name(call["name"]), call["args"]
    if isinstance(args, dict) and name == call["name"]:
        return cast("ToolCall", call)
    return ToolCall(name=name, args=_whole_args(args), id=call["id"], type="tool_call")


def _whole_args(args: object) -> dict[str, Any]:
    """Return arguments as an object: the part of a text that can be read, or nothing."""
    if isinstance(args, str):
        try:
            args = parse_partial_json(args)
        except ValueError:
            return {}
    return args if isinstance(args, dict) else {}


def _whole_blocks(content: list[Any], calls: Mapping[str, ToolCall]) -> list[Any]:
    """Give each block that repeats a call its arguments; leave out pieces and calls of no call."""
    whole: list[Any] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in _CALL_BLOCKS:
            call = calls.get(str(block.get("call_id") or block.get("id")))
            if call is not None:
                whole.append(_whole_block(block, call))
        elif kind != "input_json_delta":
            whole.append(block)
    return whole


def _whole_block(block: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    if block["type"] == "function_call":
        if block.get("name") == call["name"] and _is_object(block.get("arguments")):
            return block
        return {**block, "name": call["name"], "arguments": json.dumps(call["args"])}
    key = "input" if block["type"] == "tool_use" else "args"
    kept = {k: v for k, v in block.items() if k not in ("partial_json", "error", "index")}
    kind = block["type"] if key == "input" else "tool_call"
    fits = isinstance(block.get(key), dict) and block.get("name") == call["name"]
    if fits and kind == block["type"] and "partial_json" not in block:
        return block
    return {**kept, "type": kind, "name": call["name"], key: call["args"]}


def _is_object(arguments: object) -> bool:
    try:
        return isinstance(arguments, str) and isinstance(json.loads(arguments), dict)
    except ValueError:
        return False
