"""How far a conversation has come, whoever has the floor in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage

MOVED = "Conversation transferred to "
NOT_EXECUTED = "Not executed: "
_HANDED_OVER = '{"accepted":'
"""How the answer to a handoff in a team begins."""
_NOTICES = re.compile(
    r"^\[(?:[^\]\n]* handed over to [^\]\n]*|Earlier in this conversation: [^\]\n]*)\]$"
    r"|^\[Context from [^\]\n]*\]:.*?(?=\n\n\[|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""What a team's participants are told of handoffs."""


def progress(messages: Sequence[AnyMessage]) -> str:
    """Tell apart how far a conversation has come: by the last thing that was said or found out.

    That it has moved on, why, and what was told along with it, is neither.
    """
    for message in reversed(messages):
        text = str(message.text)
        if isinstance(message, ToolMessage):
            text = "" if text.startswith(_MOVES) else text
        else:
            text = _NOTICES.sub("", text).strip()
        if text:
            return _digest(f"{message.type} {text}")
    return ""


def work_of(messages: Sequence[AnyMessage]) -> str:
    """Tell apart what tools were called for, and have found out or done: "" where it is nothing.

    "ok" is what many a tool says of whatever it was given, so that this counts as well.
    """
    asked = {c["id"]: c for m in messages if isinstance(m, AIMessage) for c in m.tool_calls}
    done = [m for m in messages if isinstance(m, ToolMessage) and m.status == "success"]
    told = [(asked.get(m.tool_call_id), str(m.text)) for m in done]
    found = [[_call(call), text] for call, text in told if not text.startswith(_MOVES)]
    return _digest(json.dumps(found)) if found else ""


def _call(call: ToolCall | None) -> str:
    if call is None:
        return ""
    return json.dumps([call["name"], call["args"]], sort_keys=True, default=str)


_MOVES = (MOVED, NOT_EXECUTED, _HANDED_OVER)


def _digest(text: str) -> str:
    # A provider may cut a character in two, and half of one has no encoding of its own.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
