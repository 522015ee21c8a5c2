"""The fold: applies an envelope to the state of its session. It is pure, total, and asks no rules.

The decision on an envelope was made when it was admitted, and is stored in it. So a log folds to
the same state whatever code is registered later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

from agentgraph.phases import KEEP, ConversationState
from agentgraph.routing import TransitionDecision
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.input_account import (
    apply_audit,
    begin_input,
    charge_turn,
    cut_off,
    principal_in,
    without_marks,
)
from agentgraph.sessions.state.parallel import stamp_in, turn_data, updates_so_far
from agentgraph.sessions.state.rewind import apply_rewind
from agentgraph.sessions.state.state import (
    EMPTY_OBJECT,
    SessionState,
    Status,
    changes_of,
    fold_in_place,
    with_changes,
    with_fields,
)
from agentgraph.sessions.state.thread import thread_after
from agentgraph.sessions.state.visibility import next_audience, visibility_after

Step: TypeAlias = Callable[[SessionState, Envelope], SessionState]
"""Applies an event to the state. Its data may be any JSON: a step must never raise."""

WITHDRAWAL = "withdrawn"
"""The type of a decision that nobody has made: a new input has ended the run that asked."""
_NOT_OF_QUESTION = ("usage", "path", "messages", "channels", "active")
"""What an envelope with a question tells of the run, and not of the question."""
_MAX_PHASES = 20
"""The most phases that a state keeps, as each append stores the state; the log has all of them."""


def fold(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after an envelope and the decision on it."""
    after = apply_event(state, envelope)
    decision = decision_of(envelope)
    return after if decision is None else apply_decision(after, envelope, decision)


def fold_all(state: SessionState, envelopes: Iterable[Envelope]) -> SessionState:
    """Return the state after envelopes, in their order."""
    return fold_in_place(state, fold, envelopes)


