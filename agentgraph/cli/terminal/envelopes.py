"""An envelope as one reads it: who did what, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from agentgraph.cli.terminal.events import called
from agentgraph.cli.terminal.text import clip
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Envelope

ASIDE, WRONG, QUESTION = "dim", "red", "yellow"

_HANDOFF = "handoff_conversation"

Note: TypeAlias = tuple[str, str]
"""A remark below, and its style."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an envelope comes to: words of somebody, or a line about them; and remarks below."""

    line: str
    speaker: str | None = None
    style: str = ""
    notes: tuple[Note, ...] = ()


def told_of(envelope: Envelope) -> Told:
    """Tell an envelope."""
    if envelope.is_substantive:
        return _said(envelope)
    tell, style = _TOLD.get(envelope.event_type, (_custom, ""))
    return Told(tell(envelope, envelope.event_data), None, style, tuple(_below(envelope)))


def _said(envelope: Envelope) -> Told:
    to = envelope.audience
    speaker = envelope.sender_id if to is None else f"{envelope.sender_id} to {_list(to)}"
    notes = (*_steps(envelope.event_data), *_writes(envelope.event_data), *_below(envelope))
    return Told(envelope.text, speaker, notes=notes)


def _steps(data: Mapping[str, Any]) -> Iterator[Note]:
    """Tell the calls of a round, with their answers."""
    decision = data.get("decision")
    moves = isinstance(decision, Mapping) and decision.get("rule") == "handoff"
    for step in _objects(data.get("steps")):
        if text := clip(step.get("text") or ""):
            yield text, ASIDE
        for call in _objects(step.get("calls")):
            if not (moves and call.get("tool") == _HANDOFF):  # which has an envelope of its own
                yield _call(str(step.get("agent") or "it"), call)
    attempt = data.get("attempt")
    if isinstance(attempt, int) and attempt > 1:
        yield f"at attempt {attempt}", ASIDE


def _call(agent: str, call: Mapping[str, Any]) -> Note:
    args = call.get("args")
    made = called(agent, str(call.get("tool")), args if isinstance(args, Mapping) else {})
    style = WRONG if call.get("status") == "error" else ASIDE
    return f"{made} → {clip(call.get('result') or '')}", style


def _writes(data: Mapping[str, Any]) -> Iterator[Note]:
    if words := _changes(data.get("context_updates")):
        yield words, ASIDE


def _below(envelope: Envelope) -> Iterator[Note]:
    data = envelope.event_data
    if envelope.event_type == ev.EV_HANDOFF and data.get("summary"):
        yield f"summary: {clip(data['summary'])}", ASIDE
    decision = data.get("decision")
    if isinstance(decision, Mapping):
        yield _decision(decision), ASIDE


def _decision(decision: Mapping[str, Any]) -> str:
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
    if not isinstance(updates, Mapping):
        return ""
    given, gone = updates.get("set"), updates.get("delete")
    pairs = given.items() if isinstance(given, Mapping) else ()
    words = [f"sets {key} = {_json(value)}" for key, value in pairs]
    words += [f"deletes {key}" for key in gone] if isinstance(gone, list) else []
    return ", ".join(words)


def _opened(envelope: Envelope, data: Mapping[str, Any]) -> str:
    first = data.get("initial_speaker")
    return f"opened by {data.get('creator')} with {_list(data.get('participants'))}; {first} begins"


def _handed_over(envelope: Envelope, data: Mapping[str, Any]) -> str:
    way = data.get("channel_escalation", "same")
    by = "" if way == "same" else f" by {way}"
    return f"{data.get('from')} hands over to {data.get('target')}{by}{_why(data)}"


def _rejected(envelope: Envelope, data: Mapping[str, Any]) -> str:
    answer = data.get("told")
    wished = f"{data.get('from')} may not hand over to {data.get('target')}"
    try:
        verdict = json.loads(str(answer))
        return f"{wished}: {verdict['code']}: {clip(verdict['reason'])}"
    except (ValueError, TypeError, KeyError):
        return f"{wished}: {clip(answer)}"


def _failed(envelope: Envelope, data: Mapping[str, Any]) -> str:
    round = f"round {data.get('round')} of {data.get('speaker')} failed"
    after = "it is given up" if data.get("final") else "it is tried again"
    told = f"{data.get('code')}: {clip(data.get('message'))}"
    return f"{round} at attempt {data.get('attempt')}: {told}; {after}"


