"""Conditions and targets in words, and why a condition did not fire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentgraph.routing.arguments import arguments_of
from agentgraph.routing.composites import AllOf, AnyOf, Not, judge
from agentgraph.routing.conditions import (
    ContextBelow,
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
from agentgraph.routing.questions import ModelCondition
from agentgraph.routing.targets import ParallelTarget, PhaseTarget, Target, as_target
from agentgraph.routing.values import short


def describe(condition: TransitionCondition) -> str:
    """Return in words when a condition fires."""
    match condition:
        case AllOf(conditions):
            return " and ".join(_in_parentheses(part) for part in conditions) or "always"
        case AnyOf(conditions):
            return " or ".join(_in_parentheses(part) for part in conditions) or "never"
        case Not(part):
            return f"not {_in_parentheses(part)}"
        case _:
            return _call(condition)


def describe_target(target: Target | str) -> str:
    """Return in words what a target decides."""
    match as_target(target):
        case PhaseTarget(name, then):
            return f"phase({name!r}) then {describe_target(then)}"
        case ParallelTarget(agents, join):
            return f"parallel({', '.join(agents)}) then {describe_target(join)}"
        case plain:
            return _call(plain)


def why_not(condition: TransitionCondition, state: RoutingState, envelope: RoutingEnvelope) -> str:
    """Return in words why a condition did not fire."""
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
            return _fact(condition, state, envelope)


def _fact(condition: TransitionCondition, state: RoutingState, envelope: RoutingEnvelope) -> str:
    """Return in words the fact that made a leaf condition false."""
    if isinstance(condition, ContextEquals | ContextIn | ContextThreshold | ContextBelow):
        key = condition.key
        is_set = key in state.context_vars
        return f"{key!r} is {short(state.context_vars[key])}" if is_set else f"{key!r} is not set"
    fact = _FACTS.get(type(condition))
    return fact(state, envelope) if fact else f"{_call(condition)} is not the case"


def _tool_fact(state: RoutingState, envelope: RoutingEnvelope) -> str:
    """Return in words which routing tool the turn called."""
    routing = envelope.event_data.get("routing")
    tool = routing.get("tool") if isinstance(routing, Mapping) else None
    return f"the tool was {short(tool)}" if tool else "no routing tool was called"


_FACTS: Mapping[type, Callable[[RoutingState, RoutingEnvelope], str]] = {
    FromSpeaker: lambda state, envelope: f"{envelope.sender_id!r} has spoken",
    ToolCalled: _tool_fact,
    InPhase: lambda state, envelope: f"the phase is {state.phase!r}",
    IntentIn: lambda state, envelope: f"the intent is {short(envelope.metadata.get('intent'))}",
    FromSource: lambda state, envelope: (
        f"the source is {short(envelope.metadata.get('source', envelope.sender_id))}"
    ),
    FromChannelType: lambda state, envelope: (
        f"the channel type is {short(envelope.metadata.get('channel_type'))}"
    ),
    HasActiveAgent: lambda state, envelope: f"the active agent is {state.active_agent!r}",
    IsAddressed: lambda state, envelope: "nobody is addressed",
    ModelCondition: lambda state, envelope: "the model said no",
    TurnIs: lambda state, envelope: f"it is turn {state.turn_count}",
}


def _call(part: object) -> str:
    """Return a leaf as its registered name with its arguments."""
    kind: Any = type(part)
    values = (getattr(part, argument.name) for argument in arguments_of(kind))
    return f"{kind.name}({', '.join(map(short, values))})"


def _in_parentheses(part: TransitionCondition) -> str:
    text = describe(part)
    return f"({text})" if isinstance(part, AllOf | AnyOf) else text
