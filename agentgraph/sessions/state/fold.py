"""The fold: what an envelope does to the state of its session. Pure, total, and without rules.

Who goes on was decided when the envelope was admitted, and is stamp on it. So a log folds to the
same state whatever code is registered by then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeGuard

from agentgraph.phases import KEEP, ConversationState
from agentgraph.routing import TransitionDecision
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.input_account import (
    apply_audit,
    begin_input,
    charge_turn,
)
from agentgraph.sessions.state.state import SessionState, Status, fold_in_place, replace

Step: TypeAlias = Callable[[SessionState, Envelope], SessionState]
"""What an event does to the state. Its data may be anything that JSON has: it must never raise."""

_MAX_PHASES = 20
"""How many phases a state keeps, as it is stored with every append; the log has them all."""


def fold(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after an envelope."""
    after = apply_event(state, envelope)
    decision = decision_of(envelope)
    return after if decision is None else apply_decision(after, envelope, decision)


def fold_all(state: SessionState, envelopes: Iterable[Envelope]) -> SessionState:
    """Return the state after envelopes, in their order."""
    return fold_in_place(state, fold, envelopes)


def apply_event(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after what an envelope says, before what was decided on it."""
    step = _STEPS.get(envelope.event_type)
    if step is not None:
        state = step(state, envelope)
    return replace(state, sequence=envelope.sequence, updated_at=envelope.created_at)


def apply_decision(
    state: SessionState, envelope: Envelope, decision: TransitionDecision
) -> SessionState:
    """Return the state after what was decided on an envelope: a new round, or the end."""
    if decision.action == "close":
        return replace(
            state,
            status="closing",
            pending_close_reason=decision.close_reason,
            speakers=(),
            spoken=(),
            expected_next_speaker=None,
        )
    waits = decision.action == "wait"
    return replace(
        state,
        status="waiting_human" if waits else _status(state, state.interrupts, decision.speakers),
        round=state.round + 1,
        speakers=decision.speakers,
        spoken=(),
        given_up=(),
        stopped="",
        finish=None,
        failures={},
        decision=decision.to_dict(),
        round_began=envelope.sequence,
        floor_at=envelope.created_at,
        expected_next_speaker=decision.next_speaker,
    )


def decision_of(envelope: Envelope) -> TransitionDecision | None:
    """Return what was decided on an envelope, None where nothing was."""
    stamp = envelope.event_data.get("decision")
    if envelope.event_type not in _DECISION_TYPES or not _is_decision(stamp):
        return None
    return TransitionDecision(
        stamp["action"],
        tuple(stamp["speakers"]),
        stamp["phase"],
        stamp["close_reason"],
        stamp["rule"],
    )


def net_context(context: Mapping[str, Any], updates: object) -> Mapping[str, Any]:
    """Return context variables after updates: what is deleted goes, then what is set comes."""
    if not isinstance(updates, Mapping):
        return context
    deletions, values = updates.get("delete"), updates.get("set")
    if not deletions and not values:
        return context
    keys = deletions if isinstance(deletions, Sequence) else ()
    rest = {key: value for key, value in context.items() if key not in keys}
    return {**rest, **values} if isinstance(values, Mapping) else rest


def _is_decision(stamp: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether this is a decision: a sender may have written anything in its place."""
    if not isinstance(stamp, Mapping) or stamp.keys() != _DECISION_KEYS:
        return False
    speakers, rule = stamp["speakers"], stamp["rule"]
    return (
        stamp["action"] in ("speak", "wait", "close")
        and isinstance(speakers, list)
        and _TEXT.issuperset(map(type, speakers))
        and isinstance(rule, int | str)
        and isinstance(stamp["phase"], str | None)
        and isinstance(stamp["close_reason"], str)
    )


_DECISION_KEYS = TransitionDecision("close").to_dict().keys()
_TEXT = frozenset({str})


def _status(
    state: SessionState, interrupts: Mapping[str, Mapping[str, Any]], due: Sequence[str]
) -> Status:
    """Return the status of a session whose round is under way, by what it waits for."""
    if interrupts:
        return "waiting_decision"
    if due and set(due).issubset(state.humans):
        return "waiting_human"
    return "active"


def _on_message(state: SessionState, envelope: Envelope) -> SessionState:
    """Apply a text or a packet: somebody has spoken, whose turn it may have been."""
    sender = envelope.sender_id
    is_agent = sender in state.participant_order and sender not in state.humans
    is_outside = not is_agent and (sender in state.humans or sender == state.creator_id)
    changes: dict[str, Any] = {
        **(begin_input(state, envelope) if is_outside else charge_turn(state, sender, envelope)),
        "last_envelope_id": envelope.envelope_id,
        "said": {**state.said, sender: state.said.get(sender, 0) + 1},
        "spoke_at": envelope.created_at,
        "spoke": envelope.sequence,
    }
    if sender != state.asked_by:
        changes |= {
            "asked_by": sender,
            "asked_at": envelope.created_at,
            "asked": envelope.sequence,
        }
    due = state.due
    if sender in due:
        still_due = [name for name in due if name != sender]
        changes |= _end_turn(state, envelope, still_due)
    elif state.speakers and not state.spoken:
        # Said between two rounds: it is shown to the speakers of the next, who have not begun.
        changes["round_began"] = envelope.sequence
    return replace(state, **changes)


def _end_turn(
    state: SessionState, envelope: Envelope, still_due: Sequence[str]
) -> Mapping[str, Any]:
    """Return what changes in a round when one of its speakers has spoken."""
    sender = envelope.sender_id
    # A text carries no updates, whatever its sender wrote into it.
    data = envelope.event_data if envelope.event_type == ev.EV_PACKET else {}
    active = data.get("active")
    interrupts = _without_interrupts(state, sender) if state.interrupts else {}
    return {
        "status": _status(state, interrupts, still_due),
        "last_speaker_id": sender,
        "turn_count": state.turn_count + 1,
        "spoken": (*state.spoken, sender),
        "interrupts": interrupts,
        "context_vars": net_context(state.context_vars, data.get("context_updates")),
        "active": {**state.active, sender: active}
        if active is not None
        else _without_active(state, sender),
        "finish": state.finish or _finish(sender, data),
    }


def _finish(sender: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a packet that calls `finish`, None for another one."""
    routing = data.get("routing")
    if not isinstance(routing, Mapping) or routing.get("kind") != "finish":
        return None
    return {"sender_id": sender, "routing": routing}


def _without_active(state: SessionState, sender: str) -> Mapping[str, str | None]:
    return {name: path for name, path in state.active.items() if name != sender}


def _without_interrupts(state: SessionState, speaker: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the interrupts of all but one speaker."""
    return {
        key: interrupt
        for key, interrupt in state.interrupts.items()
        if interrupt.get("speaker") != speaker
    }


def _on_context_set(state: SessionState, envelope: Envelope) -> SessionState:
    return replace(state, context_vars=net_context(state.context_vars, envelope.event_data))


def _on_opened(state: SessionState, envelope: Envelope) -> SessionState:
    """Begin the session; where its creator speaks first, that is round 1."""
    first = envelope.event_data.get("initial_speaker")
    waits = first == state.creator_id
    return replace(
        state,
        status="active",
        opened_at=envelope.created_at,
        floor_at=envelope.created_at,
        round_began=envelope.sequence,
        expected_next_speaker=first if isinstance(first, str) else None,
        speakers=(first,) if waits and isinstance(first, str) else (),
        round=1 if waits else 0,
    )


def _on_invite_ack(state: SessionState, envelope: Envelope) -> SessionState:
    return replace(state, acks=(*state.acks, envelope.sender_id))


def _on_left(state: SessionState, envelope: Envelope) -> SessionState:
    """Take out a participant who has left."""
    participant = envelope.event_data.get("participant")
    order = tuple(name for name in state.participant_order if name != participant)
    return replace(state, participant_order=order)


def _on_released(state: SessionState, envelope: Envelope) -> SessionState:
    """Give the conversation to an agent, as a human has let go of it."""
    agent = envelope.event_data.get("agent")
    if not isinstance(agent, str):
        return state
    conversation = state.conversation
    conversation = conversation.transition(
        conversation.phase, agent, "released", at=_instant(envelope)
    )
    return replace(state, **begin_input(state, envelope), conversation=_trim(conversation))


def _on_closed(state: SessionState, envelope: Envelope) -> SessionState:
    """End the session: nobody is due, and nothing waits for a human."""
    reason = envelope.event_data.get("reason")
    return replace(
        state,
        status="expired" if state.status == "expired" else "closed",
        pending_close_reason=reason if isinstance(reason, str) else "",
        speakers=(),
        spoken=(),
        interrupts={},
        expected_next_speaker=None,
    )


def _on_expired(state: SessionState, envelope: Envelope) -> SessionState:
    return replace(state, status="expired")


def _on_expectation_violated(state: SessionState, envelope: Envelope) -> SessionState:
    # The latest violation of each expectation is enough: earlier occasions cannot come again.
    key = str(envelope.event_data.get("key"))
    expectation = key.rpartition(":")[0]
    keys = [item for item in state.violated if item.rpartition(":")[0] != expectation]
    return replace(state, violated=(*keys, key))


def _on_handoff(state: SessionState, envelope: Envelope) -> SessionState:
    """Give the conversation to another agent, or to nobody where a human is to take it."""
    data = envelope.event_data
    target, phase = data.get("target"), data.get("next_phase")
    reason = data.get("reason")
    conversation = state.conversation.transition(
        phase if isinstance(phase, str) else state.conversation.phase,
        target if isinstance(target, str) and target not in ("human", *state.humans) else None,
        reason if isinstance(reason, str) else "",
        at=_instant(envelope),
    )
    return replace(state, conversation=_trim(conversation), hops=state.hops + 1)


def _on_phase(state: SessionState, envelope: Envelope) -> SessionState:
    """Enter a phase without a handoff."""
    phase, reason = envelope.event_data.get("to"), envelope.event_data.get("reason")
    if not isinstance(phase, str) or phase == state.conversation.phase:
        return state
    text = reason if isinstance(reason, str) else ""
    conversation = state.conversation.transition(phase, KEEP, text, at=_instant(envelope))
    return replace(state, conversation=_trim(conversation))


def _on_round_failed(state: SessionState, envelope: Envelope) -> SessionState:
    """Count a failure; where it is final, the speaker counts as having spoken."""
    data = envelope.event_data
    speaker = data.get("speaker")
    if not isinstance(speaker, str) or speaker not in state.due:
        return state
    failures = state.failures.get(speaker, 0)
    after = replace(
        state,
        **charge_turn(state, speaker, envelope),
        # Where a checkpoint was lost, its interrupts are asked again, which is nobody's failure.
        failures={**state.failures, speaker: failures + (data.get("code") != "checkpoint_lost")},
        interrupts=_without_interrupts(state, speaker),
    )
    if data.get("final") is True:
        guard = str(data.get("message")) if data.get("code") == "guard" else ""
        after = replace(
            after,
            spoken=(*after.spoken, speaker),
            given_up=(*after.given_up, speaker),
            stopped=after.stopped or guard,
        )
    return replace(after, status=_status(after, after.interrupts, after.due))


def _on_interrupt(state: SessionState, envelope: Envelope) -> SessionState:
    """Suspend a turn until a human decides."""
    data = envelope.event_data
    interrupt = {key: value for key, value in data.items() if key not in ("usage", "path")}
    interrupts = {**state.interrupts, str(data.get("id")): interrupt}
    charges = charge_turn(state, str(data.get("speaker")), envelope)
    return replace(state, **charges, interrupts=interrupts, status="waiting_decision")


def _on_human_decision(state: SessionState, envelope: Envelope) -> SessionState:
    """Store what a human has decided; the interrupt stays until its speaker has gone on."""
    key = str(envelope.event_data.get("interrupt_id"))
    if key not in state.interrupts:
        return state
    interrupt = {**state.interrupts[key], "decision": envelope.event_data.get("decision")}
    interrupts = {**state.interrupts, key: interrupt}
    # `floor_at` is set anew: the time in which a human has thought is not the speaker's.
    return replace(state, interrupts=interrupts, floor_at=envelope.created_at)


def _on_summary(state: SessionState, envelope: Envelope) -> SessionState:
    return replace(state, summary=envelope.event_data)


def _instant(envelope: Envelope) -> datetime | None:
    try:
        return datetime.fromisoformat(envelope.created_at)
    except ValueError:
        return None


def _trim(conversation: ConversationState) -> ConversationState:
    if len(conversation.phase_history) <= _MAX_PHASES:
        return conversation
    return dataclasses.replace(
        conversation, phase_history=conversation.phase_history[-_MAX_PHASES:]
    )


_STEPS: Mapping[str, Step] = {
    ev.EV_TEXT: _on_message,
    ev.EV_PACKET: _on_message,
    ev.EV_CONTEXT_SET: _on_context_set,
    ev.EV_SESSION_INVITE_ACK: _on_invite_ack,
    ev.EV_SESSION_OPENED: _on_opened,
    ev.EV_SESSION_LEFT: _on_left,
    ev.EV_SESSION_RELEASED: _on_released,
    ev.EV_SESSION_CLOSED: _on_closed,
    ev.EV_SESSION_EXPIRED: _on_expired,
    ev.EV_EXPECTATION_VIOLATED: _on_expectation_violated,
    ev.EV_HANDOFF: _on_handoff,
    ev.EV_PHASE: _on_phase,
    ev.EV_ROUND_FAILED: _on_round_failed,
    ev.EV_INTERRUPT: _on_interrupt,
    ev.EV_DECISION: _on_human_decision,
    ev.EV_SUMMARY: _on_summary,
    ev.EV_AUDIT: apply_audit,
}
_DECISION_TYPES = frozenset({ev.EV_TEXT, ev.EV_PACKET, ev.EV_SESSION_RELEASED, ev.EV_ROUND_FAILED})
