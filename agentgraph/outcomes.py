"""What a tool may return to decide who goes on."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.messages.tool import ToolOutputMixin

__all__ = ["Finish", "Handoff"]

# ToolOutputMixin makes LangChain's tools return these as they are; without it they become text.


@dataclass(frozen=True, slots=True)
class Handoff(ToolOutputMixin):
    """Pass the conversation to a named agent."""

    target: str
    reason: str = ""
    summary: str = ""
    next_phase: str | None = None
    channel_escalation: str = "same"


@dataclass(frozen=True, slots=True)
class Finish(ToolOutputMixin):
    """End the turn, in a team the session; the text, where there is one, is the answer."""

    text: str = ""
    reason: str = "finished"
