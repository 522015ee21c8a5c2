"""The rules of a session: who speaks next after an envelope, and why.

A rule decides once, when its envelope is admitted. The decision is stored in the envelope, and the
fold reads it there: a log folds to the same state whatever rules are registered later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from agentgraph.routing import Explanation, TransitionDecision, TransitionGraph
from agentgraph.routing.frozen_json import freeze_object
from agentgraph.routing.protocols import HUMAN
from agentgraph.routing.questions import Question
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.fold import apply_event, decision_of
from agentgraph.sessions.state.parallel import turns_of
from agentgraph.sessions.state.state import SessionState

Answers: TypeAlias = Mapping[str, Any]
"""What a message is stamped with where models were asked: `asked`, and their `usage`."""


class NeedsAnswer(Exception):
    """The decision on an envelope needs the answer of a model, which the envelope does not have."""

    def __init__(self, question: Question, envelope: Envelope) -> None:
        super().__init__(question.text)
        self.question = question
        self.envelope = envelope


class Asker(Protocol):
    """Asks models for the rules."""

    async def ask(self, question: Question, transcript: str) -> dict[str, Any]:
        """Return the answer to a question about a conversation, as an envelope stores it."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The transition graph of a session, and who may move the floor without having it."""

    graph: TransitionGraph
    supervisor: str | None = None
    failure_target: str | None = None
    """Who has the floor after a round that failed for good; None closes the session."""
    asker: Asker | None = None
    """Asks the models that the rules name; None where they name none, or nothing is decided."""

    def decide(
        self, before: SessionState, after: SessionState, envelope: Envelope
    ) -> TransitionDecision | None:
        """Return the decision on an envelope, None if it decides nothing.

        `before` is the state without the envelope, `after` the state with its event applied.
        Raises `NeedsAnswer` if a model has to be asked first.
        """
        if before.status == "closing":
            return None  # an envelope that enters while the session ends does not undo the end
        decision = self._decide(before, after, envelope)
        return None if decision is None else ask_person(decision, before)

    def _decide(
        self, before: SessionState, after: SessionState, envelope: Envelope
    ) -> TransitionDecision | None:
        routing_input = RoutingInput.of(envelope, before)
        if before.is_single:
            return _wait_instead_of_close(before, self.graph.resolve(after, routing_input))
        is_opening = before.decision is None and not before.speakers
        if is_opening and envelope.sender_id == before.creator_id:
            return self._resolve(after, envelope, routing_input)
        if envelope.sender_id == self.supervisor and envelope.event_type == ev.EV_PACKET:
            return _intervention(envelope, before)
        if envelope.sender_id not in before.due or after.due:
            return None
        if len(before.speakers) == 1:
            return _give_back(before, self._resolve(after, envelope, routing_input))
        if after.given_up:
            return self.after_failure(before, after)
        return self._join(before, after) or self.graph.join(
            TransitionDecision.from_dict(before.decision or {}), after, routing_input
        )

    def _resolve(
        self, after: SessionState, envelope: Envelope, routing_input: RoutingInput
    ) -> TransitionDecision:
        if self.asker is not None:
            question = self.graph.question(after, routing_input)
            if question is not None:
                raise NeedsAnswer(question, envelope)
        return self.graph.resolve(after, routing_input)

    def _join(self, before: SessionState, after: SessionState) -> TransitionDecision | None:
        """Decide for all speakers of a round, in their order and not in that of their packets.

        The first `finish` counts, else the first handoff that can be made, else the join.
        """
        fan_out = TransitionDecision.from_dict(before.decision or {})
        turns = turns_of(after)
        moves = [turn for turn in turns if turn.kind == "finish"]
        moves += [turn for turn in turns if turn.handoff_target is not None]
        for turn in moves:
            decision = self.graph.join(fan_out, after, turn)
            if decision.rule in ("finish", "handoff"):
                return decision
        return self.graph.join(fan_out, after, turns[-1]) if turns else None

    def after_failure(self, before: SessionState, after: SessionState) -> TransitionDecision:
        """Return the decision after a round that failed for good."""
        if before.is_single:
            return TransitionDecision("wait", (before.creator_id,), rule="default")
        target = self.failure_target
        reachable = (*before.participant_order, before.creator_id, HUMAN)
        is_excluded = target in (*before.given_up, *before.due)
        if target is None or target not in reachable or is_excluded:
            reason = after.stopped or "round_failed"
            return TransitionDecision("close", close_reason=reason, rule="default")
        if target in (*before.humans, HUMAN):
            human = before.creator_id if target == HUMAN else target
            return TransitionDecision("wait", (human,), rule="default")
        return TransitionDecision("speak", (target,), rule="default")


