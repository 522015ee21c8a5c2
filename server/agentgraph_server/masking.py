"""What clients see of errors: the texts of foreign exceptions are for the model and the operator.

A tool's exception is the answer to its call, so that the model can react to it; the session's log
has it. It may hold the address of a database. So all that goes to a client passes here, unless the
setting `expose_errors` says that clients may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from agentgraph.agents.nodes.calls import NOT_EXECUTED
from agentgraph.history import OUTCOME_UNKNOWN
from agentgraph.sessions import Envelope
from agentgraph.sessions.single.messages import decode_message, encode_message
from agentgraph.stream import ErrorEvent, Event, ToolResponseEvent

TOOL_FAILED = "The tool failed."

exposes_errors: ContextVar[bool] = ContextVar("agentgraph_server_exposes_errors", default=False)
"""Whether the client of the present request may read the texts of exceptions."""

_OWN_TEXTS = (NOT_EXECUTED, OUTCOME_UNKNOWN[:15], "Not transferred: ", "Error: `")
"""How the framework's own answers to failed calls begin; an exception's begins with its class."""


def public_event(event: Event) -> Event:
    """Return an event as a client sees it: without the words of a provider's or a tool's error."""
    if exposes_errors.get():
        return event
    if isinstance(event, ErrorEvent) and event.public:
        return replace(event, message=event.public)
    if isinstance(event, ToolResponseEvent) and event.status == "error":
        return replace(event, content=_public_text(event.content), blocks=())
    return event


def public_tool_message(message: ToolMessage) -> ToolMessage:
    """Return a tool's answer as a client sees it."""
    if exposes_errors.get() or message.status != "error":
        return message
    text = _public_text(str(message.text))
    return message.model_copy(update={"content": text, "artifact": None})


def public_fields(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope as JSON for a client, without what only the session's next run reads.

    That are the channels of its graph, which are no public state.
    """
    fields = envelope.stored_fields()
    data = {key: value for key, value in envelope.event_data.items() if key != "channels"}
    if not exposes_errors.get():
        if isinstance(data.get("messages"), list | tuple):
            data["messages"] = [_public_message(part) for part in data["messages"]]
        if "steps" in data:
            data["steps"] = _public_steps(data["steps"])
    return {**fields, "event_data": data}


def _public_text(text: str) -> str:
    return text if text.startswith(_OWN_TEXTS) else TOOL_FAILED


def _public_message(part: Any) -> Any:
    """Return a stored message; one in a serialised form is read, as its answer may be an error."""
    if not isinstance(part, Mapping) or part.get("type") != "tool":
        return part
    message = decode_message(part)
    if not isinstance(message, BaseMessage) or getattr(message, "status", "") != "error":
        return part
    assert isinstance(message, ToolMessage)
    return encode_message(public_tool_message(message))


def _public_steps(steps: Any) -> Any:
    """Return the calls of a turn, or of each speaker's turn, with public results."""
    if isinstance(steps, Mapping):
        return {name: _public_steps(part) for name, part in steps.items()}
    return [
        {**step, "calls": [_public_call(call) for call in step.get("calls", ())]} for step in steps
    ]


def _public_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    if call.get("status") != "error":
        return call
    return {**call, "result": _public_text(str(call.get("result", "")))}
