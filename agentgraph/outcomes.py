"""The outcomes of tools: a handoff, the end of a turn, a question to a human, notes for a team."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from langchain_core.messages.tool import ToolOutputMixin
from typing_extensions import TypedDict

from agentgraph.display import code, row
from agentgraph.timeouts import is_left_behind

# ToolOutputMixin makes LangChain's tools return these as they are; without it they become text.


@dataclass(frozen=True, slots=True)
class Handoff(ToolOutputMixin):
    """Pass the conversation to a named agent; a tool returns it.

        def refunds(reason: str) -> Handoff:
            return Handoff("billing", reason=reason)

    In a plain agent the target is one of its sub-agents, in a team a peer.
    """

    target: str
    reason: str = ""
    summary: str = ""
    next_phase: str | None = None
    channel_escalation: str = "same"


@dataclass(frozen=True, slots=True)
class Finish(ToolOutputMixin):
    """End the turn, in a team the session; a tool returns it. Its text is the answer, if any."""

    text: str = ""
    reason: str = "finished"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a human must decide before the run goes on."""

    id: str
    payload: Any
    """What was given to `interrupt`, as LangGraph's `Interrupt.value`."""
    response_schema: Mapping[str, object] | None = None
    agent: str = ""
    """The path of the agent that asks, in a session the name of the participant."""

    @property
    def speaker(self) -> str:
        """The name at the head of the path: the participant that asks."""
        return self.agent.partition("/")[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the question as a JSON object, if its payload is JSON."""
        return {
            "id": self.id,
            "payload": self.payload,
            "response_schema": self.response_schema,
            "speaker": self.speaker,
        }

    def _repr_html_(self) -> str:
        return row("asked as", f"{code(self.id)}: {code(self.payload)}")


class Note(TypedDict, total=False):
    """A tool's decision for its round, such as a context variable to set.

    Its key is the same whenever the call runs again, so that a note counts once.
    """

    key: str
    call_id: str
    kind: Literal["set", "delete", "handoff", "rejected", "finish"]
    name: str
    value: Any


def merge_notes(old: Sequence[Note], new: Sequence[Note]) -> list[Note]:
    """Add new notes; idempotent, because notes pass through nested graphs and come back."""
    keys = {note["key"] for note in old}
    return [*old, *(note for note in new if note["key"] not in keys)]


class NotesState(TypedDict, total=False):
    """The channel that a graph needs to collect notes; no channel of a user has its name."""

    agentgraph_notes: Annotated[list[Note], merge_notes]


NOTES = "agentgraph_notes"


_notes: ContextVar[list[Note] | None] = ContextVar("agentgraph_notes", default=None)


@contextmanager
def collect_notes(notes: list[Note] | None) -> Iterator[None]:
    """Collect the notes of tools in here, also from threads that start here; None collects none."""
    token = _notes.set(notes)
    try:
        yield
    finally:
        _notes.reset(token)


def current_notes() -> list[Note] | None:
    """Return the notes of the tool call around this code, None outside of a team."""
    return _notes.get()


def take_note(note: Note) -> bool:
    """Add a note; return False where notes are not collected."""
    notes = _notes.get()
    if notes is None or is_left_behind():
        return False
    notes.append(note)
    return True
