"""A round: one speaker's turn under way, from its begin to its commit or failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from agentgraph.guards import SHARE, AuditTrail
from agentgraph.guards.records.audit_trail import run_began, run_continued, run_ended
from agentgraph.outcomes import Note
from agentgraph.phases import HandoffPolicy
from agentgraph.sessions.rounds.ledger import RoundLedger, roll_back
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.draft import Draft
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.state import SessionState

RETRIES = 1
"""How often a round that failed is run again."""
ATTEMPTS = 5
"""How often a round is begun at all, if its process dies each time."""
_LONGEST_MESSAGE = 2_000
"""How much of a failure's message is written: its envelope must fit into the log."""
_NEVER_REPEATED = frozenset({"guard", "left"})
"""Failures that a second attempt would only repeat."""


@dataclass(frozen=True, slots=True)
class Round:
    """One speaker's turn; of several speakers in one round each has their own."""

    session: OwnedSession
    speaker: str
    number: int
    attempt: int
    state: SessionState
    """The session as it was when this began."""

    @classmethod
    def begin(cls, session: OwnedSession, speaker: str) -> Round | None:
        """Begin a speaker's turn; None if it is not theirs, or they have had it."""
        state = session.state
        if speaker not in state.due or state.is_ended:
            return None
        session.busy_speakers.add(speaker)
        return cls(session, speaker, state.round, max(session.attempts, 1), state)

    @property
    def key(self) -> str:
        """The same whenever this round runs again."""
        return f"{self.session.id}/{self.number}"

    @property
    def input_id(self) -> str:
        """The input from outside that the round serves."""
        return f"{self.session.id}@{self.state.input}"

    def ledger(self) -> RoundLedger:
        """Return the session's log for the guards of this round."""
        return RoundLedger(self.session, self.speaker, self.number, self.attempt, self.input_id)

    def policy(self, team_policy: HandoffPolicy) -> HandoffPolicy:
        """Return the team's policy for handoffs, for those who are in the session now."""
        present = self.state.participant_order
        names = [name for name in team_policy.participants if name in present]
        names += [name for name in present if name not in names]
        return replace(team_policy, participants=names)

    async def commit(self, packet: Mapping[str, Any], rejections: Sequence[Note]) -> None:
        """Append the round's packet and what follows from it; a second time does nothing."""
        await self.session.tasks.end_round(self.speaker, self.number, self.attempt, "completed")
        data = {**packet, **self.ledger().take_packet_fields()}
        draft = Draft(ev.EV_PACKET, data, causation_id=self.state.last_envelope_id)

        def fill(page: Page) -> None:
            for rejection in rejections:
                handoff = {"from": self.speaker, **rejection["value"]}
                page.note(ev.EV_HANDOFF_REJECTED, handoff)
            page.say(self.speaker, draft)

        await self.session.end_turn(self.speaker, self.number, fill)

    async def fail(self, code: str, message: str, usage: Mapping[str, Any]) -> None:
        """Append that the round failed: it runs again, or that was the last time.

        Where the session ends by it, the actions of the input are undone first.
        """
        outcome: Any = "expired" if code == "deadline" else "failed"
        await self.session.tasks.end_round(self.speaker, self.number, self.attempt, outcome)
        failures = self.session.state.failures.get(self.speaker, 0)
        is_final = failures >= RETRIES or code in _NEVER_REPEATED
        ledger = self.ledger()
        if is_final and self._ends_session():
            await roll_back(ledger, "round_failed")
        data = {
            "speaker": self.speaker,
            "round": self.number,
            "attempt": self.attempt,
            "code": code,
            "message": message[:_LONGEST_MESSAGE],
            "usage": dict(usage),
            **ledger.take_packet_fields(),
        }
        await self.session.end_turn(
            self.speaker, self.number, lambda page: page.fail(data, final=is_final)
        )

    def _ends_session(self) -> bool:
        """Tell whether the session ends if this fails for good."""
        page = Page(self.session.state, self.session.rules)
        page.fail({"speaker": self.speaker, "round": self.number}, final=True)
        return page.state.status == "closing"

    def begin_input(self, audit: AuditTrail | None) -> None:
        """Put the begin of the input on record with its first round in this process.

        What an inner session does is on record with the input that it serves.
        """
        session, state = self.session, self.state
        if audit is None or session.audited_input == self.input_id or session.counts_in_outer:
            return
        session.audited_input = self.input_id
        is_first = self.attempt == 1 and state.round_began == state.input
        if is_first and not state.interrupts:
            sender = state.asked_by
            run_began(audit, self.input_id, session.id, sequence=state.input, sender=sender)
        else:
            run_continued(audit, self.input_id)

    def end_input(self, audit: AuditTrail | None) -> None:
        """Put the end of the input on record, if nobody is to speak to it any more."""
        session, state = self.session, self.session.state
        if audit is None or session.audited_input != self.input_id:
            return
        if state.input != self.state.input:
            reason = "interrupted"
        elif session.due or state.status == "waiting_decision":
            return
        else:
            reason = state.pending_close_reason or state.status
        session.audited_input = ""
        run_ended(audit, self.input_id, session.id, reason)


async def give_up(session: OwnedSession, code: str, message: str) -> None:
    """Fail the present round for good, of all its speakers."""
    attempts, number = session.attempts, session.state.round
    if attempts <= 2 * ATTEMPTS:  # beyond that, it may be the undoing that kills the process
        for speaker in session.state.due:
            round = Round(session, speaker, number, attempts, session.state)
            if round._ends_session():
                await roll_back(round.ledger(), "round_failed")
    data = {
        "round": number,
        "attempt": attempts,
        "code": code,
        "message": message,
        "lost": SHARE * (attempts - 1),
    }
    await session.fail_all(lambda speaker: {"speaker": speaker, **data})


_round: ContextVar[Round | None] = ContextVar("agentgraph_session_round", default=None)


def current_round() -> Round | None:
    """Return the round around this code, None outside of one."""
    return _round.get()


def current_attempt() -> tuple[str, int, int]:
    """Return whose turn runs around this code, in which round and attempt."""
    round = _round.get()
    return ("", 0, 0) if round is None else (round.speaker, round.number, round.attempt)


@contextmanager
def inside(round: Round) -> Iterator[None]:
    """Run a speaker."""
    token = _round.set(round)
    try:
        yield
    finally:
        _round.reset(token)
