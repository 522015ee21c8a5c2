"""What is appended together: stamped, decided on, and folded, before any store sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from agentgraph.clock import clock
from agentgraph.routing import TransitionDecision, TransitionGraph
from agentgraph.routing.protocols import HUMAN
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Draft, Envelope
from agentgraph.sessions.state.fold import counted, decided, fold
from agentgraph.sessions.state.state import SessionState


@dataclass(frozen=True, slots=True)
class Rules:
    """Who decides in a session: its graph, and who may move the floor without having it."""

    graph: TransitionGraph
    supervisor: str | None = None
    failure_target: str | None = None
    """Who goes on after a round that failed for good; None closes."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An envelope as rules see it: a text decides nothing by itself, whatever it carries."""

    sender_id: str
    event_type: str
    event_data: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, said: Envelope) -> Heard:
        kept = said.event_data
        if said.event_type != ev.EV_PACKET and "routing" in kept:
            kept = {key: value for key, value in kept.items() if key != "routing"}
        return cls(said.sender_id, said.event_type, kept, said.metadata)


@dataclass(slots=True)
class Page:
    """Envelopes after `state`, and the state that they lead to."""

    state: SessionState
    rules: Rules
    envelopes: list[Envelope] = field(default_factory=list)
    admitted_ids: set[str] = field(default_factory=set)
    closing: str | None = None
    """Why the session ends with this page, if it does by more than a decision."""
    expires: bool = False

    def add(self, sender: str, draft: Draft, *, envelope_id: str | None = None) -> Envelope:
        """Add what decides nothing."""
        envelope = self._stamped(sender, draft, envelope_id)
        self._put(envelope, fold(self.state, envelope))
        return envelope

    def note(self, event_type: str, data: Mapping[str, Any], **fields: Any) -> Envelope:
        """Add what the session says of itself."""
        return self.add(ev.SYSTEM, Draft(event_type, data, **fields))

    def say(self, sender: str, draft: Draft, *, envelope_id: str | None = None) -> Envelope:
        """Add what somebody says, decide on it if it is their turn, and tell what that changed."""
        envelope = self._stamped(sender, draft, envelope_id)
        after = counted(self.state, envelope)
        decision = self._decision(self.state, after, envelope)
        return self._decide(envelope, after, decision)

    def release(self, agent: str, *, envelope_id: str | None = None) -> None:
        """Give the floor to an agent, which a human had."""
        draft = Draft(ev.EV_SESSION_RELEASED, {"agent": agent})
        envelope = self._stamped(ev.SYSTEM, draft, envelope_id)
        given = TransitionDecision("speak", (agent,), rule="default")
        self._decide(envelope, counted(self.state, envelope), given)

    def fail(self, data: Mapping[str, Any], *, final: bool) -> None:
        """Note that a round failed; for good, its speaker counts as having spoken."""
        marked = {**data, "final": final}
        envelope = self._stamped(ev.SYSTEM, Draft(ev.EV_ROUND_FAILED, marked), None)
        after = counted(self.state, envelope)
        over = final and not after.due and after.given_up
        self._decide(envelope, after, self._after_failure(after) if over else None)

    def close(self, reason: str) -> None:
        """Let the session end with this page."""
        self.closing = self.closing if self.closing is not None else reason

    @property
    def ends(self) -> bool:
        """Whether the session ends with this page."""
        return self.closing is not None or self.state.status == "closing"

    def finish(self) -> None:
        """Add the end itself."""
        if self.expires:
            self.note(ev.EV_SESSION_EXPIRED, {})
        reason = self.state.pending_close_reason if self.closing is None else self.closing
        self.note(ev.EV_SESSION_CLOSED, {"reason": reason})

    def decide_after_human(
        self, before: SessionState, decision: TransitionDecision
    ) -> TransitionDecision:
        """Give the floor back to whoever asked a human, where no rule says what follows."""
        asked = before.decision or {}
        was_asked = asked.get("action") == "wait" and asked.get("rule") == "handoff"
        asker = before.last_speaker_id
        if not was_asked or decision.rule != "default" or asker not in before.participant_order:
            return decision
        return TransitionDecision("speak", (str(asker),), rule="default")

    def _decide(
        self, envelope: Envelope, after: SessionState, decision: TransitionDecision | None
    ) -> Envelope:
        if decision is not None:
            decision = self._awaiting(decision)
            data = {**envelope.event_data, "decision": decision.to_dict()}
            envelope = replace(envelope, event_data=data)
            after = decided(after, envelope, decision)
        self._put(envelope, after)
        if decision is not None:
            self._tell_moves(envelope, decision)
        return envelope

    def _awaiting(self, decision: TransitionDecision) -> TransitionDecision:
        """Let the session wait where a human is to speak: rules may know them by name alone."""
        is_human = decision.action == "speak" and decision.next_speaker in self.state.humans
        return replace(decision, action="wait") if is_human else decision

    def _decision(
        self, before: SessionState, after: SessionState, said: Envelope
    ) -> TransitionDecision | None:
        if before.status == "closing":
            return None  # what comes in beside the end does not undo it
        heard = Heard.of(said)
        graph = self.rules.graph
        if before.round == 0 and said.sender_id == before.creator_id:
            return graph.resolve(after, heard)
        if said.sender_id == self.rules.supervisor and said.event_type == ev.EV_PACKET:
            return _intervention(said, before)
        if said.sender_id not in before.due or after.due:
            return None
        if len(before.speakers) == 1:
            return self.decide_after_human(before, graph.resolve(after, heard))
        if after.given_up:
            return self._after_failure(after)
        called = TransitionDecision.from_dict(before.decision or {})
        return graph.join(called, after, _Finished.of(before) or heard)

    def _after_failure(self, after: SessionState) -> TransitionDecision:
        target, state = self.rules.failure_target, self.state
        known = (*state.participant_order, state.creator_id, HUMAN)
        if target is None or target not in known or target in (*state.given_up, *state.due):
            why = after.stopped or "round_failed"
            return TransitionDecision("close", close_reason=why, rule="default")
        if target in (*state.humans, HUMAN):
            human = state.creator_id if target == HUMAN else target
            return TransitionDecision("wait", (human,), rule="default")
        return TransitionDecision("speak", (target,), rule="default")

    def _tell_moves(self, envelope: Envelope, decision: TransitionDecision) -> None:
        routing = envelope.event_data.get("routing")
        if decision.rule == "handoff" and isinstance(routing, Mapping):
            told = {
                "from": envelope.sender_id,
                "target": HUMAN if routing.get("target") == HUMAN else decision.next_speaker,
                "reason": routing.get("reason") or "",
                "summary": routing.get("summary") or "",
                "next_phase": decision.phase,
                "channel_escalation": routing.get("channel_escalation") or "same",
            }
            was = self.state.phase
            cause = {"causation_id": envelope.envelope_id, "audience": envelope.audience}
            self.note(ev.EV_HANDOFF, told, **cause)
            if self.state.phase != was:
                self._tell_phase(was, self.state.phase, envelope)
        elif decision.phase is not None and decision.phase != self.state.phase:
            self._tell_phase(self.state.phase, decision.phase, envelope)

    def _tell_phase(self, before: str, after: str, cause: Envelope) -> None:
        told = {"from": before, "to": after, "reason": "", "by": cause.sender_id}
        self.note(ev.EV_PHASE, told, causation_id=cause.envelope_id)

    def _stamped(self, sender: str, draft: Draft, envelope_id: str | None) -> Envelope:
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
            max(now, self.state.updated_at),  # a clock that was set back does not set back the log
            self.state.sequence + 1,
        )

    def _put(self, envelope: Envelope, state: SessionState) -> None:
        self.envelopes.append(envelope)
        self.state = state


