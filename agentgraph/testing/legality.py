"""Which histories a provider takes."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from agentgraph.testing.answers import calls_of


class IllegalHistory(ValueError):
    """A provider would refuse these messages."""


def check_history(messages: Sequence[BaseMessage]) -> None:
    """Raise `IllegalHistory` if a strict provider would refuse these messages."""
    seen: set[str] = set()
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        if fault := _misplaced(message, index, waiting) or _bad_ids(message, seen):
            raise IllegalHistory(f"Message {index} ({message.type}) {fault}.")
        if isinstance(message, ToolMessage):
            waiting.remove(message.tool_call_id)
        elif isinstance(message, AIMessage):
            waiting = {one["id"] or "" for one in calls_of(message)}
            seen |= waiting
    if waiting:
        raise IllegalHistory(f"The history ends before the answer to {sorted(waiting)}.")
    if not messages or isinstance(messages[-1], AIMessage):
        end = "ends with the assistant" if messages else "is empty"
        raise IllegalHistory(f"The history {end}.")


def _misplaced(message: BaseMessage, index: int, waiting: set[str]) -> str | None:
    if isinstance(message, ToolMessage):
        known = message.tool_call_id in waiting
        return None if known else "answers no open call of the assistant right before it"
    if waiting:
        return f"comes before the answer to {sorted(waiting)}"
    if isinstance(message, RemoveMessage):
        return "is an instruction to a reducer, not to a model"
    if isinstance(message, SystemMessage) and index:
        return "is a system message, which can only be the first"
    return None


def _bad_ids(message: BaseMessage, seen: set[str]) -> str | None:
    ids = [one["id"] for one in calls_of(message)] if isinstance(message, AIMessage) else []
    if not all(ids):
        return "has a call without an id"
    again = [one for one in ids if one in seen or ids.count(one) > 1]
    return f"uses the call id {again[0]} again" if again else None
