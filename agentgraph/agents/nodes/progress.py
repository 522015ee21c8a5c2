"""Digests of a conversation's progress, which the guards against loops compare."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage

from agentgraph.agents.nodes.calls import NOT_EXECUTED, TRANSFER_MADE


def progress(messages: Sequence[AnyMessage]) -> str:
    """Return a digest of the last text or tool result, "" where there is none.

    A handoff, its reason and its notices do not count: two agents that only pass a conversation
    back and forth make no progress.
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
    """Return a digest of the calls that succeeded and of their results, "" where there are none.

    The arguments count too: many tools answer "ok" to every call.
    """
    calls = {c["id"]: c for m in messages if isinstance(m, AIMessage) for c in m.tool_calls}
    answers = [m for m in messages if isinstance(m, ToolMessage) and m.status == "success"]
    texts = [(calls.get(m.tool_call_id), str(m.text)) for m in answers]
    results = [[_call_text(call), text] for call, text in texts if not text.startswith(_MOVES)]
    return _digest(json.dumps(results)) if results else ""


def _call_text(call: ToolCall | None) -> str:
    if call is None:
        return ""
    return json.dumps([call["name"], call["args"]], sort_keys=True, default=str)


_HANDOFF_RESULT = '{"accepted":'
"""The beginning of the answer to a handoff in a team."""
_NOTICES = re.compile(
    r"^\[(?:[^\]\n]* handed over to [^\]\n]*|Earlier in this conversation: [^\]\n]*)\]$"
    r"|^\[Context from [^\]\n]*\]:.*?(?=\n\n\[|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""The notices of handoffs in the history of a team's participants."""
_MOVES = (TRANSFER_MADE, NOT_EXECUTED, _HANDOFF_RESULT)


def _digest(text: str) -> str:
    # A provider may cut a surrogate pair in two, and strict UTF-8 cannot encode one half.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
