"""What a run asks a human, as the log has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.types import StateSnapshot
from pydantic_core import from_json, to_json

from agentgraph.sessions.payload import encoded

__all__ = ["questions"]

_LONGEST = 100_000


def questions(snapshot: StateSnapshot, round: int) -> list[Mapping[str, Any]]:
    """Return what a run's interrupts ask, each with whose it is."""
    return [
        {
            "id": asked.id,
            "speaker": task.name,
            "payload": _told(asked.value),
            "response_schema": getattr(asked, "response_schema", None),
            "round": round,
        }
        for task in snapshot.tasks
        for asked in task.interrupts
    ]


def _told(payload: object) -> Any:
    """Return a question as JSON has it; of one that no envelope holds, the beginning."""
    value = from_json(to_json(payload, fallback=str, inf_nan_mode="null"))
    text = encoded(value)
    return value if len(text) <= _LONGEST else {"clipped": text[:2_000]}
