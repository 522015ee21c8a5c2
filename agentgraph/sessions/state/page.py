"""The page: envelopes that are stamped and decided on together, and then appended as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agentgraph.clock import clock
from agentgraph.routing import TransitionDecision
from agentgraph.routing.protocols import HUMAN
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.fold import (
    WITHDRAWAL,
    apply_decision,
    apply_event,
    decision_of,
    fold,
)
from agentgraph.sessions.state.parallel import STAMP, Turn, stamp_of, turns_of
from agentgraph.sessions.state.rewind import rewound_data
from agentgraph.sessions.state.rules import Answers, Rules, wait_for_human
from agentgraph.sessions.state.state import EMPTY_OBJECT, SessionState
from agentgraph.sessions.state.visibility import Audience, round_audience, with_names


@dataclass(slots=True)
class Page:
    """Envelopes that follow on `state`, and the state after them.

    A page is built in memory and appended as a whole: an append that is refused leaves no trace.
    """

    state: SessionState
    rules: Rules
    envelopes: list[Envelope] = field(default_factory=list)
    admitted_ids: set[str] = field(default_factory=set)
    """The ids of the inbox entries that the page admits; the append removes them from the inbox."""
    close_reason: str | None = None
    """Why the session ends with this page, if no envelope's decision ends it."""
    answers: Mapping[str, Answers] = field(default_factory=dict)
    """What models have answered on messages that are to be admitted, by their ids."""
    expires: bool = False

    def add(self, sender: str, draft: Draft, *, envelope_id: str | None = None) -> Envelope:
        """Add an envelope that decides nothing."""
        envelope = self._stamp(sender, draft, envelope_id)
        self._append(envelope, fold(self.state, envelope))
        return envelope

    def note(self, event_type: str, data: Mapping[str, Any], **fields: Any) -> Envelope:
        """Add an envelope with the session itself as its sender."""
        return self.add(ev.SYSTEM, Draft(event_type, data, **fields))

    def say(self, sender: str, draft: Draft, *, envelope_id: str | None = None) -> Envelope:
        """Add a text or packet; if its sender has the floor, decide on it and note the changes.

        The changes are a handoff or a new phase, each as an envelope of its own. Raises
        `NeedsAnswer`, and adds nothing, if the decision needs the answer of a model.
        """
        envelope = self._stamp(sender, draft, envelope_id)
        if envelope.envelope_id in self.answers:
            data = {**envelope.event_data, **self.answers[envelope.envelope_id]}
            envelope = replace(envelope, event_data=data)
        if len(self.state.speakers) > 1:
            stamp = stamp_of(self.state, sender, _packet_data(draft))
            envelope = replace(envelope, event_data={**envelope.event_data, **stamp})
        after = apply_event(self.state, envelope)
        decision = self.rules.decide(self.state, after, envelope)
        return self._decide(envelope, after, decision)

    def withdraw_questions(self, remains: Mapping[str, Any]) -> None:
        """Take back what a human was asked; `remains` is what the run that asked has left."""
        for key, question in self.state.interrupts.items():
            data = {"interrupt_id": key, "type": WITHDRAWAL, "decision": {"type": WITHDRAWAL}}
            audience = round_audience(self.state, question.get("speaker"))
            self.note(ev.EV_DECISION, {**data, **remains}, audience=audience)
            remains = {}

    def release(
        self,
        agent: str,
        *,
        envelope_id: str | None = None,
        metadata: Mapping[str, Any] = EMPTY_OBJECT,
    ) -> None:
        """Give the floor from a human to an agent."""
        data, audience = {"agent": agent}, self.state.audience
        draft = Draft(ev.EV_SESSION_RELEASED, data, audience=audience, metadata=metadata)
        envelope = self._stamp(ev.SYSTEM, draft, envelope_id)
        decision = TransitionDecision("speak", (agent,), rule="default")
        self._decide(envelope, apply_event(self.state, envelope), decision)

    def fail(self, data: Mapping[str, Any], *, final: bool) -> None:
        """Add the failure of a round; if it is final, its speaker counts as having spoken."""
        stamp = stamp_of(self.state, str(data.get("speaker")), {}) if final else {}
        audience = round_audience(self.state, data.get("speaker"))
        data = {**data, "final": final, **stamp}
        draft = Draft(ev.EV_ROUND_FAILED, data, audience=audience)
        envelope = self._stamp(ev.SYSTEM, draft, None)
        after = apply_event(self.state, envelope)
        is_over = final and not after.due and after.given_up
        decision = self.rules.after_failure(self.state, after) if is_over else None
        self._decide(envelope, after, decision)

    def cancel(self, data: Mapping[str, Any], *, envelope_id: str | None = None) -> None:
        """Cancel the round under way: the creator has the floor."""
        state = self.state
        audience = with_names(state.audience, state.due)
        envelope = self._stamp(
            ev.SYSTEM, Draft(ev.EV_CANCELLED, data, audience=audience), envelope_id
        )
        decision = TransitionDecision.wait(state.creator_id)
        self._decide(envelope, apply_event(state, envelope), decision)

    def rewind(
        self,
        data: Mapping[str, Any],
        then: SessionState,
        *,
        envelope_id: str | None = None,
        metadata: Mapping[str, Any] = EMPTY_OBJECT,
    ) -> None:
        """Go back to the state `then`; who was asked something in it is asked again."""
        draft = Draft(ev.EV_REWOUND, {}, metadata=metadata)
        envelope = self._stamp(ev.SYSTEM, draft, envelope_id)
        # Beside the draft: what the states hold has no limit of size.
        envelope = replace(envelope, event_data={**data, **rewound_data(self.state, then)})
        self._append(envelope, fold(self.state, envelope))
        ask_again(self)

    def close(self, reason: str) -> None:
        """End the session with this page; of several reasons the first one counts."""
        self.close_reason = self.close_reason if self.close_reason is not None else reason

    @property
    def ends(self) -> bool:
        """Whether the session ends with this page."""
        return self.close_reason is not None or self.state.status == "closing"

    def finish(self) -> None:
        """Add the envelopes that end the session."""
        if self.expires:
            self.note(ev.EV_SESSION_EXPIRED, {})
        is_decided = self.close_reason is None
        reason = self.state.pending_close_reason if is_decided else self.close_reason
        if is_decided and any(map(_is_private_finish, self.envelopes)):
            reason = "finished"  # all may see why the session has ended
        self.note(ev.EV_SESSION_CLOSED, {"reason": reason})

    def _decide(
        self, envelope: Envelope, after: SessionState, decision: TransitionDecision | None
    ) -> Envelope:
        if decision is not None:
            decision = wait_for_human(decision, self.state)
            turns = turns_of(after) if len(after.speakers) > 1 else []
            handoffs = [turn for turn in turns if turn.handoff_target is not None]
            mover = _mover(handoffs, decision) if STAMP in envelope.event_data else None
            audience = self.state.audience
            data = {**envelope.event_data, "decision": decision.to_dict()}
            if mover is not None and STAMP in data:
                data[STAMP] = {**data[STAMP], "decided_by": mover.sender_id}
            # Of parallel speakers the one that is last has nothing to do with another's handoff.
            joins = decision.rule == "handoff" and STAMP not in data
            readers = with_names(envelope.audience, decision.speakers if joins else ())
            if readers != envelope.audience:  # who may see it is part of the event
                envelope = replace(envelope, audience=readers)
                after = apply_event(self.state, envelope)
            envelope = replace(envelope, event_data=data)
            after = apply_decision(after, envelope, decision)
            self._append(envelope, after)
            self._note_moves(mover or envelope, envelope, decision)
            self._reject([turn for turn in handoffs if turn is not mover], audience)
        else:
            self._append(envelope, after)
        return envelope

    def _reject(self, handoffs: Sequence[Turn], audience: Audience) -> None:
        """Note the handoffs of a parallel round that are not made."""
        for turn in handoffs:
            routing = turn.event_data["routing"]
            names = ("target", "reason", "summary", "next_phase", "channel_escalation")
            data = {name: routing[name] for name in names if name in routing}
            data |= {"from": turn.sender_id, "told": "Another speaker's turn decided the round."}
            readers = with_names(audience, (turn.sender_id,))
            cause = {"causation_id": turn.envelope_id, "audience": readers}
            self.note(ev.EV_HANDOFF_REJECTED, data, **cause)

    def _note_moves(
        self, mover: Envelope | Turn, envelope: Envelope, decision: TransitionDecision
    ) -> None:
        routing = mover.event_data.get("routing")
        if decision.rule == "handoff" and isinstance(routing, Mapping):
            phase_before = self.state.phase
            handoff = _handoff_data(mover.sender_id, routing, decision)
            names = (*decision.speakers, mover.sender_id)
            audience = with_names(envelope.audience, names)
            cause = {"causation_id": mover.envelope_id, "audience": audience}
            self.note(ev.EV_HANDOFF, handoff, **cause)
            if self.state.phase != phase_before:
                self._note_phase(phase_before, self.state.phase, mover, handoff["reason"])
        elif decision.phase is not None and decision.phase != self.state.phase:
            reason = routing.get("reason") if isinstance(routing, Mapping) else None
            by_rule = f"rule {decision.rule}" if isinstance(decision.rule, int) else decision.rule
            self._note_phase(self.state.phase, decision.phase, mover, str(reason or by_rule))

    def _note_phase(self, before: str, after: str, cause: Envelope | Turn, reason: str) -> None:
        data = {"from": before, "to": after, "reason": reason, "by": cause.sender_id}
        self.note(ev.EV_PHASE, data, causation_id=cause.envelope_id)

    def _stamp(self, sender: str, draft: Draft, envelope_id: str | None) -> Envelope:
        now = timestamp(clock().wall())
        return Envelope(
            envelope_id or clock().new_id(),
            self.state.session_id,
            sender,
            draft.audience,
            draft.event_type,
            draft.event_data,
            draft.causation_id,
            draft.priority,
            draft.idempotency_key,
            draft.metadata,
            max(now, self.state.updated_at),  # the clock may be set back; the log's time is not
            self.state.sequence + 1,
        )

    def _append(self, envelope: Envelope, state: SessionState) -> None:
        self.envelopes.append(envelope)
        self.state = state


