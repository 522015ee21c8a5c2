"""Check that a provider would accept a history of messages.

Providers refuse histories in which tool calls and their answers do not match. So does
`ScriptedModel`: tests with a model that accepts everything would not notice such a history.
"""

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
    """Raise `IllegalHistory` if a strict provider would refuse these messages.

    Each call of the assistant is answered once, right after it, and its id is used once; a system
    message is the first; the last message is not the assistant's.
    """
    used_ids: set[str] = set()
    open_ids: set[str] = set()
    for index, message in enumerate(messages):
        if fault := _place_fault(message, index, open_ids) or _id_fault(message, used_ids):
            raise IllegalHistory(f"Message {index} ({message.type}) {fault}.")
        if isinstance(message, ToolMessage):
            open_ids.remove(message.tool_call_id)
        elif isinstance(message, AIMessage):
            open_ids = {call["id"] or "" for call in calls_of(message)}
            used_ids |= open_ids
    if open_ids:
        raise IllegalHistory(f"The history ends before the answer to {sorted(open_ids)}.")
    if not messages or isinstance(messages[-1], AIMessage):
        end = "ends with the assistant" if messages else "is empty"
        raise IllegalHistory(f"The history {end}.")


def _place_fault(message: BaseMessage, index: int, open_ids: set[str]) -> str | None:
    """Return why a message cannot stand here."""
    if isinstance(message, ToolMessage):
        is_answer = message.tool_call_id in open_ids
        return None if is_answer else "answers no open call of the assistant right before it"
    if open_ids:
        return f"comes before the answer to {sorted(open_ids)}"
    if isinstance(message, RemoveMessage):
        return "is an instruction to a reducer, not to a model"
    if isinstance(message, SystemMessage) and index:
        return "is a system message, which can only be the first"
    return None


def _id_fault(message: BaseMessage, used_ids: set[str]) -> str | None:
    """Return what is wrong with the ids of a message's calls."""
    ids = [call["id"] for call in calls_of(message)] if isinstance(message, AIMessage) else []
    if not all(ids):
        return "has a call without an id"
    again = [call_id for call_id in ids if call_id in used_ids or ids.count(call_id) > 1]
    return f"uses the call id {again[0]} again" if again else None
