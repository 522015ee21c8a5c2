"""What a run asks a human, as the log has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphInterrupt
from langgraph.types import StateSnapshot
from pydantic_core import from_json, to_json

from agentgraph.errors import ConfigurationError
from agentgraph.routing.values import short
from agentgraph.sessions.state.payload import canonical, encoded

_SERDE = JsonPlusSerializer()

_LONGEST = 100_000
_SHOWN = 2_000


def questions(snapshot: StateSnapshot, round: int) -> list[Mapping[str, Any]]:
    """Return what a run's interrupts ask, each with whose it is."""
    return [
        {
            "id": asked.id,
            "speaker": task.name,
            "payload": _told(asked.value),
            "response_schema": _told(getattr(asked, "response_schema", None)),
            "round": round,
        }
        for task in snapshot.tasks
        for asked in task.interrupts
    ]


def is_storable(asked: GraphInterrupt) -> bool:
    """Tell whether a checkpoint can hold what is asked: without one nobody could be answered."""
    try:
        _SERDE.dumps_typed(asked.args)
    except Exception:  # of whatever is in there
        return False
    return True


def _told(payload: object) -> Any:
    """Return a question as JSON has it; of one that no envelope holds, the beginning."""
    try:
        value = from_json(to_json(payload, fallback=str, inf_nan_mode="null"))
        text = encoded(value)
    except (ValueError, RecursionError):  # what cannot even be written
        return {"clipped": short(payload)}
    try:
        canonical({"payload": value}, "a question")
    except ConfigurationError:
        return {"clipped": text[:_SHOWN]}
    return value if len(text) <= _LONGEST else {"clipped": text[:_SHOWN]}
