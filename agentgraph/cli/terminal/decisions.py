"""What a human types, as the decision that a run waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agentgraph.agents.run.reply import Interrupt


def decision_of(typed: str, question: Interrupt) -> object:
    """Return the decision: JSON where it is JSON, else the text.

    `approve` and `reject [reason]` answer what LangChain's HumanInTheLoopMiddleware asks, and they
    and `edit TEXT` and `respond TEXT` what guards ask.
    """
    word, _, rest = typed.strip().partition(" ")
    form = _form(word.lower(), rest.strip(), is_guards=_asked_by_guards(question.payload))
    if (count := _actions(question.payload)) is not None and form is not None:
        return form if count == 0 else {"decisions": [form] * count}
    if (question.response_schema or {}).get("type") == "string":
        return typed
    try:
        return json.loads(typed, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return typed


def advice_for(question: Interrupt) -> str:
    """Say what can be typed."""
    if _asked_by_guards(question.payload):
        return "approve, reject [reason], edit TEXT, respond TEXT, or JSON"
    if has_short_form(question):
        return "approve, reject [reason], or JSON"
    return "text, or JSON"


def has_short_form(question: Interrupt) -> bool:
    """Tell whether there are words for the decision, so that nobody has to read its schema."""
    return _actions(question.payload) is not None


def _form(word: str, rest: str, *, is_guards: bool) -> dict[str, str] | None:
    match word:
        case "approve":
            return {"type": word}
        case "reject":
            return {"type": word, "message": rest} if rest else {"type": word}
        case "respond" if is_guards and rest:
            return {"type": word, "message": rest}
        case "edit" if is_guards and rest:
            return {"type": word, "edited": rest}
        case _:
            return None


def _asked_by_guards(payload: object) -> bool:
    return (
        isinstance(payload, Mapping)
        and payload.get("type") == "escalation"
        and "allowed" in payload
    )


def _actions(payload: object) -> int | None:
    """Count the actions to be approved: 0 is one that is asked for by itself, None is none."""
    if not isinstance(payload, Mapping):
        return None
    if payload.get("type") == "tool_approval" or _asked_by_guards(payload):
        return 0
    requests = payload.get("action_requests")
    return len(requests) if isinstance(requests, list | tuple) and requests else None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
