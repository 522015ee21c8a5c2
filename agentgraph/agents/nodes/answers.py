"""The answers to tool calls that agentgraph writes itself, and how they are reported."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.messages import InvalidToolCall, ToolCall, ToolMessage

from agentgraph.agents.nodes.level import Level
from agentgraph.interception import UnrunCall, on_duty
from agentgraph.stream import ToolResponseEvent, emit

TRANSFER_MADE = "Conversation transferred to "
NOT_EXECUTED = "Not executed: "


def answer(call_id: str, tool: str, text: str, *, failed: bool = False) -> ToolMessage:
    """Answer a call; the id follows from the call's, so that a later answer replaces this one."""
    return ToolMessage(
        text,
        id=f"answer_{call_id}",
        tool_call_id=call_id,
        name=tool,
        status="error" if failed else "success",
    )


def refusal(call_id: str, tool: str, reason: str) -> ToolMessage:
    """Answer a call that was not executed, and say why."""
    return answer(call_id, tool, f"{NOT_EXECUTED}{reason}", failed=True)


def transfer_text(target: str, reason: str, summary: str) -> str:
    """Return the answer to a transfer: where the conversation is now, and why."""
    lines = [f"{TRANSFER_MADE}{target}"]
    lines += [f"Reason: {reason}"] if reason else []
    lines += [f"Summary: {summary}"] if summary else []
    return "\n".join(lines)


async def emit_answer(level: Level, message: ToolMessage) -> None:
    """Emit the event that a call has its answer."""
    await emit(
        ToolResponseEvent(
            agent=level.path,
            tool=message.name or "",
            content=str(message.text),
            call_id=message.tool_call_id,
            status=message.status,
        )
    )


async def report_unrun(
    calls: Iterable[ToolCall | InvalidToolCall], answers: Iterable[ToolMessage], message_id: str
) -> None:
    """Report to the guards which calls were answered without anything having run.

    A model may make such a call again and again, and no tool run would ever show it.
    """
    sentry = on_duty()
    if sentry is None:
        return
    by_id = {call["id"] or "": call for call in calls}
    for message in answers:
        call = by_id[message.tool_call_id]
        failed = message.status == "error"
        await sentry.unrun(
            UnrunCall(message.name or "", call["args"], message_id, message.text, failed)
        )
