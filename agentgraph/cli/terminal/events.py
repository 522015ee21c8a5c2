"""What happens beside the texts of a conversation, as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agentgraph.cli.terminal.text import clip
from agentgraph.stream import Event, GuardEvent, RoutingEvent, ToolResponseEvent, ToolUsageEvent


def happened(event: Event) -> str | None:
    """Return an event as a line, None for one that says nothing of its own."""
    match event:
        case RoutingEvent():
            why = f": {clip(event.reason)}" if event.reason else ""
            return f"{event.source} → {event.target} ({event.kind}{why})"
        case ToolUsageEvent():
            return called(event.agent, event.tool, event.args)
        case ToolResponseEvent():
            failed = " failed" if event.status == "error" else ""
            return f"{event.tool}{failed}: {clip(event.content)}"
        case GuardEvent():
            decided = event.decision
            why = f": {clip(decided['cause'])}" if decided.get("cause") else ""
            return f"guard {decided.get('guard')}: {decided.get('action')}{why}"
        case _:
            return None


def called(agent: str, tool: str, args: Mapping[str, object]) -> str:
    """Return a tool call as a line."""
    given = ", ".join(f"{name}={_short(value)}" for name, value in args.items())
    return f"{agent} calls {tool}({given})"


def named(error: BaseException) -> str:
    """Return an error with its type, as Python does."""
    text = clip(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(value: object) -> str:
    return clip(json.dumps(value, ensure_ascii=False, default=str))
