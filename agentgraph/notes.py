"""What a tool decides beside its answer: kept in the state of its graph, so that a resume has it.

A round of a team commits whole. What its tools set in the context, and where they send the
conversation, is therefore no write of its own: each call notes it, the graph collects the notes of
the calls that have returned, and the round's packet carries what they come to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

__all__ = ["Note", "NotesState", "collecting", "merge_notes", "noted", "take_note"]


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
