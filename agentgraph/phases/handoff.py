"""Handoffs: a request, a policy, and the check whether the policy accepts the request. Pure."""

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
    """A request to hand over a conversation, as a model makes it by a tool call.

        HandoffRequest("billing", reason="wants a refund", next_phase="handling")

    Its values may have any type, as a model has chosen them; `validate_handoff` checks them.
    """

    target: str
    """A participant, an alias of a participant, or `human`."""
    reason: str = ""
    summary: str = ""
    """A text that the receiving agent is shown once."""
    next_phase: str | None = None
    """The phase to enter; None enters the target's own phase, if it has one."""
    channel_escalation: Escalation = "same"


@dataclass(frozen=True, slots=True)
class HandoffResult:
    """The result of a request; `reason` tells why not. `new_agent_id` is None for a human."""

    accepted: bool
    code: HandoffCode
    reason: str
    new_agent_id: str | None = None
    new_phase: str | None = None


@dataclass(frozen=True, slots=True)
class HandoffPolicy:
    """The targets that handoffs may reach, and the phases that they may enter."""

    participants: Sequence[str]
    _: KW_ONLY
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names that a model may use for participants."""
    phase_map: Mapping[str, str] = field(default_factory=dict)
    """By agent, the phase in which it works; other agents work in any phase."""
    allowed_transitions: Mapping[str, Collection[str]] | None = None
    """By phase, the phases that may follow; None allows all."""
    hop_limit: int | None = None
    escalations: Collection[str] = ()
    """The values of `channel_escalation` that a handler exists for, besides "same"."""


def validate_handoff(
    request: HandoffRequest,
    policy: HandoffPolicy,
    *,
    caller: str,
    phase: str,
    hops: int = 0,
) -> HandoffResult:
    """Check a handoff by `caller` in `phase`, after `hops` others; a human can always be reached.

        result = validate_handoff(request, policy, caller="triage", phase="intake")
        if not result.accepted:
            print(result.code, result.reason)

    The first failing check decides: escalation, target, phase, then the limit of hops.
    """
    reachable = (*policy.participants, HUMAN)  # a participant's name comes before an alias
    target = request.target
    if isinstance(target, str) and target not in reachable:  # a model may send a value of any type
        target = policy.aliases.get(target, target)
    if request.channel_escalation not in ("same", *policy.escalations):
        return _refusal(
            "unsupported_escalation",
            f"nothing handles channel_escalation={request.channel_escalation!r}: use 'same'",
        )
    if target == HUMAN:
        new_phase = _human_phase(request, policy, phase)
        return HandoffResult(True, "accepted", request.reason, None, new_phase)
    fault = _target_fault(target, request, policy, caller)
    if fault is not None:
        return fault
    new_phase = request.next_phase or policy.phase_map.get(target, phase)
    fault = _phase_fault(target, phase, new_phase, policy)
    if fault is not None:
        return fault
    if policy.hop_limit is not None and hops >= policy.hop_limit:
        reason = f"{hops} handoffs were made already: answer, or hand over to {HUMAN!r}"
        return _refusal("hop_limit", reason)
    return HandoffResult(True, "accepted", request.reason, target, new_phase)


def _human_phase(request: HandoffRequest, policy: HandoffPolicy, phase: str) -> str:
    """Return the phase in which a human is asked: the requested one, if it may be entered."""
    next_phase = request.next_phase or phase
    if not isinstance(next_phase, str):
        return phase
    transitions = policy.allowed_transitions
    is_allowed = transitions is None or next_phase in transitions.get(phase, ())
    return next_phase if is_allowed else phase


def _target_fault(
    target: str, request: HandoffRequest, policy: HandoffPolicy, caller: str
) -> HandoffResult | None:
    if target not in policy.participants:
        names = ", ".join([*(name for name in policy.participants if name != caller), HUMAN])
        return _refusal("unknown_target", f"{request.target!r} is nobody here: there are {names}")
    if target == caller:
        return _refusal("self_handoff", f"{caller!r} has the conversation already: go on")
    return None


def _phase_fault(
    target: str, phase: str, new_phase: str, policy: HandoffPolicy
) -> HandoffResult | None:
    if not isinstance(new_phase, str):
        return _refusal("transition_not_allowed", f"next_phase={short(new_phase)} is no phase")
    own = policy.phase_map.get(target)
    if own is not None and own != new_phase:
        reason = f"{target!r} works in phase {own!r}, not in {new_phase!r}"
        return _refusal("phase_mismatch", reason)
    if policy.allowed_transitions is None:
        return None
    next_phases = policy.allowed_transitions.get(phase, ())
    if new_phase in next_phases:
        return None
    names = ", ".join(sorted(next_phases)) or "nowhere: answer, and it ends"
    reason = f"from phase {phase!r} it does not go to {new_phase!r}, but to {names}"
    return _refusal("transition_not_allowed", reason)


def _refusal(code: HandoffCode, reason: str) -> HandoffResult:
    return HandoffResult(False, code, reason)
