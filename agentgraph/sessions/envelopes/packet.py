"""The data that a speaker's run leaves in the log: a packet at its end, or its interrupts.

Of a round that is cancelled it is what is known of its turns.

A packet is made of the run's messages and notes. Its size is limited, as it must fit into the log:
it has the last steps if there are too many, and the beginning of texts that are too long.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphInterrupt
from langgraph.types import StateSnapshot
from pydantic_core import from_json, to_json

from agentgraph.history import OUTCOME_UNKNOWN
from agentgraph.outcomes import Note
from agentgraph.routing.values import short
from agentgraph.sessions.envelopes.payload import as_payload, clip, clip_text, encode_json

_MAX_STEPS = 12
_MAX_TEXT = 2_000
_MAX_TEXT_IF_TIGHT = 100
_MAX_STEPS_BYTES = 80_000
_MAX_DEPTH = 50
"""How deep a call's arguments may be nested; deeper ones are likely nonsense, and clipped."""
MAX_OUTPUT_BYTES = 40_000
"""How much of an answer in a form stands in the packet itself."""
_MOVES = ("handoff", "finish")
_SERDE = JsonPlusSerializer()


@dataclass(frozen=True, slots=True)
class TurnOutput:
    """The output of a speaker's run."""

    messages: Sequence[AnyMessage]
    notes: Sequence[Note] = ()
    active: str | None = None
    output: Mapping[str, Any] | None = None
    """The answer in the form that was asked for: its `form`, and its `value` as JSON."""
    stopped_by: str | None = None
    """The guard that ended the run, None if no guard did."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    hops: int = 0
    """How often the conversation moved between agents within the speaker."""
    cause: str = ""
    """Why the guard ended the run of an inner team, "" where the round's own account knows it."""


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """What is known of a turn that did not come to its end."""

    messages: Sequence[AnyMessage] = ()
    """The messages of its models and tools, in order."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The guards' counts and the agents' path, as the turn's packet would have had them."""


def packet_of(
    turn: TurnOutput,
    routing_tools: Collection[str],
    round: int,
    attempt: int,
    *,
    is_single: bool = False,
) -> dict[str, Any]:
    """Return the data of an `EV_PACKET`; a call of one of `routing_tools` moves the floor.

    In a session of one it has no `steps`, as it will have the messages themselves, and its `output`
    may be of any size.
    """
    answers = _answers_in(turn.messages)
    return {
        "routing": _first_move(turn, answers, routing_tools)[0],
        "context_updates": _updates(turn.notes),
        "body": _body(turn),
        "active": turn.active,
        **({} if is_single else {"steps": _steps(turn.messages, answers)}),
        "round": round,
        "attempt": attempt,
        "usage": dict(turn.usage),
        **({"hops": turn.hops} if turn.hops else {}),
        **_output(turn, None if is_single else MAX_OUTPUT_BYTES),
    }


def cancelled_round(
    turns: Mapping[str, UnfinishedTurn], round: int, attempt: int, reason: str, by: str
) -> dict[str, Any]:
    """Return the data of an `EV_CANCELLED`; `turns` are those of its speakers, in their order.

    A call that had no result yet is listed too: it may have had its effect.
    """
    room = _MAX_STEPS_BYTES // max(1, len(turns))
    counts = [turn.fields for turn in turns.values()]
    path = [visit for fields in counts for visit in fields.get("path", ())]
    return {
        "speakers": [*turns],
        "round": round,
        "attempt": attempt,
        "reason": clip(reason, _MAX_TEXT),
        "by": by,
        "steps": {
            name: _steps(turn.messages, _answers_in(turn.messages), room)
            for name, turn in turns.items()
        },
        "usage": {path: figures for turn in turns.values() for path, figures in turn.usage.items()},
        **{key: value for fields in counts for key, value in fields.items()},
        **({"path": path} if path else {}),
    }


def is_silent(packet: Mapping[str, Any]) -> bool:
    """Tell whether a turn has neither a text nor a decision."""
    return not packet["body"].strip() and packet["routing"]["kind"] == "text"


