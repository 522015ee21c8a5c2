"""The questions of a session, and the decisions on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentgraph.errors import AlreadyDecided
from agentgraph.guards.mechanisms.escalation import ends_at
from agentgraph.outcomes import Interrupt
from agentgraph.routing.frozen_json import thaw
from agentgraph.sessions.envelopes.envelope import EV_DECISION, EV_INTERRUPT, Envelope
from agentgraph.sessions.state.fold import WITHDRAWAL
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import round_audience


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question of a session that waits for a human."""

    id: str
    speaker: str
    """The path of the agent that asks."""
    payload: Any
    response_schema: Any
    asked_at: str
    expires_at: float | None
    """The instant at which it is denied; None if it waits for ever."""


def open_questions(state: SessionState, reader: str | None) -> list[OpenQuestion]:
    """Return the questions that wait, of rounds that a reader may see; None may see all."""
    questions = []
    for key, question in state.interrupts.items():
        audience = round_audience(state, question.get("speaker"))
        is_visible = reader is None or audience is None or reader in audience
        if "decision" in question or not is_visible:
            continue
        payload = thaw(question.get("payload"))
        questions.append(
            OpenQuestion(
                key,
                str(question.get("agent") or question.get("speaker")),
                payload,
                thaw(question.get("response_schema")),
                str(question.get("asked_at") or state.updated_at),
                ends_at(payload),
            )
        )
    return questions


def questions_in(envelopes: Iterable[Envelope], state: SessionState) -> tuple[Interrupt, ...]:
    """Return the questions in these envelopes that are open in this state."""
    data = [envelope.event_data for envelope in envelopes if envelope.event_type == EV_INTERRUPT]
    return tuple(
        Interrupt(
            question["id"],
            thaw(question["payload"]),
            thaw(question.get("response_schema")),
            question.get("agent") or question["speaker"],
        )
        for question in data
        if "decision" not in state.interrupts.get(question["id"], {"decision": None})
    )


def decisions_in(envelopes: Iterable[Envelope]) -> dict[str, Envelope]:
    """Return the decisions among envelopes, by the ids of their questions.

    A question that was withdrawn has none.
    """
    return {
        str(envelope.event_data["interrupt_id"]): envelope
        for envelope in envelopes
        if envelope.event_type == EV_DECISION and envelope.event_data.get("type") != WITHDRAWAL
    }


def late_decision(decision: Envelope) -> AlreadyDecided:
    """Return the error for whoever decides what somebody has decided before."""
    return AlreadyDecided(
        f"session {decision.session_id!r}",
        str(decision.event_data["interrupt_id"]),
        decision.event_data["decision"],
        decided_at=datetime.fromisoformat(decision.created_at),
        sender=decision.sender_id,
    )
