"""Which tool the offline model calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langchain_core.messages import ToolCall

from agentgraph.clock import new_id
from agentgraph.models.arguments import arguments_of
from agentgraph.models.tool import Tool
from agentgraph.models.words import stems

__all__ = ["ON_REQUEST", "choose_call"]

# These come with every agent, so that their words must not draw ordinary prompts.
_ASKS_FOR = r"\b(list|show|what|which)\b.*"
ON_REQUEST = {
    name: re.compile(pattern, re.I)
    for name, pattern in {
        "get_time_date": r"\bwhat\b.{0,8} (time|date|day)\b|\b(current|today.?s) (time|date)\b",
        "list_tools_available": rf"{_ASKS_FOR}\btools?\b",
        "list_subagents_available": rf"{_ASKS_FOR}\b(sub-?)?agents?\b",
        "list_intents_available": rf"{_ASKS_FOR}\bintents?\b",
        "get_current_active_agent": r"\b(current|active) agent\b|\bwho am i (talking|speaking)\b",
        "get_supervisor_agent": r"\bwho\b.*\bsupervisor\b",
        "request_help": r"\b(ask|request|call|get)\b.*\b(help|supervisor)\b",
    }.items()
}


def choose_call(prompt: str, tools: Sequence[Tool], *, forced: bool | str) -> ToolCall | None:
    """Call the best tool whose arguments can be filled; of equals, the first."""
    for tool in _ranked(prompt, tools, forced):
        args = arguments_of(tool, prompt)
        if args is not None:
            call_id = f"call_{new_id()[-24:]}"
            return ToolCall(name=tool.name, args=args, id=call_id, type="tool_call")
    return None


def _ranked(prompt: str, tools: Sequence[Tool], forced: bool | str) -> list[Tool]:
    if isinstance(forced, str):
        return [tool for tool in tools if tool.name == forced]
    words = stems(prompt)
    scored = [(tool.score(words), tool) for tool in tools if tool.name not in ON_REQUEST]
    best = sorted(scored, key=lambda pair: -pair[0])
    asked = [t for t in tools if t.name in ON_REQUEST and ON_REQUEST[t.name].search(prompt)]
    return [*(tool for score, tool in best if score or forced), *asked]
