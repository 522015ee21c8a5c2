"""Decisions as a human types them: `approve`, `reject too expensive`, JSON, or plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agentgraph.outcomes import Interrupt


def decision_of(line: str, question: Interrupt) -> object:
    """Return the decision that a line means: JSON if it is valid JSON, else the text.

    `approve` and `reject [reason]` answer a question of LangChain's HumanInTheLoopMiddleware; these
    and `edit TEXT` and `respond TEXT` answer a question of the guards.
    """
    word, _, rest = line.strip().partition(" ")
    decision = _short_form(word.lower(), rest.strip(), by_guards=_is_escalation(question.payload))
    count = _action_count(question.payload)
    if count is not None and decision is not None:
        return decision if count == 0 else {"decisions": [decision] * count}
    if (question.response_schema or {}).get("type") == "string":
        return line
    try:
        return json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return line


def advice_for(question: Interrupt) -> str:
    """Return a hint which decisions can be typed."""
    if _is_escalation(question.payload):
        return "approve, reject [reason], edit TEXT, respond TEXT, or JSON"
    if has_short_form(question):
        return "approve, reject [reason], or JSON"
    return "text, or JSON"


def has_short_form(question: Interrupt) -> bool:
    """Tell whether a question has short words as answers, so that its schema need not be shown."""
    return _action_count(question.payload) is not None


def _short_form(word: str, rest: str, *, by_guards: bool) -> dict[str, object] | None:
    """Return the decision for a word and the text after it, None for unknown words."""
    match word:
        case "approve":
            return {"type": word}
        case "reject":
            return {"type": word, "message": rest} if rest else {"type": word}
        case "respond" if by_guards and rest:
            return {"type": word, "message": rest}
        case "edit" if by_guards and rest:
            return {"type": word, "edited": _arguments(rest) or rest}
        case _:
            return None


def _arguments(text: str) -> dict[str, object] | None:
    """Return the arguments of a call that a text has as JSON, None where it has none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _is_escalation(payload: object) -> bool:
    """Tell whether the question comes from the guards."""
    return (
        isinstance(payload, Mapping)
        and payload.get("type") in ("escalation", "tool_approval")
        and "allowed" in payload
    )


def _action_count(payload: object) -> int | None:
    """Return for how many actions LangChain's middleware asks for a decision.

    0 means a single action, whose decision is no list; None means a question of another form.
    """
    if not isinstance(payload, Mapping):
        return None
    if payload.get("type") == "tool_approval" or _is_escalation(payload):
        return 0
    requests = payload.get("action_requests")
    return len(requests) if isinstance(requests, list | tuple) and requests else None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
