"""Whether a conversation may be handed over: a pure function, with a typed result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, TypeAlias

from agentgraph.routing.protocols import HUMAN
from agentgraph.routing.values import short

HandoffCode: TypeAlias = Literal[
    "accepted",
    "unknown_target",
    "self_handoff",
    "phase_mismatch",
    "transition_not_allowed",
    "hop_limit",
    "guard",
    "unsupported_escalation",
]
Escalation: TypeAlias = Literal["same", "voice", "email", "sms"]


@dataclass(frozen=True, slots=True)
class HandoffRequest:
    """A wish to hand a conversation over."""

    target: str
    reason: str = ""
    summary: str = ""
    next_phase: str | None = None
    channel_escalation: Escalation = "same"


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """What became of the wish; the receiver is None where it is a human."""

    accepted: bool
    code: HandoffCode
    reason: str
    new_agent_id: str | None = None
    new_phase: str | None = None


@dataclass(frozen=True, slots=True)
class HandoffPolicy:
    """Who may be reached, and how."""

    participants: Sequence[str]
    _: KW_ONLY
    aliases: Mapping[str, str] = field(default_factory=dict)
    phase_map: Mapping[str, str] = field(default_factory=dict)
    allowed_transitions: Mapping[str, Collection[str]] | None = None
    hop_limit: int | None = None
    escalations: Collection[str] = ()


def validate_handoff(
    request: HandoffRequest,
    policy: HandoffPolicy,
    *,
    caller: str,
    phase: str,
    hops: int = 0,
) -> HandoffResult:
    """Check a handoff from a caller in a phase; a human can always be reached."""
    reachable = (*policy.participants, HUMAN)  # a name is not taken for an alias
    target = request.target
    if isinstance(target, str) and target not in reachable:  # a model may wish for anything
        target = policy.aliases.get(target, target)
    if request.channel_escalation not in ("same", *policy.escalations):
        return _refused(
            "unsupported_escalation",
            f"nothing handles channel_escalation={request.channel_escalation!r}: use 'same'",
        )
    if target == HUMAN:
        entered = _human_phase(request, policy, phase)
        return HandoffResult(True, "accepted", request.reason, None, entered)
    fault = _target_fault(target, request, policy, caller)
    if fault is not None:
        return fault
    new_phase = request.next_phase or policy.phase_map.get(target, phase)
    fault = _phase_fault(target, phase, new_phase, policy)
    if fault is not None:
        return fault
    if policy.hop_limit is not None and hops >= policy.hop_limit:
        told = f"{hops} handoffs were made already: answer, or hand over to {HUMAN!r}"
        return _refused("hop_limit", told)
    return HandoffResult(True, "accepted", request.reason, target, new_phase)


def _human_phase(request: HandoffRequest, policy: HandoffPolicy, phase: str) -> str:
    """Return the phase in which a human is asked: the wished one, if it may be entered."""
    wished = request.next_phase or phase
    if not isinstance(wished, str):
        return phase
    if policy.allowed_transitions is None or wished in policy.allowed_transitions.get(phase, ()):
        return wished
    return phase


def _target_fault(
    target: str, request: HandoffRequest, policy: HandoffPolicy, caller: str
) -> HandoffResult | None:
    if target not in policy.participants:
        known = ", ".join([*(name for name in policy.participants if name != caller), HUMAN])
        return _refused("unknown_target", f"{request.target!r} is nobody here: there are {known}")
    if target == caller:
        return _refused("self_handoff", f"{caller!r} has the conversation already: go on")
    return None


def _phase_fault(
    target: str, phase: str, new_phase: str, policy: HandoffPolicy
) -> HandoffResult | None:
    if not isinstance(new_phase, str):
        return _refused("transition_not_allowed", f"next_phase={short(new_phase)} is no phase")
    own = policy.phase_map.get(target)
    if own is not None and own != new_phase:
        told = f"{target!r} works in phase {own!r}, not in {new_phase!r}"
        return _refused("phase_mismatch", told)
    if policy.allowed_transitions is None:
        return None
    allowed = policy.allowed_transitions.get(phase, ())
    if new_phase in allowed:
        return None
    known = ", ".join(sorted(allowed)) or "nowhere: answer, and it ends"
    told = f"from phase {phase!r} it does not go to {new_phase!r}, but to {known}"
    return _refused("transition_not_allowed", told)


def _refused(code: HandoffCode, reason: str) -> HandoffResult:
    return HandoffResult(False, code, reason)
