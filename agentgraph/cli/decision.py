"""What a human types, as the decision that a run waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agentgraph.agents.reply import Interrupt

__all__ = ["advice_for", "decision_of"]


def decision_of(typed: str, question: Interrupt) -> object:
    """Return the decision: JSON where it is JSON, else the text.

    `approve` and `reject [reason]` answer what LangChain's HumanInTheLoopMiddleware asks.
    """
    word, _, reason = typed.strip().partition(" ")
    if (count := _actions(question.payload)) is not None and word.lower() in ("approve", "reject"):
        one = {"type": word.lower()}
        if one["type"] == "reject" and reason.strip():
            one["message"] = reason.strip()
        return one if count == 0 else {"decisions": [one] * count}
    if (question.response_schema or {}).get("type") == "string":
        return typed
    try:
        return json.loads(typed, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return typed


def advice_for(question: Interrupt) -> str:
    """Say what can be typed."""
    if _actions(question.payload) is not None:
        return "approve, reject [reason], or JSON"
    return "text, or JSON"


def _actions(payload: object) -> int | None:
    """Count the actions to be approved: 0 is one that is asked for by itself, None is none."""
    if not isinstance(payload, Mapping):
        return None
    if payload.get("type") == "tool_approval":
        return 0
    requests = payload.get("action_requests")
    return len(requests) if isinstance(requests, list | tuple) and requests else None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