def handoffs_not_made(
    turn: TurnOutput, routing_tools: Collection[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the handoffs of a turn that were refused, and those beside the move that counts."""
    answers = _answers_in(turn.messages)
    _, call_id = _first_move(turn, answers, routing_tools)
    for note in turn.notes:
        if note["kind"] == "rejected":
            yield note["value"]
        elif note["kind"] == "handoff" and note["call_id"] != call_id:
            yield {**note["value"], "told": "Not executed: an earlier call decided the turn."}


def _first_move(
    turn: TurnOutput, answers: Mapping[str, ToolMessage], routing_tools: Collection[str]
) -> tuple[dict[str, Any], str | None]:
    """Return the first move in the order of the calls, and the id of its call.

    A move is a handoff, a finish, or a call of a routing tool.
    """
    moves = {note["call_id"]: note for note in turn.notes if note["kind"] in _MOVES}
    for call in _calls(turn.messages):
        key = call["id"] or ""
        note = moves.get(key)
        if note is not None:
            return _move(note), key
        answer = answers.get(key)
        if call["name"] in routing_tools and answer is not None and answer.status != "error":
            reason = str(call["args"].get("reason") or "")
            return {"kind": "handoff", "tool": call["name"], "reason": reason}, key
    # A delegate's calls are not among the messages, but its moves count all the same.
    for key, note in moves.items():
        return _move(note), key
    return {"kind": "text", "tool": None}, None


def _move(note: Note) -> dict[str, Any]:
    kind = "finish" if note["kind"] == "finish" else "handoff"
    return {"kind": kind, "tool": note["name"], **note["value"]}


def _updates(notes: Iterable[Note]) -> dict[str, Any]:
    """Return the net context updates of a turn, in the order of its calls."""
    values: dict[str, Any] = {}
    deletions: dict[str, None] = {}
    for note in notes:
        if note["kind"] == "set":
            deletions.pop(note["name"], None)
            values[note["name"]] = note["value"]
        elif note["kind"] == "delete":
            values.pop(note["name"], None)
            deletions[note["name"]] = None
    return {"set": values, "delete": list(deletions)}


def _body(turn: TurnOutput) -> str:
    return clip_text(answer_text(turn.messages, turn.output))


def answer_text(messages: Iterable[BaseMessage], output: Mapping[str, Any] | None) -> str:
    """Return what a turn with these messages has said; else its answer as an object, as JSON."""
    texts = [str(m.text) for m in messages if isinstance(m, AIMessage) and m.text]
    if texts:
        return texts[-1]
    return "" if output is None else to_json(output["value"]).decode()


def _output(turn: TurnOutput, max_bytes: int | None) -> dict[str, Any]:
    """Return the answer as an object, if there is one that the packet has room for."""
    if turn.output is None or _is_deep(turn.output, _MAX_DEPTH):
        return {}
    text = to_json(turn.output, fallback=str, inf_nan_mode="null")
    return {"output": from_json(text)} if max_bytes is None or len(text) <= max_bytes else {}


def _answers_in(messages: Iterable[AnyMessage]) -> dict[str, ToolMessage]:
    return {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}


def _calls(messages: Iterable[AnyMessage]) -> Iterable[ToolCall]:
    return (call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls)


def _steps(
    messages: Iterable[AnyMessage],
    answers: Mapping[str, ToolMessage],
    max_bytes: int = _MAX_STEPS_BYTES,
) -> list[dict[str, Any]]:
    """Return the last messages with calls, and their results; as many as there is room for.

    If a step is too large, its texts are clipped further before the step is left out.
    """
    with_calls = [m for m in messages if isinstance(m, AIMessage) and m.tool_calls]
    steps: list[dict[str, Any]] = []
    room = max_bytes
    for message in reversed(with_calls[-_MAX_STEPS:]):
        sizes = (_step(message, answers, limit) for limit in (_MAX_TEXT, _MAX_TEXT_IF_TIGHT))
        step = next((step for step in sizes if len(encode_json(step)) <= room), None)
        if step is None:
            break
        room -= len(encode_json(step))
        steps.insert(0, step)
    return steps


def _step(message: AIMessage, answers: Mapping[str, ToolMessage], limit: int) -> dict[str, Any]:
    calls = [_call(call, answers.get(call["id"] or ""), limit) for call in message.tool_calls]
    return {"agent": message.name, "text": clip(str(message.text), limit), "calls": calls}


def _call(call: ToolCall, answer: ToolMessage | None, limit: int) -> dict[str, Any]:
    args = _args_json(call["args"])
    is_short = len(args) <= limit and not _is_deep(call["args"], _MAX_DEPTH)
    return {
        "tool": call["name"],
        # A model may write NaN, which is not JSON.
        "args": json.loads(args, parse_constant=str) if is_short else {"clipped": args[:limit]},
        "result": clip(str(answer.text) if answer is not None else OUTCOME_UNKNOWN, limit),
        "status": answer.status if answer is not None else "error",
    }


def _args_json(args: Mapping[str, Any]) -> str:
    try:
        return json.dumps(args, default=str)
    except (RecursionError, ValueError):  # a cyclic value, or a number with too many digits
        return short(args)


def _is_deep(value: object, max_depth: int) -> bool:
    """Tell whether a value is nested deeper than `max_depth`."""
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    return max_depth < 0 or any(_is_deep(item, max_depth - 1) for item in inner)


def interrupt_requests(snapshot: StateSnapshot, round: int) -> list[Mapping[str, Any]]:
    """Return the data of an `EV_INTERRUPT` for each open interrupt of a suspended run."""
    return [
        {
            "id": interrupt.id,
            "speaker": task.name,
            "payload": as_payload(interrupt.value),
            "response_schema": as_payload(getattr(interrupt, "response_schema", None)),
            "round": round,
        }
        for task in snapshot.tasks
        for interrupt in task.interrupts
    ]


def is_storable(interrupt: GraphInterrupt) -> bool:
    """Tell whether a checkpoint can store an interrupt: without it no answer can be given."""
    try:
        _SERDE.dumps_typed(interrupt.args)
    except Exception:  # the methods of a foreign value may raise anything
        return False
    return True
