"""The typed events of a run: one vocabulary for `astream`, SSE and the page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias

from langchain_core.messages import BaseMessage
from pydantic_core import PydanticSerializationError, from_json, to_json

from agentgraph.display import event_line
from agentgraph.errors import AgentGraphError
from agentgraph.running import emitting_run

__all__ = [
    "AIMessageEvent",
    "AnyEvent",
    "ErrorEvent",
    "Event",
    "FinalStateEvent",
    "GuardEvent",
    "InterruptEvent",
    "ReasoningEvent",
    "ResetEvent",
    "RoutingEvent",
    "RoutingKind",
    "StageEvent",
    "StageStatus",
    "TokenEvent",
    "ToolArgsEvent",
    "ToolResponseEvent",
    "ToolUsageEvent",
    "emit",
    "media_of",
    "stored_fields",
]

StageStatus = Literal["started", "finished", "failed", "replanned", "escalated", "aborted"]
RoutingKind = Literal["mention", "transfer", "delegate", "help", "resume", "fallback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a run; the run fills in thread, run and sequence."""

    type: ClassVar[str] = "event"

    agent: str = ""
    thread_id: str = ""
    run_id: str = ""
    sequence: int = 0
    round: int = 0
    attempt: int = 0
    """The session's round and the attempt at it; 0 outside of a session."""
    cursor: str = ""
    """The event's place in its session, from which a stream goes on; "" outside of a session. Not a
    part of the JSON."""

    _place: ClassVar[Collection[str]] = ("round", "attempt")
    """The fields that only a session fills in."""

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-able values."""
        values: dict[str, object] = from_json(self.to_json())
        return values

    def to_json(self, *, with_round: bool = True) -> bytes:
        """Return the fields as JSON, even if a model or a tool has put other values into them.

        Without its round and attempt it is as it would be outside of a session.
        """
        # Outside of a session there are no rounds.
        is_placed = self.round and with_round
        omit = {"public", "cursor"} if is_placed else {"public", "cursor", *self._place}
        if not getattr(self, "blocks", ()):
            omit.add("blocks")
        try:
            return _as_json(self, omit)
        except PydanticSerializationError:
            values = {field.name: _jsonable(getattr(self, field.name)) for field in fields(self)}
            return _as_json(values, omit)

    def _repr_html_(self) -> str:
        return event_line(self.type, self.to_dict())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent(Event):
    """A piece of text, as the model writes it."""

    type: ClassVar[Literal["token"]] = "token"

    text: str
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEvent(Event):
    """A piece of what a model thinks before it answers, as the model writes it.

    It is on the stream once, and never a part of an answer's text.
    """

    type: ClassVar[Literal["reasoning"]] = "reasoning"

    text: str
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgsEvent(Event):
    """A piece of a call's arguments, as the model writes them: JSON, in pieces.

    The pieces of a call, joined, are its arguments; a `ToolUsageEvent` with all of them follows. A
    call that a model gives at once has no pieces.
    """

    type: ClassVar[Literal["tool_args"]] = "tool_args"

    tool: str
    delta: str
    call_id: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUsageEvent(Event):
    """A model asked for a tool."""

    type: ClassVar[Literal["tool_usage"]] = "tool_usage"

    tool: str
    args: Mapping[str, object] = field(default_factory=dict)
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResponseEvent(Event):
    """A tool answered."""

    type: ClassVar[Literal["tool_response"]] = "tool_response"

    tool: str
    content: str
    call_id: str = ""
    status: Literal["success", "error"] = "success"
    blocks: Sequence[Mapping[str, object]] = ()
    """The images, files and sounds of the answer, as LangChain's content blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AIMessageEvent(Event):
    """A model finished a text, or an image."""

    type: ClassVar[Literal["ai_message"]] = "ai_message"

    text: str
    message_id: str = ""
    blocks: Sequence[Mapping[str, object]] = ()
    """The images, files and sounds of the message, as LangChain's content blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingEvent(Event):
    """The conversation moved."""

    type: ClassVar[Literal["routing"]] = "routing"

    kind: RoutingKind
    source: str
    target: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardEvent(Event):
    """A guard made a decision other than to allow."""

    type: ClassVar[Literal["guard"]] = "guard"

    decision: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvent(Event):
    """A stage of a flow has begun or ended, or it was decided how the flow goes on after it."""

    type: ClassVar[Literal["stage"]] = "stage"

    _place: ClassVar[Collection[str]] = ("round",)

    stage: str
    status: StageStatus
    attempt: int = 1
    """Which plan it belongs to, from 1; not the attempt at a round."""
    worker: str = ""
    verdict: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptEvent(Event):
    """The run waits for a human's decision."""

    type: ClassVar[Literal["interrupt"]] = "interrupt"

    id: str
    payload: Any
    """What was given to `interrupt`, as LangGraph's `Interrupt.value`."""
    response_schema: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(Event):
    """Something failed."""

    type: ClassVar[Literal["error"]] = "error"

    code: str
    message: str
    public: str = ""
    """The message without the words of a provider, where it has any; not a part of the JSON."""

    @classmethod
    def of(cls, error: AgentGraphError, agent: str = "") -> ErrorEvent:
        """Return the event of an error."""
        return cls(agent=agent, code=error.code, message=str(error), public=error.public)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStateEvent(Event):
    """The run is over; this is its answer."""

    type: ClassVar[Literal["message"]] = "message"

    text: str
    usage: Mapping[str, object] = field(default_factory=dict)
    close_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetEvent(Event):
    """What was streamed of the turns under way is void; this is what they have said so far.

    A session's stream has it where events are missing: a reader was too slow or away for too long,
    or the process that ran the turn has died and another one begins the turn again. Envelopes are
    never missing.
    """

    type: ClassVar[Literal["reset"]] = "reset"

    text: str = ""
    """The text so far: the events that follow go on after it."""
    messages: Sequence[Mapping[str, str]] = ()
    """The same by message: its `agent`, `message_id` and `text`."""


