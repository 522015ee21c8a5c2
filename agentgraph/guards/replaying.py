"""What an action has led to beside its result, kept so that a replay leads to it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from langchain_core.messages import ToolMessage

from agentgraph.guards.saga import Begun
from agentgraph.notes import Note, take_note
from agentgraph.outcomes import Finish, Handoff

__all__ = ["beside_of", "given_again"]


def beside_of(result: object, notes: Sequence[Note]) -> dict[str, Any]:
    """Return what a tool has noted, and who goes on after it."""
    beside: dict[str, Any] = {"notes": list(notes)} if notes else {}
    decided = result.artifact if isinstance(result, ToolMessage) else None
    if isinstance(decided, Handoff):
        beside["handoff"] = asdict(decided)
    elif isinstance(decided, Finish):
        beside["finish"] = asdict(decided)
    return beside


def given_again(begun: Begun, tool: str) -> ToolMessage:
    """Answer a call with what came of it before."""
    beside: Mapping[str, Any] = begun.entry.beside if begun.entry is not None else {}
    for note in beside.get("notes", ()):
        take_note(cast(Note, note))
    decided: Handoff | Finish | None = None
    if "handoff" in beside:
        decided = Handoff(**beside["handoff"])
    elif "finish" in beside:
        decided = Finish(**beside["finish"])
    return ToolMessage(str(begun.result), tool_call_id="", name=tool, artifact=decided)
