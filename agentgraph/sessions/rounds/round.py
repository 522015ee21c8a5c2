"""A round: one speaker's turn, from its begin to its commit or failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from agentgraph.guards import SHARE, AuditTrail
from agentgraph.guards.records.audit_trail import run_began, run_continued, run_ended
from agentgraph.phases import HandoffPolicy
from agentgraph.remote.principal import Principal
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.payload import check_context
from agentgraph.sessions.rounds.ledger import RoundLedger, roll_back
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.state.fold import net_context
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.rules import NeedsAnswer
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import Audience, round_audience

RETRIES = 1
"""How often a failed round is run again."""
ATTEMPTS = 5
"""How often a round is begun in all, if the process dies each time."""
_LONGEST_MESSAGE = 2_000
"""The length to which a failure's message is cut: its envelope must fit into the log."""
_STOPS = frozenset({"guard", "deadline"})
"""Codes of failures by which guards end an input: its actions are undone."""
_NEVER_REPEATED = frozenset({"guard", "left"})
"""Codes of failures that a second attempt would only repeat."""


@dataclass(frozen=True, slots=True)
class Round:
    """One speaker's turn; if several speakers have the floor, each has a `Round` of its own."""

    session: OwnedSession
    speaker: str
    number: int
    attempt: int
    state: SessionState
    """The session's state when this turn began."""

    @classmethod
    def begin(cls, session: OwnedSession, speaker: str) -> Round | None:
        """Begin a speaker's turn; None if the speaker is not due."""
        state = session.state
        if speaker not in state.due or state.is_ended:
            return None
        session.busy_speakers.add(speaker)
        attempt = max(session.attempts, 1)
        if session.journals.get(speaker, (0, {}))[0] != attempt:  # else it was interrupted
            session.journals[speaker] = (attempt, {})
        return cls(session, speaker, state.round, attempt, state)

    @property
    def key(self) -> str:
        """A key that is the same in every attempt at this round."""
        return f"{self.session.id}/{self.number}"

    @property
    def audience(self) -> Audience:
        """Who may see what this turn notes, asks and says; None means everybody."""
        return round_audience(self.state, self.speaker)

    @property
    def principal(self) -> Principal | None:
        """Who has sent the input, or decided what the turn waited for; None if nobody knows."""
        decided = [
            question["principal"]
            for question in self.state.interrupts.values()
            if question.get("speaker") == self.speaker and "principal" in question
        ]
        return Principal.from_dict(decided[-1] if decided else self.state.principal)

    @property
    def input_id(self) -> str:
        """The id of the outside input that the round serves."""
        return f"{self.session.id}@{self.state.input}"

    def ledger(self) -> RoundLedger:
        """Return the ledger that the guards of this round write to."""
        place = (self.speaker, self.number, self.attempt)
        return RoundLedger(self.session, *place, self.input_id, self.audience)

    def policy(self, team_policy: HandoffPolicy) -> HandoffPolicy:
        """Return the team's handoff policy, with the present participants as targets."""
        present = self.state.participant_order
        names = [name for name in team_policy.participants if name in present]
        names += [name for name in present if name not in names]
        return replace(team_policy, participants=names)

    async def commit(
        self, packet: Mapping[str, Any], rejections: Sequence[Mapping[str, Any]]
    ) -> None:
        """Append the round's packet and its consequences; a second call appends nothing.

        `rejections` are the handoffs that were not made. Raises `ConfigurationError` for what the
        log cannot store, and `NeedsAnswer` if a model has to be asked who speaks next.
        """
        updates = packet["context_updates"]
        if updates["set"]:
            check_context(net_context(self.session.state.context_vars, updates))
        await self.session.tasks.end_round(self.speaker, self.number, self.attempt, "completed")
        fields = self.ledger().take_packet_fields()
        data = {**packet, **fields}
        cause = self.state.last_envelope_id
        draft = Draft(ev.EV_PACKET, data, audience=self.state.audience, causation_id=cause)

        def fill(page: Page) -> None:
            for rejection in rejections:
                handoff = {"from": self.speaker, **rejection}
                page.note(ev.EV_HANDOFF_REJECTED, handoff, audience=self.audience)
            page.say(self.speaker, draft)

        try:
            await self.session.end_turn(self.speaker, self.number, fill)
        except NeedsAnswer:
            self.session.agent_paths.put_back(self.speaker, fields.get("path", ()))
            raise

    async def fail(
        self,
        code: str,
        message: str,
        usage: Mapping[str, Any],
        cause: str = "",
        remains: Mapping[str, Any] | None = None,
    ) -> None:
        """Append that the round failed; it runs again unless the failure is final.

        If the failure ends the session, the actions of the input are undone first. `cause` says
        why a guard has ended the round; its `message` is the guard. `remains` is what the round
        leaves to later ones all the same. In a session of one each failure is final: its guards
        have tried the model again, and a person may do so with the whole run.
        """
        outcome: Any = "expired" if code == "deadline" else "failed"
        await self.session.tasks.end_round(self.speaker, self.number, self.attempt, outcome)
        failures = self.session.state.failures.get(self.speaker, 0)
        is_single = self.state.is_single and code != "checkpoint_lost"
        is_final = is_single or failures >= RETRIES or code in _NEVER_REPEATED
        ledger = self.ledger()
        if is_final and (self._ends_session() or (is_single and code in _STOPS)):
            await roll_back(ledger, "round_failed")
        data = {
            "speaker": self.speaker,
            "round": self.number,
            "attempt": self.attempt,
            "code": code,
            "message": message[:_LONGEST_MESSAGE],
            **({"cause": cause[:_LONGEST_MESSAGE]} if cause else {}),
            "usage": dict(usage),
            **ledger.take_packet_fields(),
            **(remains or {}),
        }
        await self.session.end_turn(
            self.speaker, self.number, lambda page: page.fail(data, final=is_final)
        )

    def _ends_session(self) -> bool:
        """Tell whether the session would end if this round failed for good."""
        page = Page(self.session.state, self.session.rules)
        page.fail({"speaker": self.speaker, "round": self.number}, final=True)
        return page.state.status == "closing"

    def begin_input(self, audit: AuditTrail | None) -> None:
        """Write the begin of the input to the audit trail, in its first round in this process.

        The work of an inner session is recorded with the outer input that it serves.
        """
        session, state = self.session, self.state
        if audit is None or session.audited_input == self.input_id or session.counts_in_outer:
            return
        session.audited_input = self.input_id
        is_begun_by_input = state.input == state.round_began or 0 < state.rewound == state.input
        is_first = self.attempt == 1 and is_begun_by_input
        if is_first and not state.interrupts:
            sender = state.asked_by
            run_began(audit, self.input_id, session.id, sequence=state.input, sender=sender)
        else:
            run_continued(audit, self.input_id)

    def end_input(self, audit: AuditTrail | None) -> None:
        """Write the end of the input to the audit trail, if no agent is due for it any more."""
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
    """Fail the present round for good, for all speakers who are due."""
    attempts, number = session.attempts, session.state.round
    if attempts <= 2 * ATTEMPTS:  # beyond that, the undoing itself may kill the process
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
    """Return the round that this code runs in, None outside of a round."""
    return _round.get()


def current_attempt() -> tuple[str, int, int]:
    """Return speaker, round and attempt of the turn that this code runs in."""
    round = _round.get()
    return ("", 0, 0) if round is None else (round.speaker, round.number, round.attempt)


@contextmanager
def inside(round: Round) -> Iterator[None]:
    """Make `round` the current round for the code inside this block."""
    token = _round.set(round)
    try:
        yield
    finally:
        _round.reset(token)
