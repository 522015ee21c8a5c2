"""When an input of a session began and how it ended, in the audit trail of its team's guards."""

from __future__ import annotations

from agentgraph.guards import AuditTrail
from agentgraph.guards.audit.audit_trail import run_began, run_continued, run_ended
from agentgraph.sessions.hub.ledger import RoundLedger
from agentgraph.sessions.hub.round import Round


def begin_input(audit: AuditTrail | None, round: Round) -> None:
    """Record an input with its first round; of one that others have begun, number on.

    What is done for an inner session is on record with the input that it serves.
    """
    live, state, run = round.live, round.state, RoundLedger(round).input_id
    if audit is None or live.audited == run or live.is_part:
        return
    live.audited = run
    is_first = round.attempt == 1 and state.round_began == state.input
    if is_first and not state.interrupts:
        run_began(audit, run, live.id, sequence=state.input, sender=state.asked_by)
    else:
        run_continued(audit, run)


def end_input(audit: AuditTrail | None, round: Round) -> None:
    """Record that nobody is to speak to an input any more, if that is so."""
    live, state, run = round.live, round.live.state, RoundLedger(round).input_id
    if audit is None or live.audited != run:
        return
    if state.input != round.state.input:
        reason = "interrupted"
    elif live.due or state.status == "waiting_decision":
        return
    else:
        reason = state.pending_close_reason or state.status
    live.audited = ""
    run_ended(audit, run, live.id, reason)