@dataclass(frozen=True, slots=True)
class _Finished:
    """The turn of one of several speakers that has ended all of theirs."""

    sender_id: str
    event_data: Mapping[str, Any]
    event_type: str = ev.EV_PACKET
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, state: SessionState) -> _Finished | None:
        return None if state.finish is None else cls(state.finish["sender_id"], state.finish)


def ask_anew(page: Page) -> None:
    """Have what was asked asked again, where no checkpoint waits for the answers."""
    for speaker in {str(asked["speaker"]) for asked in page.state.interrupts.values()}:
        told = {"speaker": speaker, "round": page.state.round, "attempt": 0}
        lost = {"code": "checkpoint_lost", "message": "what was asked is asked again"}
        page.fail({**told, **lost}, final=False)


def timestamp(wall: float) -> str:
    """Return an instant as envelopes have it: it sorts as text."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")


def _intervention(said: Envelope, state: SessionState) -> TransitionDecision | None:
    """Return where a supervisor moves the floor, if it does."""
    routing = said.event_data.get("routing")
    if not isinstance(routing, Mapping):
        return None
    reason, target, phase = (routing.get(key) for key in ("reason", "target", "next_phase"))
    if routing.get("kind") == "finish":
        return TransitionDecision("close", close_reason=str(reason or "finished"), rule="finish")
    phase = phase if isinstance(phase, str) else None
    if routing.get("kind") != "handoff" or not isinstance(target, str):
        return None
    if target == HUMAN:
        return TransitionDecision("wait", (state.creator_id,), phase, rule="handoff")
    if target not in (*state.participant_order, state.creator_id):
        return None  # they have left meanwhile
    return TransitionDecision("speak", (target,), phase, rule="handoff")
