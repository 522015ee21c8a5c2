"""What happens in a run, as typed events: one vocabulary for `astream`, SSE and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal

from langgraph.config import get_stream_writer
from pydantic_core import to_jsonable_python

__all__ = [
    "AIMessageEvent",
    "ErrorEvent",
    "Event",
    "FinalStateEvent",
    "GuardEvent",
    "InterruptEvent",
    "RoutingEvent",
    "RoutingKind",
    "TokenEvent",
    "ToolResponseEvent",
    "ToolUsageEvent",
    "emit",
]

RoutingKind = Literal["mention", "transfer", "delegate", "help", "resume", "fallback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; the run stamps thread, run and sequence."""

    type: ClassVar[str] = "event"

    agent: str = ""
    thread_id: str = ""
    run_id: str = ""
    sequence: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-able values."""
        values: dict[str, object] = to_jsonable_python(asdict(self), fallback=str)
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent(Event):
    """A piece of text, as the model writes it."""

    type: ClassVar[str] = "token"

    text: str
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUsageEvent(Event):
    """A model asked for a tool."""

    type: ClassVar[str] = "tool_usage"

    tool: str
    args: Mapping[str, object] = field(default_factory=dict)
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResponseEvent(Event):
    """A tool answered."""

    type: ClassVar[str] = "tool_response"

    tool: str
    content: str
    call_id: str = ""
    status: Literal["success", "error"] = "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class AIMessageEvent(Event):
    """A model finished a text."""

    type: ClassVar[str] = "ai_message"

    text: str
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingEvent(Event):
    """The conversation moved."""

    type: ClassVar[str] = "routing"

    kind: RoutingKind
    source: str
    target: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardEvent(Event):
    """A guard decided something other than to let it pass."""

    type: ClassVar[str] = "guard"

    decision: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptEvent(Event):
    """The run waits for a human's decision."""

    type: ClassVar[str] = "interrupt"

    id: str
    payload: object
    response_schema: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(Event):
    """Something failed."""

    type: ClassVar[str] = "error"

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStateEvent(Event):
    """The run is over; this is its answer."""

    type: ClassVar[str] = "message"

    text: str
    usage: Mapping[str, object] = field(default_factory=dict)
    close_reason: str | None = None


def emit(event: Event) -> None:
    """Tell whoever streams the run that this node is part of."""
    writer: Callable[[Event], None] = get_stream_writer()
    writer(event)
