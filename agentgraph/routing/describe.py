"""Conditions and targets in words, and why a condition did not fire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentgraph.routing.arguments import arguments_of
from agentgraph.routing.composites import AllOf, AnyOf, Not, judge
from agentgraph.routing.conditions import (
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromChannelType,
    FromSource,
    FromSpeaker,
    HasActiveAgent,
    InPhase,
    IntentIn,
    IsAddressed,
    ToolCalled,
    TurnIs,
)
from agentgraph.routing.protocols import RoutingEnvelope, RoutingState, TransitionCondition
from agentgraph.routing.targets import ParallelTarget, PhaseTarget, Target, as_target
from agentgraph.routing.values import short


def describe(condition: TransitionCondition) -> str:
    """Say when a condition fires."""
    match condition:
        case AllOf(conditions):
            return " and ".join(_grouped(part) for part in conditions) or "always"
        case AnyOf(conditions):
            return " or ".join(_grouped(part) for part in conditions) or "never"
        case Not(part):
            return f"not {_grouped(part)}"
        case _:
            return _called(condition)


def describe_target(target: Target | str) -> str:
    """Say where a target leads."""
    match as_target(target):
        case PhaseTarget(name, then):
            return f"phase({name!r}) then {describe_target(then)}"
        case ParallelTarget(agents, join):
            return f"parallel({', '.join(agents)}) then {describe_target(join)}"
        case other:
            return _called(other)


def why_not(condition: TransitionCondition, state: RoutingState, envelope: RoutingEnvelope) -> str:
    """Say why a condition did not fire."""
    trace: list[str] = []
    if judge(condition, state, envelope, trace) is None:
        return "; ".join(trace)
    match condition:
        case AllOf(conditions):
            failed = (c for c in conditions if judge(c, state, envelope, []) is not True)
            return next((why_not(part, state, envelope) for part in failed), "")
        case AnyOf(conditions):
            reasons = [why_not(part, state, envelope) for part in conditions]
            return ", and ".join(reasons) or "it names nothing that could be the case"
        case Not(part):
            return f"{describe(part)} is the case"
        case _:
            return _found(condition, state, envelope)


def _found(condition: TransitionCondition, state: RoutingState, envelope: RoutingEnvelope) -> str:
    if isinstance(condition, ContextEquals | ContextIn | ContextThreshold):
        key = condition.key
        known = key in state.context_vars
        return f"{key!r} is {short(state.context_vars[key])}" if known else f"{key!r} is not set"
    tell = _FOUND.get(type(condition))
    return tell(state, envelope) if tell else f"{_called(condition)} is not the case"


def _tool_found(state: RoutingState, envelope: RoutingEnvelope) -> str:
    routing = envelope.event_data.get("routing")
    tool = routing.get("tool") if isinstance(routing, Mapping) else None
    return f"the tool was {short(tool)}" if tool else "no routing tool was called"


_FOUND: Mapping[type, Callable[[RoutingState, RoutingEnvelope], str]] = {
    FromSpeaker: lambda state, said: f"{said.sender_id!r} has spoken",
    ToolCalled: _tool_found,
    InPhase: lambda state, said: f"the phase is {state.phase!r}",
    IntentIn: lambda state, said: f"the intent is {short(said.metadata.get('intent'))}",
    FromSource: lambda state, said: (
        f"the source is {short(said.metadata.get('source', said.sender_id))}"
    ),
    FromChannelType: lambda state, said: (
        f"the channel type is {short(said.metadata.get('channel_type'))}"
    ),
    HasActiveAgent: lambda state, said: f"the active agent is {state.active_agent!r}",
    IsAddressed: lambda state, said: "nobody is addressed",
    TurnIs: lambda state, said: f"it is turn {state.turn_count}",
}


def _called(part: object) -> str:
    kind: Any = type(part)
    values = (getattr(part, argument.name) for argument in arguments_of(kind))
    return f"{kind.name}({', '.join(map(short, values))})"


def _grouped(part: TransitionCondition) -> str:
    told = describe(part)
    return f"({told})" if isinstance(part, AllOf | AnyOf) else told
