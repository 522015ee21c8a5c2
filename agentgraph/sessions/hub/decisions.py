"""The decisions that a session has on its questions, for those who decide too late."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from agentgraph.errors import AlreadyDecided
from agentgraph.sessions.envelopes.envelope import EV_DECISION, Envelope
from agentgraph.sessions.state.fold import WITHDRAWAL


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