AnyEvent: TypeAlias = (
    TokenEvent
    | ReasoningEvent
    | ToolArgsEvent
    | ToolUsageEvent
    | ToolResponseEvent
    | AIMessageEvent
    | RoutingEvent
    | GuardEvent
    | StageEvent
    | InterruptEvent
    | ErrorEvent
    | FinalStateEvent
    | ResetEvent
)
"""Every event of a run. Compare `event.type`, and a type checker knows the fields of the event.

Events of your own classes are on the stream too: find those by `isinstance` among values of the
type `Event`.
"""


async def emit(event: Event) -> None:
    """Put an event on the stream of the current run, from a tool too.

    Waits while the reader is too slow. Where the run is not streamed by its agent, or its session,
    nobody reads the event: LangGraph's `custom` stream is for the tools' own use.
    """
    run = emitting_run()
    if run is not None and run.tell is not None:
        await run.tell(event)


def stored_fields(event: Event) -> dict[str, object]:
    """Return the fields of an event as JSON, without its place and those that are as by default."""
    values = {
        field.name: value
        for field in fields(event)
        if (value := getattr(event, field.name)) != field.default and field.name != "cursor"
    }
    try:
        stored: dict[str, object] = from_json(_as_json(values))
    except PydanticSerializationError:
        stored = from_json(_as_json({name: _jsonable(value) for name, value in values.items()}))
    return stored


def media_of(message: BaseMessage) -> tuple[Mapping[str, object], ...]:
    """Return the images, files and sounds of a message, as LangChain's content blocks."""
    if isinstance(message.content, str):
        return ()
    return tuple(dict(block) for block in message.content_blocks if block["type"] in _MEDIA)


_MEDIA = ("image", "audio", "video", "file", "text-plain")


def _as_json(value: object, omit: set[str] | None = None) -> bytes:
    return to_json(value, exclude=omit, fallback=str, inf_nan_mode="null", bytes_mode="base64")


def _jsonable(value: object) -> object:
    """Return a value, or its ASCII repr: half a surrogate pair or a cycle cannot be JSON."""
    try:
        _as_json(value)
    except PydanticSerializationError:
        return ascii(value)
    return value