def apply_event(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after the event of an envelope, before the decision on it."""
    step = _STEPS.get(envelope.event_type)
    if step is not None:
        state = step(state, envelope)
    if state.thread is not None:
        is_agent = envelope.sender_id in state.participant_order
        is_agent = is_agent and envelope.sender_id not in state.humans
        state = with_fields(state, thread=thread_after(state.thread, envelope, is_agent=is_agent))
    return with_fields(state, sequence=envelope.sequence, updated_at=envelope.created_at)


def apply_decision(
    state: SessionState, envelope: Envelope, decision: TransitionDecision
) -> SessionState:
    """Return the state after the decision on an envelope: a new round, or the end."""
    if state.turns and state.due:
        state = _end_early(state)
    if decision.action == "close":
        return with_fields(
            state,
            status="closing",
            pending_close_reason=decision.close_reason,
            speakers=(),
            spoken=(),
            turns={},
            expected_next_speaker=None,
        )
    status: Status = "waiting_human"
    if decision.action != "wait":
        status = _status(state, state.interrupts, decision.speakers)
    is_cancelled = envelope.event_type == ev.EV_CANCELLED
    cancelled_decision = state.decision if is_cancelled else None
    is_public = envelope.audience is None
    audience = None if is_public else next_audience(state, envelope, decision)
    round = state.round + 1
    changes = changes_of(state)  # all is read before
    changes["status"] = status
    changes["round"] = round
    changes["speakers"] = decision.speakers
    changes["spoken"] = ()
    changes["given_up"] = ()
    changes["stopped"] = ""
    changes["turns"] = EMPTY_OBJECT
    changes["failures"] = EMPTY_OBJECT
    changes["decision"] = envelope.event_data["decision"]  # that one, and frozen already
    changes["rewound_round"] = None
    changes["cancelled_decision"] = cancelled_decision
    changes["audience"] = audience
    changes["round_began"] = envelope.sequence
    changes["floor_at"] = envelope.created_at
    changes["expected_next_speaker"] = decision.next_speaker
    return with_changes(state, changes)


def _end_early(state: SessionState) -> SessionState:
    """Apply the updates of a round that ends before all of its speakers have spoken."""
    return with_fields(state, context_vars=net_context(state.context_vars, updates_so_far(state)))


def decision_of(envelope: Envelope) -> TransitionDecision | None:
    """Return the decision stored in an envelope, None if there is none."""
    if envelope.event_type not in _DECISION_TYPES:
        return None
    stamp = envelope.event_data.get("decision")
    if not _is_decision(stamp):
        return None
    return _decision(
        stamp["action"],
        tuple(stamp["speakers"]),
        stamp["phase"],
        stamp["close_reason"],
        stamp["rule"],
    )


# A log has few different decisions, and thousands of envelopes.
_decision = lru_cache(maxsize=256, typed=True)(TransitionDecision)


def net_context(context: Mapping[str, Any], updates: object) -> Mapping[str, Any]:
    """Return context variables after updates: first the deletions, then the settings."""
    if not updates or not isinstance(updates, dict):
        return context
    deletions, values = updates.get("delete"), updates.get("set")
    if not deletions and not values:
        return context
    keys = deletions if isinstance(deletions, Sequence) else ()
    rest = {key: value for key, value in context.items() if key not in keys}
    return {**rest, **values} if isinstance(values, dict) else rest


def _is_decision(stamp: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether a value is a well-formed decision: senders may have written anything there."""
    if not isinstance(stamp, dict) or stamp.keys() != _DECISION_KEYS:
        return False
    speakers, phase = stamp["speakers"], stamp["phase"]
    return (
        stamp["action"] in _ACTIONS
        and isinstance(speakers, list)
        and _TEXT.issuperset(map(type, speakers))
        and isinstance(stamp["rule"], (int, str))
        and (phase is None or isinstance(phase, str))
        and isinstance(stamp["close_reason"], str)
    )


_ACTIONS = ("speak", "wait", "close")
_DECISION_KEYS = TransitionDecision("close").to_dict().keys()
_TEXT = frozenset({str})


def _status(
    state: SessionState, interrupts: Mapping[str, Mapping[str, Any]], due: Sequence[str]
) -> Status:
    """Return the status of a session with a round under way: what the round waits for."""
    if interrupts:
        return "waiting_decision"
    humans = state.humans
    for name in due:
        if name not in humans:
            return "active"
    return "waiting_human" if due else "active"


def _on_message(state: SessionState, envelope: Envelope) -> SessionState:
    """Apply a text or packet: its sender has spoken, and ends its turn if it is due."""
    sender, sequence = envelope.sender_id, envelope.sequence
    is_human = sender in state.humans
    is_outside = is_human or (sender == state.creator_id and sender not in state.participant_order)
    account = begin_input(state, envelope) if is_outside else charge_turn(state, sender, envelope)
    if envelope.audience is not None or state.visibility:
        account["visibility"] = visibility_after(state, envelope)
    due = state.due
    is_due = sender in due
    stamp = stamp_in(state, envelope) if is_due and len(state.speakers) > 1 else None
    # Of several speakers only the join counts, for whoever comes last in the list.
    asker = sender if stamp is None else _last_speaker(state, sender) if len(due) == 1 else None
    asks = asker is not None and (asker != state.asked_by or stamp is not None)
    is_between_rounds = not is_due and state.speakers and not state.spoken
    said_counts = {**state.said, sender: state.said.get(sender, 0) + 1}
    end = _end_turn(state, envelope, due, stamp) if is_due else None
    changes = changes_of(state)  # all is read before
    changes["last_envelope_id"] = envelope.envelope_id
    changes["said"] = said_counts
    changes["spoke_at"] = envelope.created_at
    changes["spoke"] = sequence
    if account:
        changes.update(account)
    if asks:
        changes["asked_by"] = asker
        changes["asked_at"] = envelope.created_at
        changes["asked"] = sequence
    if end is not None:
        changes.update(end)
    elif is_between_rounds:
        # The speakers of the next round, which has not begun yet, will see it.
        changes["round_began"] = sequence
    return with_changes(state, changes)


def _end_turn(
    state: SessionState,
    envelope: Envelope,
    due: Sequence[str],
    stamp: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    """Return the changes to a round when the turn of one of its speakers ends.

    With a stamp it is one of several: what they update takes effect with the last of them.
    """
    sender, is_packet = envelope.sender_id, envelope.event_type == ev.EV_PACKET
    # A text carries no updates, whatever its data holds.
    data = envelope.event_data if is_packet else EMPTY_OBJECT
    still_due = [name for name in due if name != sender]
    interrupts = _without_interrupts(state, sender) if state.interrupts else state.interrupts
    last_speaker: str | None = sender
    updates = data.get("context_updates")
    if stamp is not None:
        updates = stamp.get("context_updates")
        last_speaker = state.last_speaker_id if still_due else _last_speaker(state, sender)
    changes: dict[str, Any] = {
        "status": _status(state, interrupts, still_due),
        "turn_count": state.turn_count + 1,
        "interrupts": interrupts,
        "last_speaker_id": last_speaker,
        "spoken": _in_order(state, (*state.spoken, sender)) if state.spoken else (sender,),
        "context_vars": net_context(state.context_vars, updates),
    }
    if len(state.speakers) > 1:
        changes["turns"] = {**state.turns, sender: turn_data(envelope)}
    active = data.get("active")
    if active is not None:
        changes["active"] = {**state.active, sender: active}
    elif sender in state.active:
        changes["active"] = _without_active(state, sender)
    if state.effects and is_packet and sender not in state.humans:
        changes.update(without_marks(state))
    return changes


def _in_order(state: SessionState, names: Sequence[str]) -> tuple[str, ...]:
    """Return speakers of a round in the order in which they were named."""
    return (
        tuple([name for name in state.speakers if name in names]) if len(names) > 1 else (*names,)
    )


def _last_speaker(state: SessionState, sender: str | None) -> str | None:
    """Return who comes last in the list, of those whose turn in the round has not failed."""
    names = [name for name in state.speakers if name == sender or _has_spoken(state, name)]
    return names[-1] if names else None


def _has_spoken(state: SessionState, name: str) -> bool:
    return name in state.spoken and name not in state.given_up


def _stop_changes(state: SessionState, speaker: str, guard: str) -> Mapping[str, Any]:
    """Return which guard has ended the round: of several the one of the first in the list."""
    if len(state.speakers) < 2:
        return {"stopped": state.stopped or guard}
    turns = {**state.turns, speaker: {"stopped": guard, "failed": True}} if guard else state.turns
    stops = [str(turns[name].get("stopped") or "") for name in state.speakers if name in turns]
    return {"stopped": next(filter(None, stops), state.stopped), "turns": turns}


def _active_after(
    state: SessionState, speaker: object, envelope: Envelope
) -> Mapping[str, str | None]:
    """Return who is active after the end of a run, where its envelope tells who has been."""
    path = envelope.event_data.get("active")
    if not isinstance(speaker, str) or not isinstance(path, str):
        return state.active
    return {**state.active, speaker: path}


def _without_active(state: SessionState, sender: str) -> Mapping[str, str | None]:
    return {name: path for name, path in state.active.items() if name != sender}


def _without_interrupts(state: SessionState, speaker: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the interrupts without those of one speaker."""
    return {
        key: interrupt
        for key, interrupt in state.interrupts.items()
        if interrupt.get("speaker") != speaker
    }


def _on_context_set(state: SessionState, envelope: Envelope) -> SessionState:
    return with_fields(state, context_vars=net_context(state.context_vars, envelope.event_data))


def _on_opened(state: SessionState, envelope: Envelope) -> SessionState:
    """Open the session; if its creator speaks first, that is round 1."""
    first = envelope.event_data.get("initial_speaker")
    waits = first == state.creator_id
    return with_fields(
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
    return with_fields(state, acks=(*state.acks, envelope.sender_id))


def _on_left(state: SessionState, envelope: Envelope) -> SessionState:
    """Remove a participant who has left."""
    participant = envelope.event_data.get("participant")
    order = tuple(name for name in state.participant_order if name != participant)
    return with_fields(state, participant_order=order)


def _on_released(state: SessionState, envelope: Envelope) -> SessionState:
    """Give the conversation from a human to an agent."""
    agent = envelope.event_data.get("agent")
    if not isinstance(agent, str):
        return state
    conversation = state.conversation
    conversation = conversation.transition(
        conversation.phase, agent, "released", at=_instant(envelope)
    )
    return with_fields(state, **begin_input(state, envelope), conversation=_trim(conversation))


def _on_closed(state: SessionState, envelope: Envelope) -> SessionState:
    """End the session: no speaker is due, and no interrupt is open."""
    reason = envelope.event_data.get("reason")
    if state.turns and state.due:
        state = _end_early(state)
    return with_fields(
        state,
        status="expired" if state.status == "expired" else "closed",
        pending_close_reason=reason if isinstance(reason, str) else "",
        speakers=(),
        spoken=(),
        turns={},
        interrupts={},
        expected_next_speaker=None,
    )


def _on_expired(state: SessionState, envelope: Envelope) -> SessionState:
    return with_fields(state, status="expired")


def _on_expectation_violated(state: SessionState, envelope: Envelope) -> SessionState:
    # The last violation of each expectation is enough: earlier occasions cannot come again.
    key = str(envelope.event_data.get("key"))
    expectation = key.rpartition(":")[0]
    keys = [item for item in state.violated if item.rpartition(":")[0] != expectation]
    return with_fields(state, violated=(*keys, key))


def _on_handoff(state: SessionState, envelope: Envelope) -> SessionState:
    """Give the conversation to another agent, or to none if a human is to take it."""
    data = envelope.event_data
    target, phase = data.get("target"), data.get("next_phase")
    reason = data.get("reason")
    before, actor = state.conversation, data.get("from")
    conversation = before.transition(
        phase if isinstance(phase, str) else before.phase,
        target if isinstance(target, str) and target not in ("human", *state.humans) else None,
        reason if isinstance(reason, str) else "",
        at=_instant(envelope),
    )
    # Who hands over need not be the active agent: a rule may have given them the floor, and the
    # receiver may have been active already.
    is_agent = actor in state.participant_order and actor not in state.humans
    conversation = dataclasses.replace(
        _made_by(conversation, actor),
        previous_agent_id=actor if is_agent else conversation.previous_agent_id,
        handoff_count=before.handoff_count + 1,
    )
    return with_fields(state, conversation=_trim(conversation), hops=state.hops + 1)


def _on_phase(state: SessionState, envelope: Envelope) -> SessionState:
    """Enter a phase without a handoff."""
    phase, reason = envelope.event_data.get("to"), envelope.event_data.get("reason")
    if not isinstance(phase, str) or phase == state.conversation.phase:
        return state
    text = reason if isinstance(reason, str) else ""
    conversation = state.conversation.transition(phase, KEEP, text, at=_instant(envelope))
    conversation = _made_by(conversation, envelope.event_data.get("by"))
    return with_fields(state, conversation=_trim(conversation))


def _made_by(conversation: ConversationState, actor: object) -> ConversationState:
    """Return a conversation whose last step was made by this participant."""
    if not isinstance(actor, str):
        return conversation
    *steps, last = conversation.phase_history
    steps.append(dataclasses.replace(last, from_agent=actor))
    return dataclasses.replace(conversation, phase_history=tuple(steps))


def _on_round_failed(state: SessionState, envelope: Envelope) -> SessionState:
    """Count a failure; if it is final, the speaker counts as having spoken."""
    data = envelope.event_data
    speaker = data.get("speaker")
    if not isinstance(speaker, str) or speaker not in state.due:
        return state
    failures = state.failures.get(speaker, 0)
    after = with_fields(
        state,
        **charge_turn(state, speaker, envelope),
        # A lost checkpoint makes the round ask again; this counts as no failure of the speaker.
        failures={**state.failures, speaker: failures + (data.get("code") != "checkpoint_lost")},
        interrupts=_without_interrupts(state, speaker),
    )
    if data.get("final") is True:
        after = with_fields(after, **cut_off(after))
        guard = str(data.get("message")) if data.get("code") == "guard" else ""
        after = with_fields(
            after,
            spoken=_in_order(after, (*after.spoken, speaker)),
            given_up=_in_order(after, (*after.given_up, speaker)),
            active=_active_after(after, speaker, envelope),
            **_stop_changes(after, speaker, guard),
        )
        stamp = stamp_in(state, envelope)
        if stamp is not None and not after.due:
            after = with_fields(
                after,
                context_vars=net_context(after.context_vars, stamp.get("context_updates")),
                last_speaker_id=_last_speaker(after, None) or after.last_speaker_id,
            )
    return with_fields(after, status=_status(after, after.interrupts, after.due))


def _on_cancelled(state: SessionState, envelope: Envelope) -> SessionState:
    """End the turns that are under way: no failure is counted, and nobody is asked any more."""
    changes = {**charge_turn(state, "", envelope)}
    if "account" in changes:
        changes["held"] = {name: held for name, held in state.held.items() if name not in state.due}
    return with_fields(
        state,
        **changes,
        **cut_off(state),
        interrupts={},
        active=_active_after(state, state.expected_next_speaker, envelope),
        visibility=visibility_after(state, envelope),
        spoke_at=envelope.created_at,
        spoke=envelope.sequence,
        # Whoever has asked for an answer does not wait for it any more.
        asked_by=None,
        asked_at="",
        asked=0,
    )


def _on_interrupt(state: SessionState, envelope: Envelope) -> SessionState:
    """Suspend a turn until a human has decided."""
    data = envelope.event_data
    question = {key: value for key, value in data.items() if key not in _NOT_OF_QUESTION}
    interrupt = {**question, "asked_at": envelope.created_at}
    interrupts = {**state.interrupts, str(data.get("id")): interrupt}
    charges = charge_turn(state, str(data.get("speaker")), envelope)
    return with_fields(state, **charges, interrupts=interrupts, status="waiting_decision")


def _on_human_decision(state: SessionState, envelope: Envelope) -> SessionState:
    """Store a human's decision; the interrupt stays until its speaker's turn has ended."""
    key = str(envelope.event_data.get("interrupt_id"))
    if key not in state.interrupts:
        return state
    if envelope.event_data.get("type") == WITHDRAWAL:
        rest = {name: value for name, value in state.interrupts.items() if name != key}
        return with_fields(
            state,
            interrupts=rest,
            speakers=(),
            spoken=(),
            status="waiting_human",
            active=_active_after(state, state.interrupts[key].get("speaker"), envelope),
            **cut_off(state),
        )
    interrupt = {**state.interrupts[key], "decision": envelope.event_data.get("decision")}
    principal = state.principal
    if envelope.sender_id != ev.SYSTEM:  # a denial for lack of time is nobody's: it stays the same
        # With the question too: of two speakers each may be answered by somebody else.
        interrupt["principal"] = principal = principal_in(envelope)
    interrupts = {**state.interrupts, key: interrupt}
    # `floor_at` is reset: the time that the human took does not count as the speaker's.
    return with_fields(
        state, interrupts=interrupts, principal=principal, floor_at=envelope.created_at
    )


def _on_summary(state: SessionState, envelope: Envelope) -> SessionState:
    return with_fields(state, summary=envelope.event_data)


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
    ev.EV_CANCELLED: _on_cancelled,
    ev.EV_REWOUND: apply_rewind,
    ev.EV_INTERRUPT: _on_interrupt,
    ev.EV_DECISION: _on_human_decision,
    ev.EV_SUMMARY: _on_summary,
    ev.EV_AUDIT: apply_audit,
}
_DECISION_TYPES = frozenset(
    {ev.EV_TEXT, ev.EV_PACKET, ev.EV_SESSION_RELEASED, ev.EV_ROUND_FAILED, ev.EV_CANCELLED}
)
