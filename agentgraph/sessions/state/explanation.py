"""Why something was decided: by which rule, and why by no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgraph.routing import Explanation, TransitionDecision
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.fold import counted, decision_of, folded
from agentgraph.sessions.state.page import Heard, Rules
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState


@dataclass(frozen=True, slots=True)
class SessionExplanation:
    """What was decided on an envelope, and why by that rule."""

    envelope: Envelope
    decision: TransitionDecision | None
    explanation: Explanation | None

    def __str__(self) -> str:
        if self.decision is None:
            return f"{self.envelope.sequence}: nothing was decided on it"
        return str(self.explanation or self.decision)


def explained(
    record: SessionRecord, rules: Rules, envelopes: Sequence[Envelope]
) -> SessionExplanation:
    """Explain the last of a session's envelopes from its beginning on."""
    envelope = envelopes[-1]
    decision = decision_of(envelope)
    if decision is None:
        return SessionExplanation(envelope, None, None)
    before = folded(SessionState.initial(record), envelopes[:-1])
    told = rules.graph.explain(counted(before, envelope), Heard.of(envelope))
    # A human lets go, a round fails, several speakers join: no rule has decided that.
    is_the_rules = envelope.is_substantive and told.decision == decision
    return SessionExplanation(envelope, decision, told if is_the_rules else None)
