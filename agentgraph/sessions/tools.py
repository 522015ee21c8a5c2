"""What a tool may do with the session that it runs in."""

from __future__ import annotations

from typing import Any, Literal

from agentgraph.clock import new_id
from agentgraph.errors import AgentGraphError, ConfigurationError
from agentgraph.outcomes import current_notes, take_note
from agentgraph.routing.values import short
from agentgraph.running import idempotency_key
from agentgraph.sessions.envelopes.payload import canonical, check_context
from agentgraph.sessions.hub.session import Session
from agentgraph.sessions.rounds.round import Round, current_round


def current_session() -> Session:
    """Return the session that a tool runs in."""
    handle = _round("current_session()").session.handle
    if not isinstance(handle, Session):
        raise AgentGraphError(
            "the team's graph runs without a hub: its session has no handle", code="no_hub"
        )
    return handle


def set_context(key: str, value: Any, *, public: bool = False) -> None:
    """Set a context variable when the round commits; if the round fails, it stays as it was.

        set_context("plan", "gold")

    All participants may see context variables. So a round that answers a private message may set
    one only with `public=True`; without it `AgentGraphError` says so to the model.
    """
    round = _round("set_context()")
    _check_public(round, f"set_context({key!r}, …, public=True)", public)
    variables = canonical({key: value}, "the context")
    check_context({**round.session.state.context_vars, **variables})
    _note("set", key, variables[key])


def delete_context(key: str, *, public: bool = False) -> None:
    """Delete a context variable when the round commits; `public` is as for `set_context`."""
    _check_public(_round("delete_context()"), f"delete_context({key!r}, public=True)", public)
    _note("delete", key, None)


def report_progress(message: str, *, fraction: float | None = None) -> None:
    """Append the progress of a tool to the session's log at once; `fraction` is from 0.0 to 1.0."""
    round = _round("report_progress()")
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not isinstance(message, str) or (fraction is not None and not is_number):
        call = f"report_progress({short(message)}, fraction={short(fraction)})"
        raise ConfigurationError(f"{call}: give a text, and a number or None", code="report")
    report = {"task_id": _task(round), "agent": round.speaker, "round": round.number}
    report |= {"attempt": round.attempt, "message": message, "fraction": fraction}
    round.session.tasks.report(canonical(report, "the report"), round.audience)


def _note(kind: Literal["set", "delete"], key: str, value: Any) -> None:
    notes = current_notes() or ()
    if not take_note({"key": f"{_call()}/{len(notes)}", "kind": kind, "name": key, "value": value}):
        raise AgentGraphError(
            f"the context can be written by the tools of a round: {key!r} was set outside of one",
            code="outside_round",
        )


def _check_public(round: Round, call: str, public: bool) -> None:
    if round.state.audience is not None and not public:
        names = ", ".join(sorted(round.audience or ()))
        raise AgentGraphError(
            f"this turn is private to {names}, and all participants may see context variables: "
            f"nothing was changed. Leave it, or call {call} if all may know it",
            code="private_round",
        )


def _call() -> str:
    try:
        return idempotency_key()
    except AgentGraphError:  # the tool of a graph that is not ours
        return new_id()


def _task(round: Round) -> str:
    try:
        return idempotency_key()
    except AgentGraphError:  # a tool of a foreign graph: its turn is one task
        return f"{round.key}/{round.speaker}"


def _round(call: str) -> Round:
    round = current_round()
    if round is None:
        raise AgentGraphError(
            f"{call} was called outside of a session's round: call it in a tool of a team's "
            "agent, or use the session's own methods",
            code="outside_round",
        )
    return round
