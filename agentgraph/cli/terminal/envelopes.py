"""Envelopes as text: a line for each event type, with notes below it.

A substantive envelope is shown as its speaker's text. The table `_LINES` has a function for each
other event type; other types are custom events, and are shown as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentgraph.cli.terminal.text import call_text, clip
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope

ASIDE, WRONG, QUESTION = "dim", "red", "yellow"

_HANDOFF = "handoff_conversation"

Note: TypeAlias = tuple[str, str]
"""A note below the line, and its style."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An envelope as text: the speaker's text, or, without a speaker, a line about the event.

    A speaker's text may have several lines; a line about an event is printed as one line.
    """

    line: str
    speaker: str | None = None
    style: str = ""
    notes: tuple[Note, ...] = ()


def entry_of(envelope: Envelope) -> Entry:
    """Return an envelope as text; its data need not have the expected shape."""
    if envelope.is_substantive:
        return _message(envelope)
    line_of, style = _LINES.get(envelope.event_type, (_custom, ""))
    notes = tuple(_notes(envelope))
    return Entry(line_of(envelope, envelope.event_data), None, style, notes)


def _message(envelope: Envelope) -> Entry:
    """Return the entry of a speaker's text, with its round's calls and context changes."""
    to = envelope.audience
    speaker = envelope.sender_id if to is None else f"{envelope.sender_id} to {_list(to)}"
    data = envelope.event_data
    notes = (*_step_notes(data), *_context_notes(data), *_notes(envelope))
    return Entry(envelope.text, speaker, notes=notes)


def _step_notes(data: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the calls of a round, with their results."""
    decision = data.get("decision")
    is_handoff = isinstance(decision, Mapping) and decision.get("rule") == "handoff"
    for step in _objects(data.get("steps")):
        if text := clip(step.get("text") or ""):
            yield text, ASIDE
        for call in _objects(step.get("calls")):
            # An accepted handoff has an envelope of its own.
            if not (is_handoff and call.get("tool") == _HANDOFF):
                yield _call(str(step.get("agent") or "it"), call)
    attempt = data.get("attempt")
    if isinstance(attempt, int) and attempt > 1:
        yield f"at attempt {attempt}", ASIDE


def _call(agent: str, call: Mapping[str, Any]) -> Note:
    """Return the note for a tool call with its result."""
    args = call.get("args")
    text = call_text(agent, str(call.get("tool")), args if isinstance(args, Mapping) else {})
    style = WRONG if call.get("status") == "error" else ASIDE
    return f"{text} → {clip(call.get('result') or '')}", style


def _context_notes(data: Mapping[str, Any]) -> Iterator[Note]:
    if changes := _changes(data.get("context_updates")):
        yield changes, ASIDE


def _notes(envelope: Envelope) -> Iterator[Note]:
    """Yield a handoff's summary, and the decision on the envelope."""
    data = envelope.event_data
    if envelope.event_type == ev.EV_HANDOFF and data.get("summary"):
        yield f"summary: {clip(data['summary'])}", ASIDE
    decision = data.get("decision")
    if isinstance(decision, Mapping):
        yield _decision(decision), ASIDE


def _decision(decision: Mapping[str, Any]) -> str:
    """Return in words who speaks next, and by which rule."""
    rule = decision.get("rule")
    why = f"rule {rule}" if isinstance(rule, int) else str(rule)
    phase = f", phase {decision['phase']}" if decision.get("phase") else ""
    match decision.get("action"):
        case "close":
            return f"→ closes: {decision.get('close_reason')} ({why})"
        case "wait":
            return f"→ waits for {_list(decision.get('speakers'))} ({why}{phase})"
        case _:
            return f"→ {_list(decision.get('speakers'))} ({why}{phase})"


def _changes(updates: object) -> str:
    """Return which context variables are set and deleted; "" for none."""
    if not isinstance(updates, Mapping):
        return ""
    values, deletions = updates.get("set"), updates.get("delete")
    pairs = values.items() if isinstance(values, Mapping) else ()
    changes = [f"sets {key} = {_json(value)}" for key, value in pairs]
    changes += [f"deletes {key}" for key in deletions] if isinstance(deletions, list) else []
    return ", ".join(changes)


def _session_start(envelope: Envelope, data: Mapping[str, Any]) -> str:
    first = data.get("initial_speaker")
    return f"opened by {data.get('creator')} with {_list(data.get('participants'))}; {first} begins"


def _handoff(envelope: Envelope, data: Mapping[str, Any]) -> str:
    way = data.get("channel_escalation", "same")
    by = "" if way == "same" else f" by {way}"
    return f"{data.get('from')} hands over to {data.get('target')}{by}{_why(data)}"


def _handoff_rejection(envelope: Envelope, data: Mapping[str, Any]) -> str:
    """Return why a handoff was refused; the data is JSON if the validation refused it."""
    answer = data.get("told")
    attempt = f"{data.get('from')} may not hand over to {data.get('target')}"
    try:
        verdict = json.loads(str(answer))
        return f"{attempt}: {verdict['code']}: {clip(verdict['reason'])}"
    except (ValueError, TypeError, KeyError):
        return f"{attempt}: {clip(answer)}"


def _round_failure(envelope: Envelope, data: Mapping[str, Any]) -> str:
    round = f"round {data.get('round')} of {data.get('speaker')} failed"
    after = "it is given up" if data.get("final") else "it is tried again"
    cause = f"{data.get('code')}: {clip(data.get('message'))}"
    return f"{round} at attempt {data.get('attempt')}: {cause}; {after}"


