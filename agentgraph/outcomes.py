"""What a tool may return to decide who goes on, and what else it decides for its round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from langchain_core.messages.tool import ToolOutputMixin
from typing_extensions import TypedDict

__all__ = [
    "Finish",
    "Handoff",
    "Note",
    "NotesState",
    "collecting",
    "merge_notes",
    "noted",
    "take_note",
]


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


class Note(TypedDict, total=False):
    """One of them; its key is the same whenever the call runs again."""

    key: str
    call_id: str
    kind: Literal["set", "delete", "handoff", "rejected", "finish"]
    name: str
    value: Any


def merge_notes(left: Sequence[Note], right: Sequence[Note]) -> list[Note]:
    """Add what is new; idempotent, because notes pass through nested graphs and come back."""
    known = {note["key"] for note in left}
    return [*left, *(note for note in right if note["key"] not in known)]


class NotesState(TypedDict, total=False):
    """The channel that a graph needs to collect notes."""

    notes: Annotated[list[Note], merge_notes]


_notes: ContextVar[list[Note] | None] = ContextVar("agentgraph_notes", default=None)


@contextmanager
def collecting(into: list[Note] | None) -> Iterator[None]:
    """Collect what is noted in here, also by threads begun in here; None refuses it."""
    token = _notes.set(into)
    try:
        yield
    finally:
        _notes.reset(token)


def noted() -> list[Note] | None:
    """Return where to note something, None outside of a team's tools."""
    return _notes.get()


def take_note(note: Note) -> bool:
    """Note something; False where nobody collects it."""
    notes = _notes.get()
    if notes is None:
        return False
    notes.append(note)
    return True
