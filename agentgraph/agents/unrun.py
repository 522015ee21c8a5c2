"""Calls that are answered although nothing ran for them: they may be made for ever, too."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import InvalidToolCall, ToolCall, ToolMessage

from agentgraph.sentry import UnrunCall, on_duty

__all__ = ["tell_unrun"]


async def tell_unrun(
    calls: Iterable[ToolCall | InvalidToolCall], answers: Iterable[ToolMessage], message_id: str
) -> None:
    """Tell whoever is on duty which of a message's calls were answered, and how."""
    sentry = on_duty()
    if sentry is None:
        return
    by_id = {call["id"] or "": call for call in calls}
    for told in answers:
        call = by_id[told.tool_call_id]
        failed = told.status == "error"
        await sentry.unrun(UnrunCall(told.name or "", call["args"], message_id, told.text, failed))
