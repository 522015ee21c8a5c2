"""What a tool may say to its session while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgraph.clock import new_id
from agentgraph.errors import AgentGraphError, ConfigurationError
from agentgraph.outcomes import current_notes, take_note
from agentgraph.routing.values import short
from agentgraph.running import idempotency_key
from agentgraph.sessions.hub.round import Round, current_round
from agentgraph.sessions.state.payload import canonical

if TYPE_CHECKING:
    from agentgraph.sessions.hub.session import Session


def current_session() -> Session:
    """Return the session that a tool runs in."""
    handle: Session | None = _round("current_session()").live.handle
    if handle is None:
        raise AgentGraphError(
            "the team's graph runs without a hub: its session has no handle", code="no_hub"
        )
    return handle


def set_context(key: str, value: Any) -> None:
    """Set a context variable, together with the round: the next speaker sees it, or nobody."""
    _round("set_context()")
    held = canonical({key: value}, "the context")
    _note("set", key, held[key])


def delete_context(key: str) -> None:
    """Delete a context variable, together with the round."""
    _round("delete_context()")
    _note("delete", key, None)


def report_progress(message: str, *, fraction: float | None = None) -> None:
    """Tell at once, in the session's log, how far a tool is."""
    round = _round("report_progress()")
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not isinstance(message, str) or (fraction is not None and not is_number):
        told = f"report_progress({short(message)}, fraction={short(fraction)})"
        raise ConfigurationError(f"{told}: give a text, and a number or None", code="report")
    report = {"task_id": _task(round), "agent": round.speaker, "round": round.number}
    report |= {"attempt": round.attempt, "message": message, "fraction": fraction}
    round.live.tasks.report(canonical(report, "the report"))


def _note(kind: Any, key: str, value: Any) -> None:
    notes = current_notes() or ()
    if not take_note({"key": f"{_call()}/{len(notes)}", "kind": kind, "name": key, "value": value}):
        raise AgentGraphError(
            f"the context can be written by the tools of a round: {key!r} was set outside of one",
            code="outside_round",
        )


def _call() -> str:
    try:
        return idempotency_key()
    except AgentGraphError:  # the tool of a graph that is not ours
        return new_id()


def _task(round: Round) -> str:
    try:
        return idempotency_key()
    except AgentGraphError:  # the tool of a graph that is not ours: its turn is one task
        return f"{round.key}/{round.speaker}"


def _round(what: str) -> Round:
    round = current_round()
    if round is None:
        raise AgentGraphError(
            f"{what} was called outside of a session's round: call it in a tool of a team's "
            "agent, or use the session's own methods",
            code="outside_round",
        )
    return round