def _violated(envelope: Envelope, data: Mapping[str, Any]) -> str:
    who = f" by {_list(data.get('violators'))}" if data.get("violators") else ""
    then = data.get("on_violation")
    return f"{data.get('name')} of {data.get('seconds')} s is not kept{who} ({then})"


def _progress(envelope: Envelope, data: Mapping[str, Any]) -> str:
    part = data.get("fraction")
    share = f" {part:.0%}" if isinstance(part, int | float) else ""
    return f"a task of {data.get('agent')}:{share} {clip(data.get('message'))}"


def _recorded(envelope: Envelope, data: Mapping[str, Any]) -> str:
    entry = data.get("entry")
    if data.get("kind") == "decision":
        why = clip(data.get("cause"))
        return f"guard {data.get('guard')} at {data.get('agent')}: {data.get('action')}: {why}"
    if data.get("kind") == "effect" and isinstance(entry, Mapping):
        return f"action {entry.get('tool')}: {entry.get('state')}"
    return f"audit {_json(data)}"


def _task(what: str) -> _Tell:
    return lambda envelope, data: f"a task of {data.get('agent')} {what}"


def _custom(envelope: Envelope, data: Mapping[str, Any]) -> str:
    return f"{envelope.sender_id}: {envelope.event_type} {_json(data)}"


def _why(data: Mapping[str, Any]) -> str:
    return f": {clip(data['reason'])}" if data.get("reason") else ""


def _list(names: object) -> str:
    return (", ".join(map(str, names)) if isinstance(names, list | tuple) else "") or "nobody"


def _objects(values: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in values if isinstance(one, Mapping)] if isinstance(values, list) else ()


def _json(value: object) -> str:
    return clip(json.dumps(value, ensure_ascii=False, default=str))


_Tell: TypeAlias = Callable[[Envelope, Mapping[str, Any]], str]
_TOLD: Mapping[str, tuple[_Tell, str]] = {
    ev.EV_CONTEXT_SET: (lambda one, data: f"{one.sender_id} {_changes(data)}", ""),
    ev.EV_SESSION_INVITE: (
        lambda one, data: f"{data.get('invitee')} is invited by {data.get('creator')}",
        "",
    ),
    ev.EV_SESSION_INVITE_ACK: (lambda one, data: f"{one.sender_id} accepts", ""),
    ev.EV_SESSION_INVITE_REJECT: (lambda one, data: f"{one.sender_id} declines", ""),
    ev.EV_SESSION_OPENED: (_opened, ""),
    ev.EV_SESSION_LEFT: (lambda one, data: f"{data.get('participant')} leaves", ""),
    ev.EV_SESSION_RELEASED: (lambda one, data: f"released to {data.get('agent')}", ""),
    ev.EV_SESSION_CLOSED: (lambda one, data: f"closed: {data.get('reason')}", "bold"),
    ev.EV_SESSION_EXPIRED: (lambda one, data: "its time is over", WRONG),
    ev.EV_EXPECTATION_VIOLATED: (_violated, WRONG),
    ev.EV_HANDOFF: (_handed_over, ""),
    ev.EV_HANDOFF_REJECTED: (_rejected, WRONG),
    ev.EV_PHASE: (lambda one, data: f"phase {data.get('from')} → {data.get('to')}", ""),
    ev.EV_ROUND_FAILED: (_failed, WRONG),
    ev.EV_INTERRUPT: (
        lambda one, data: (
            f"{data.get('speaker')} asks for a decision on {data.get('id')}: "
            f"{_json(data.get('payload'))}"
        ),
        QUESTION,
    ),
    ev.EV_DECISION: (
        lambda one, data: (
            f"{one.sender_id} decides on {data.get('interrupt_id')}: {_json(data.get('decision'))}"
        ),
        QUESTION,
    ),
    ev.EV_AUDIT: (_recorded, ASIDE),
    ev.EV_SUMMARY: (
        lambda one, data: f"summary up to {data.get('upto')}: {clip(data.get('text'))}",
        ASIDE,
    ),
    ev.EV_TASK_STARTED: (_task("begins"), ASIDE),
    ev.EV_TASK_PROGRESS: (_progress, ASIDE),
    ev.EV_TASK_COMPLETED: (_task("is completed"), ASIDE),
    ev.EV_TASK_FAILED: (_task("failed"), WRONG),
    ev.EV_TASK_EXPIRED: (_task("took too long"), WRONG),
}