def _cancelled_round(envelope: Envelope, data: Mapping[str, Any]) -> str:
    speakers = _list(data.get("speakers"))
    return f"round {data.get('round')} of {speakers} was cancelled by {data.get('by')}{_why(data)}"


def _violation(envelope: Envelope, data: Mapping[str, Any]) -> str:
    violators = f" by {_list(data.get('violators'))}" if data.get("violators") else ""
    action = data.get("on_violation")
    return f"{data.get('name')} of {data.get('seconds')} s is not kept{violators} ({action})"


def _progress(envelope: Envelope, data: Mapping[str, Any]) -> str:
    part = data.get("fraction")
    share = f" {part:.0%}" if isinstance(part, int | float) else ""
    return f"a task of {data.get('agent')}:{share} {clip(data.get('message'))}"


def _audit_record(envelope: Envelope, data: Mapping[str, Any]) -> str:
    """Return a record of the guards in words."""
    entry = data.get("entry")
    if data.get("kind") == "decision":
        why = clip(data.get("cause"))
        return f"guard {data.get('guard')} at {data.get('agent')}: {data.get('action')}: {why}"
    if data.get("kind") == "effect" and isinstance(entry, Mapping):
        return f"action {entry.get('tool')}: {entry.get('state')}"
    return f"audit {_json(data)}"


def _task(verb: str) -> _LineOf:
    return lambda envelope, data: f"a task of {data.get('agent')} {verb}"


def _custom(envelope: Envelope, data: Mapping[str, Any]) -> str:
    return f"{envelope.sender_id}: {envelope.event_type} {_json(data)}"


def _why(data: Mapping[str, Any]) -> str:
    return f": {clip(data['reason'])}" if data.get("reason") else ""


def _list(names: object) -> str:
    return (", ".join(map(str, names)) if isinstance(names, list | tuple) else "") or "nobody"


def _objects(values: object) -> Iterable[Mapping[str, Any]]:
    return [v for v in values if isinstance(v, Mapping)] if isinstance(values, list) else ()


def _json(value: object) -> str:
    return clip(json.dumps(value, ensure_ascii=False, default=str))


_LineOf: TypeAlias = Callable[[Envelope, Mapping[str, Any]], str]
_LINES: Mapping[str, tuple[_LineOf, str]] = {
    ev.EV_CONTEXT_SET: (lambda envelope, data: f"{envelope.sender_id} {_changes(data)}", ""),
    ev.EV_WITHDRAWN: (lambda envelope, data: f"what {envelope.sender_id} said is withdrawn", ""),
    ev.EV_SESSION_INVITE: (
        lambda envelope, data: f"{data.get('invitee')} is invited by {data.get('creator')}",
        "",
    ),
    ev.EV_SESSION_INVITE_ACK: (lambda envelope, data: f"{envelope.sender_id} accepts", ""),
    ev.EV_SESSION_INVITE_REJECT: (lambda envelope, data: f"{envelope.sender_id} declines", ""),
    ev.EV_SESSION_OPENED: (_session_start, ""),
    ev.EV_SESSION_LEFT: (lambda envelope, data: f"{data.get('participant')} leaves", ""),
    ev.EV_SESSION_RELEASED: (lambda envelope, data: f"released to {data.get('agent')}", ""),
    ev.EV_SESSION_CLOSED: (lambda envelope, data: f"closed: {data.get('reason')}", "bold"),
    ev.EV_SESSION_EXPIRED: (lambda envelope, data: "its time is over", WRONG),
    ev.EV_EXPECTATION_VIOLATED: (_violation, WRONG),
    ev.EV_HANDOFF: (_handoff, ""),
    ev.EV_HANDOFF_REJECTED: (_handoff_rejection, WRONG),
    ev.EV_PHASE: (lambda envelope, data: f"phase {data.get('from')} → {data.get('to')}", ""),
    ev.EV_ROUND_FAILED: (_round_failure, WRONG),
    ev.EV_CANCELLED: (_cancelled_round, WRONG),
    ev.EV_REWOUND: (
        lambda envelope, data: f"{data.get('by')} rewinds to {data.get('to')}",
        "bold",
    ),
    ev.EV_INTERRUPT: (
        lambda envelope, data: (
            f"{data.get('speaker')} asks for a decision on {data.get('id')}: "
            f"{_json(data.get('payload'))}"
        ),
        QUESTION,
    ),
    ev.EV_DECISION: (
        lambda envelope, data: (
            f"{envelope.sender_id} decides on {data.get('interrupt_id')}: "
            f"{_json(data.get('decision'))}"
        ),
        QUESTION,
    ),
    ev.EV_AUDIT: (_audit_record, ASIDE),
    ev.EV_SUMMARY: (
        lambda envelope, data: f"summary up to {data.get('upto')}: {clip(data.get('text'))}",
        ASIDE,
    ),
    ev.EV_TASK_STARTED: (_task("begins"), ASIDE),
    ev.EV_TASK_PROGRESS: (_progress, ASIDE),
    ev.EV_TASK_COMPLETED: (_task("is completed"), ASIDE),
    ev.EV_TASK_FAILED: (_task("failed"), WRONG),
    ev.EV_TASK_EXPIRED: (_task("took too long"), WRONG),
}
