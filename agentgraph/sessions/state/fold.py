"""What an envelope does to a session's state: pure, total, and never a question to the rules.

Who goes on was decided when the envelope was admitted, and stands on it; so a log folds to the same
state whatever code is registered by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from dataclasses import replace as changed
from datetime import datetime
from typing import Any, TypeAlias, TypeGuard

from agentgraph.phases import KEEP, ConversationState
from agentgraph.routing import TransitionDecision
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.state import SessionState, Status, in_place
from agentgraph.sessions.state.usage import audited, begun, paid

Step: TypeAlias = Callable[[SessionState, Envelope], SessionState]

_KEPT_PHASES = 20
"""How much of its phases a state keeps: it is stored with every append. The log has them all."""


def fold(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after an envelope."""
    after = counted(state, envelope)
    decision = decision_of(envelope)
    return after if decision is None else decided(after, envelope, decision)


def folded(state: SessionState, envelopes: Iterable[Envelope]) -> SessionState:
    """Return the state after envelopes."""
    return in_place(state, fold, envelopes)


def counted(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state with an envelope counted in, before what was decided on it."""
    step = _STEPS.get(envelope.event_type)
    if step is not None:
        state = step(state, envelope)
    return changed(state, sequence=envelope.sequence, updated_at=envelope.created_at)


def decided(state: SessionState, envelope: Envelope, decision: TransitionDecision) -> SessionState:
    """Return the state after a decision."""
    if decision.action == "close":
        return changed(
            state,
            status="closing",
            pending_close_reason=decision.close_reason,
            speakers=(),
            spoken=(),
            expected_next_speaker=None,
        )
    waits = decision.action == "wait"
    return changed(
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
    stamped = envelope.event_data.get("decision")
    if envelope.event_type not in _DECIDED_ON or not _is_decision(stamped):
        return None
    return TransitionDecision(
        stamped["action"],
        tuple(stamped["speakers"]),
        stamped["phase"],
        stamped["close_reason"],
        stamped["rule"],
    )


def net_context(context: Mapping[str, Any], updates: object) -> Mapping[str, Any]:
    """Return context variables after updates: what is deleted goes, then what is set comes."""
    if not isinstance(updates, Mapping):
        return context
    deleted, given = updates.get("delete"), updates.get("set")
    if not deleted and not given:
        return context
    gone = deleted if isinstance(deleted, Sequence) else ()
    kept = {key: value for key, value in context.items() if key not in gone}
    return {**kept, **given} if isinstance(given, Mapping) else kept


def _is_decision(stamped: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether this is one, and not what somebody has written in its place."""
    if not isinstance(stamped, Mapping) or stamped.keys() != _DECISION_KEYS:
        return False
    speakers, rule = stamped["speakers"], stamped["rule"]
    return (
        stamped["action"] in ("speak", "wait", "close")
        and isinstance(speakers, list)
        and _TEXT.issuperset(map(type, speakers))
        and isinstance(rule, int | str)
        and isinstance(stamped["phase"], str | None)
        and isinstance(stamped["close_reason"], str)
    )


_DECISION_KEYS = TransitionDecision("close").to_dict().keys()
_TEXT = frozenset({str})


def _status(
    state: SessionState, interrupts: Mapping[str, Mapping[str, Any]], due: Sequence[str]
) -> Status:
    if interrupts:
        return "waiting_decision"
    if due and set(due).issubset(state.humans):
        return "waiting_human"
    return "active"


def _said(state: SessionState, envelope: Envelope) -> SessionState:
    sender = envelope.sender_id
    is_agent = sender in state.participant_order and sender not in state.humans
    is_outside = not is_agent and (sender in state.humans or sender == state.creator_id)
    said: dict[str, Any] = {
        **(begun(state, envelope) if is_outside else paid(state, sender, envelope)),
        "last_envelope_id": envelope.envelope_id,
        "said": {**state.said, sender: state.said.get(sender, 0) + 1},
        "spoke_at": envelope.created_at,
        "spoke": envelope.sequence,
    }
    if sender != state.asked_by:
        said |= {
            "asked_by": sender,
            "asked_at": envelope.created_at,
            "asked": envelope.sequence,
        }
    due = state.due
    if sender in due:
        said |= _had_the_floor(state, envelope, [name for name in due if name != sender])
    elif state.speakers and not state.spoken:
        # Said between two rounds: whoever has not begun yet is shown it.
        said["round_began"] = envelope.sequence
    return changed(state, **said)


def _had_the_floor(
    state: SessionState, envelope: Envelope, left: Sequence[str]
) -> Mapping[str, Any]:
    """Return what becomes of a round when one of its speakers has spoken."""
    sender = envelope.sender_id
    # A text is words alone, whatever else it carries.
    data = envelope.event_data if envelope.event_type == ev.EV_PACKET else {}
    active = data.get("active")
    interrupts = _without(state, sender) if state.interrupts else {}
    return {
        "status": _status(state, interrupts, left),
        "last_speaker_id": sender,
        "turn_count": state.turn_count + 1,
        "spoken": (*state.spoken, sender),
        "interrupts": interrupts,
        "context_vars": net_context(state.context_vars, data.get("context_updates")),
        "active": {**state.active, sender: active} if active is not None else _idle(state, sender),
        "finish": state.finish or _finish(sender, data),
    }


def _finish(sender: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    routing = data.get("routing")
    if not isinstance(routing, Mapping) or routing.get("kind") != "finish":
        return None
    return {"sender_id": sender, "routing": routing}


def _idle(state: SessionState, sender: str) -> Mapping[str, str | None]:
    return {name: path for name, path in state.active.items() if name != sender}


def _without(state: SessionState, speaker: str) -> Mapping[str, Mapping[str, Any]]:
    asked = state.interrupts
    return {key: one for key, one in asked.items() if one.get("speaker") != speaker}


def _context_set(state: SessionState, envelope: Envelope) -> SessionState:
    return changed(state, context_vars=net_context(state.context_vars, envelope.event_data))


def _opened(state: SessionState, envelope: Envelope) -> SessionState:
    first = envelope.event_data.get("initial_speaker")
    waits = first == state.creator_id
    return changed(
        state,
        status="active",
        opened_at=envelope.created_at,
        floor_at=envelope.created_at,
        round_began=envelope.sequence,
        expected_next_speaker=first if isinstance(first, str) else None,
        speakers=(first,) if waits and isinstance(first, str) else (),
        round=1 if waits else 0,
    )


def _acked(state: SessionState, envelope: Envelope) -> SessionState:
    return changed(state, acks=(*state.acks, envelope.sender_id))


def _left(state: SessionState, envelope: Envelope) -> SessionState:
    gone = envelope.event_data.get("participant")
    order = tuple(name for name in state.participant_order if name != gone)
    return changed(state, participant_order=order)


def _released(state: SessionState, envelope: Envelope) -> SessionState:
    agent = envelope.event_data.get("agent")
    if not isinstance(agent, str):
        return state
    conversation = state.conversation
    moved = conversation.transition(conversation.phase, agent, "released", at=_at(envelope))
    return changed(state, **begun(state, envelope), conversation=_trimmed(moved))


def _closed(state: SessionState, envelope: Envelope) -> SessionState:
    reason = envelope.event_data.get("reason")
    return changed(
        state,
        status="expired" if state.status == "expired" else "closed",
        pending_close_reason=reason if isinstance(reason, str) else "",
        speakers=(),
        spoken=(),
        interrupts={},
        expected_next_speaker=None,
    )


def _expired(state: SessionState, envelope: Envelope) -> SessionState:
    return changed(state, status="expired")


def _violated(state: SessionState, envelope: Envelope) -> SessionState:
    # Of each expectation the latest: what it was about before cannot come again.
    key = str(envelope.event_data.get("key"))
    which = key.rpartition(":")[0]
    others = [known for known in state.violated if known.rpartition(":")[0] != which]
    return changed(state, violated=(*others, key))


def _handed_off(state: SessionState, envelope: Envelope) -> SessionState:
    data = envelope.event_data
    target, phase = data.get("target"), data.get("next_phase")
    reason = data.get("reason")
    moved = state.conversation.transition(
        phase if isinstance(phase, str) else state.conversation.phase,
        target if isinstance(target, str) and target not in ("human", *state.humans) else None,
        reason if isinstance(reason, str) else "",
        at=_at(envelope),
    )
    return changed(state, conversation=_trimmed(moved), hops=state.hops + 1)


def _phased(state: SessionState, envelope: Envelope) -> SessionState:
    phase, reason = envelope.event_data.get("to"), envelope.event_data.get("reason")
    if not isinstance(phase, str) or phase == state.conversation.phase:
        return state
    why = reason if isinstance(reason, str) else ""
    moved = state.conversation.transition(phase, KEEP, why, at=_at(envelope))
    return changed(state, conversation=_trimmed(moved))


def _failed(state: SessionState, envelope: Envelope) -> SessionState:
    data = envelope.event_data
    speaker = data.get("speaker")
    if not isinstance(speaker, str) or speaker not in state.due:
        return state
    had = state.failures.get(speaker, 0)
    failed = changed(
        state,
        **paid(state, speaker, envelope),
        # To ask anew what no checkpoint waits for any more is nobody's failure.
        failures={**state.failures, speaker: had + (data.get("code") != "checkpoint_lost")},
        interrupts=_without(state, speaker),
    )
    if data.get("final") is True:
        guard = str(data.get("message")) if data.get("code") == "guard" else ""
        failed = changed(
            failed,
            spoken=(*failed.spoken, speaker),
            given_up=(*failed.given_up, speaker),
            stopped=failed.stopped or guard,
        )
    return changed(failed, status=_status(failed, failed.interrupts, failed.due))


def _interrupted(state: SessionState, envelope: Envelope) -> SessionState:
    data = envelope.event_data
    question = {key: value for key, value in data.items() if key not in ("usage", "path")}
    asked = {**state.interrupts, str(data.get("id")): question}
    used = paid(state, str(data.get("speaker")), envelope)
    return changed(state, **used, interrupts=asked, status="waiting_decision")


def _human_decided(state: SessionState, envelope: Envelope) -> SessionState:
    key = str(envelope.event_data.get("interrupt_id"))
    if key not in state.interrupts:
        return state
    answered = {**state.interrupts[key], "decision": envelope.event_data.get("decision")}
    # The time in which a human has thought is none of the speaker's.
    asked = {**state.interrupts, key: answered}
    return changed(state, interrupts=asked, floor_at=envelope.created_at)


def _summarised(state: SessionState, envelope: Envelope) -> SessionState:
    return changed(state, summary=envelope.event_data)


def _at(envelope: Envelope) -> datetime | None:
    try:
        return datetime.fromisoformat(envelope.created_at)
    except ValueError:
        return None


def _trimmed(conversation: ConversationState) -> ConversationState:
    if len(conversation.phase_history) <= _KEPT_PHASES:
        return conversation
    return replace(conversation, phase_history=conversation.phase_history[-_KEPT_PHASES:])


_STEPS: Mapping[str, Step] = {
    ev.EV_TEXT: _said,
    ev.EV_PACKET: _said,
    ev.EV_CONTEXT_SET: _context_set,
    ev.EV_SESSION_INVITE_ACK: _acked,
    ev.EV_SESSION_OPENED: _opened,
    ev.EV_SESSION_LEFT: _left,
    ev.EV_SESSION_RELEASED: _released,
    ev.EV_SESSION_CLOSED: _closed,
    ev.EV_SESSION_EXPIRED: _expired,
    ev.EV_EXPECTATION_VIOLATED: _violated,
    ev.EV_HANDOFF: _handed_off,
    ev.EV_PHASE: _phased,
    ev.EV_ROUND_FAILED: _failed,
    ev.EV_INTERRUPT: _interrupted,
    ev.EV_DECISION: _human_decided,
    ev.EV_SUMMARY: _summarised,
    ev.EV_AUDIT: audited,
}
_DECIDED_ON = frozenset({ev.EV_TEXT, ev.EV_PACKET, ev.EV_SESSION_RELEASED, ev.EV_ROUND_FAILED})