def ask_again(page: Page) -> None:
    """Fail the round of each speaker with an open interrupt, as its checkpoint is missing.

    So a fork asks its humans again: answers to the first interrupts belong to the original.
    """
    for speaker in {str(asked["speaker"]) for asked in page.state.interrupts.values()}:
        failure = {
            "speaker": speaker,
            "round": page.state.round,
            "attempt": 0,
            "code": "checkpoint_lost",
            "message": "what was asked is asked again",
        }
        page.fail(failure, final=False)


def timestamp(wall: float) -> str:
    """Return an instant as the text that envelopes have: in UTC, so that texts sort by time."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")


def _is_private_finish(envelope: Envelope) -> bool:
    """Tell whether an agent has ended the session in private: the reason is its own text."""
    decision = decision_of(envelope)
    is_finish = decision is not None and (decision.action, decision.rule) == ("close", "finish")
    return is_finish and envelope.audience is not None


def _packet_data(draft: Draft) -> Mapping[str, Any]:
    return draft.event_data if draft.event_type == ev.EV_PACKET else {}


def _mover(handoffs: Sequence[Turn], decision: TransitionDecision) -> Turn | None:
    """Return whose handoff was made in a parallel round, None if none was."""
    if decision.rule != "handoff":
        return None
    targets = (HUMAN, *decision.speakers) if decision.action == "wait" else decision.speakers
    for turn in handoffs:
        if turn.handoff_target in targets and turn.handoff_target != turn.sender_id:
            return turn
    return None


def _handoff_data(
    sender: str, routing: Mapping[str, Any], decision: TransitionDecision
) -> dict[str, Any]:
    return {
        "from": sender,
        "target": HUMAN if routing.get("target") == HUMAN else decision.next_speaker,
        "reason": routing.get("reason") or "",
        "summary": routing.get("summary") or "",
        "next_phase": decision.phase,
        "channel_escalation": routing.get("channel_escalation") or "same",
    }
