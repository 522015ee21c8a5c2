"""What a round comes to: one packet, made of the messages and notes of its speaker's run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolCall, ToolMessage

from agentgraph.history import OUTCOME_UNKNOWN
from agentgraph.outcomes import Note
from agentgraph.routing.values import short
from agentgraph.sessions.state.payload import clipped, encoded

_STEPS = 12
_TEXT = 2_000
_SHORT = 100
_ROOM = 80_000
"""What all steps of a packet may take: the packet must fit into the log."""
_DEPTH = 50
"""How deep the arguments of a call are shown; what is deeper is clipped, as it may be nonsense."""
_BODY = 100_000
_BODY_ROOM = 120_000


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a speaker's run has brought."""

    messages: Sequence[AnyMessage]
    notes: Sequence[Note] = ()
    active: str | None = None
    output: object | None = None
    stopped_by: str | None = None
    """The guard that ended the run."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    hops: int = 0
    """How often the conversation moved within the speaker itself."""


def packet_of(
    spoken: Spoken, routing_tools: Collection[str], round: int, attempt: int
) -> dict[str, Any]:
    """Return the packet's data; without a body and a decision, the round was silent."""
    answers = {m.tool_call_id: m for m in spoken.messages if isinstance(m, ToolMessage)}
    return {
        "routing": _routing(spoken, answers, routing_tools),
        "context_updates": _updates(spoken.notes),
        "body": _body(spoken),
        "active": spoken.active,
        "steps": _steps(spoken.messages, answers),
        "round": round,
        "attempt": attempt,
        "usage": dict(spoken.usage),
        **({"hops": spoken.hops} if spoken.hops else {}),
    }


def is_silent(packet: Mapping[str, Any]) -> bool:
    """Tell whether a round has neither said nor decided anything."""
    return not packet["body"].strip() and packet["routing"]["kind"] == "text"


def _routing(
    spoken: Spoken, answers: Mapping[str, ToolMessage], routing_tools: Collection[str]
) -> dict[str, Any]:
    """Return the first thing in the order of the calls that says where to go."""
    noted = {note["call_id"]: note for note in spoken.notes if note["kind"] in _MOVES}
    for call in _calls(spoken.messages):
        found = noted.get(call["id"] or "")
        if found is not None:
            return _move(found)
        answer = answers.get(call["id"] or "")
        if call["name"] in routing_tools and answer is not None and answer.status != "error":
            reason = str(call["args"].get("reason") or "")
            return {"kind": "handoff", "tool": call["name"], "reason": reason}
    # A delegate's calls are not among the messages, but it was told that it may.
    found = next(iter(noted.values()), None)
    return {"kind": "text", "tool": None} if found is None else _move(found)


def _move(note: Note) -> dict[str, Any]:
    kind = "finish" if note["kind"] == "finish" else "handoff"
    return {"kind": kind, "tool": note["name"], **note["value"]}


_MOVES = ("handoff", "finish")


def _updates(notes: Iterable[Note]) -> dict[str, Any]:
    """Return what the writes of a round come to, in the order of its calls."""
    given: dict[str, Any] = {}
    deleted: dict[str, None] = {}
    for note in notes:
        if note["kind"] == "set":
            deleted.pop(note["name"], None)
            given[note["name"]] = note["value"]
        elif note["kind"] == "delete":
            given.pop(note["name"], None)
            deleted[note["name"]] = None
    return {"set": given, "delete": list(deleted)}


def _body(spoken: Spoken) -> str:
    said = [str(m.text) for m in spoken.messages if isinstance(m, AIMessage) and m.text]
    body = said[-1] if said else ""
    if not body and spoken.output is not None:
        body = json.dumps(spoken.output)
    limit = _BODY
    while len(encoded(body[:limit])) > _BODY_ROOM:  # a character takes up to twelve bytes
        limit //= 2
    return clipped(body, limit)


def _calls(messages: Iterable[AnyMessage]) -> Iterable[ToolCall]:
    return (call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls)


def _steps(
    messages: Iterable[AnyMessage], answers: Mapping[str, ToolMessage]
) -> list[dict[str, Any]]:
    """Return each message with calls, and what they were answered; the last ones of many."""
    asked = [m for m in messages if isinstance(m, AIMessage) and m.tool_calls]
    steps: list[dict[str, Any]] = []
    room = _ROOM
    for message in reversed(asked[-_STEPS:]):
        tried = (_step(message, answers, limit) for limit in (_TEXT, _SHORT))
        found = next((one for one in tried if len(encoded(one)) <= room), None)
        if found is None:
            break
        room -= len(encoded(found))
        steps.insert(0, found)
    return steps


def _step(message: AIMessage, answers: Mapping[str, ToolMessage], limit: int) -> dict[str, Any]:
    calls = [_call(call, answers.get(call["id"] or ""), limit) for call in message.tool_calls]
    return {"agent": message.name, "text": clipped(str(message.text), limit), "calls": calls}


def _call(call: ToolCall, answer: ToolMessage | None, limit: int) -> dict[str, Any]:
    args = _written(call["args"])
    is_short = len(args) <= limit and not _is_deep(call["args"], _DEPTH)
    return {
        "tool": call["name"],
        # A model may write NaN, which JSON does not have.
        "args": json.loads(args, parse_constant=str) if is_short else {"clipped": args[:limit]},
        "result": clipped(str(answer.text) if answer is not None else OUTCOME_UNKNOWN, limit),
        "status": answer.status if answer is not None else "error",
    }


def _written(args: Mapping[str, Any]) -> str:
    try:
        return json.dumps(args, default=str)
    except (RecursionError, ValueError):  # nested without end, or beyond what can be written
        return short(args)


def _is_deep(value: object, left: int) -> bool:
    """Tell whether something is nested deeper than a packet can hold beside its own levels."""
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    return left < 0 or any(_is_deep(one, left - 1) for one in inner)