@dataclass(frozen=True, slots=True)
class RoutingInput:
    """An envelope as rules see it.

    A text has no `routing`, whatever its data holds. What a person says to an audience is addressed
    to it.
    """

    sender_id: str
    event_type: str
    event_data: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, envelope: Envelope, state: SessionState) -> RoutingInput:
        """Return the view that rules have of an envelope, in the state before it."""
        data, metadata = envelope.event_data, envelope.metadata
        if envelope.event_type != ev.EV_PACKET and "routing" in data:
            data = freeze_object({key: data[key] for key in data if key != "routing"})
        if envelope.audience is not None and "addressed_to" not in metadata:
            metadata = {**metadata, **_address_of(envelope, state)}
        return cls(envelope.sender_id, envelope.event_type, data, metadata)


def _address_of(envelope: Envelope, state: SessionState) -> dict[str, list[str]]:
    """Return the `addressed_to` of what a person says to an audience: agents, else people."""
    sender, agents = envelope.sender_id, state.agents
    if sender in agents:
        return {}  # its audience is that of the round
    names = [name for name in envelope.audience or () if name != sender]
    agent_names = [name for name in names if name in agents]
    return {"addressed_to": agent_names or names} if names else {}


def ask_person(decision: TransitionDecision, state: SessionState) -> TransitionDecision:
    """Let a handoff to "human" wait for a person other than the creator, if there is one.

    A creator who is not alone with agents is a customer, who cannot answer for the staff.
    """
    creator = state.creator_id
    if (decision.action, decision.rule, decision.speakers) != ("wait", "handoff", (creator,)):
        return decision
    present = [name for name in state.participant_order if name in state.humans and name != creator]
    person = next((name for name in present if name in state.acks), None)
    return decision if person is None else replace(decision, speakers=(person,))


def _wait_instead_of_close(
    before: SessionState, decision: TransitionDecision
) -> TransitionDecision:
    """Return the decision in a session of one, which no run ends."""
    if decision.action != "close":
        return decision
    return TransitionDecision("wait", (before.creator_id,), rule=decision.rule)


def _give_back(before: SessionState, decision: TransitionDecision) -> TransitionDecision:
    """Give the floor back to the agent that asked a human, or to those that one has interrupted.

    A rule that decides otherwise counts.
    """
    previous = before.decision or {}
    if before.cancelled_decision is not None and decision.rule == "default":
        again = TransitionDecision.from_dict(before.cancelled_decision)
        is_possible = again.speakers and {*again.speakers}.issubset(before.participant_order)
        return replace(again, phase=None) if is_possible else decision
    was_asked = previous.get("action") == "wait" and previous.get("rule") == "handoff"
    asker = before.last_speaker_id
    if not was_asked or decision.rule != "default" or asker not in before.participant_order:
        return decision
    return TransitionDecision("speak", (str(asker),), rule="default")


def _intervention(envelope: Envelope, state: SessionState) -> TransitionDecision | None:
    """Return the decision by which a supervisor moves the floor, None if it moves nothing."""
    routing = envelope.event_data.get("routing")
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
        return None  # the target has left meanwhile
    return TransitionDecision("speak", (target,), phase, rule="handoff")


def wait_for_human(decision: TransitionDecision, state: SessionState) -> TransitionDecision:
    """Turn a decision for a human into waiting: rules name humans in the same way as agents."""
    is_human = decision.action == "speak" and decision.next_speaker in state.humans
    return replace(decision, action="wait") if is_human else decision


@dataclass(frozen=True, slots=True)
class SessionExplanation:
    """The decision on an envelope, and why no earlier rule made it.

        print(await session.explain(sequence=7))

    `explanation` is None if no rule decided: after a release by a human, or a failed round.
    """

    envelope: Envelope
    decision: TransitionDecision | None
    explanation: Explanation | None

    def __str__(self) -> str:
        if self.decision is None:
            return f"{self.envelope.sequence}: nothing was decided on it"
        return str(self.explanation or self.decision)


def explain_envelope(rules: Rules, before: SessionState, envelope: Envelope) -> SessionExplanation:
    """Explain the decision on an envelope; `before` is the state before it."""
    decision = decision_of(envelope)
    if decision is None:
        return SessionExplanation(envelope, None, None)
    routing_input = RoutingInput.of(envelope, before)
    explanation = rules.graph.explain(apply_event(before, envelope), routing_input)
    explanation = replace(explanation, decision=ask_person(explanation.decision, before))
    # A release, a failed round and the join of several speakers are decided by no rule.
    is_by_rule = envelope.is_substantive and explanation.decision == decision
    return SessionExplanation(envelope, decision, explanation if is_by_rule else None)
