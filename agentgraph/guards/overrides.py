"""What is given in place of a tier's own guards: checked, and made into guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypedDict, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agentgraph.errors import ConfigurationError
from agentgraph.guards.audit.audit_trail import AuditTrail
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.escalation import Escalation
from agentgraph.guards.mechanisms.gates.gate import Gate
from agentgraph.guards.mechanisms.limits import (
    DepthLimit,
    FanOutLimit,
    HopLimit,
    ReplanLimit,
    StepLimit,
)
from agentgraph.guards.mechanisms.loop import LoopDetector
from agentgraph.guards.mechanisms.retry import Backoff, RetryBudget
from agentgraph.guards.mechanisms.saga import Saga
from agentgraph.guards.mechanisms.spending.budget import CostBudget
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.guards.table import DecisionTable

P = TypeVar("P")
"""The type of a policy."""


class Overrides(TypedDict, Generic[P], total=False):
    """What replaces a tier's own; None takes a guard away, a number stands for a limit of it."""

    steps: StepLimit | int | None
    hops: HopLimit | int | None
    depth: DepthLimit | int | None
    fan_out: FanOutLimit | int | None
    replans: ReplanLimit | int
    loop: LoopDetector | None
    deadlock: DeadlockMonitor | None
    breaker: CircuitBreaker | None
    retry: RetryBudget | None
    backoff: Backoff | None
    deadlines: Deadlines
    budget: CostBudget | None
    velocity: CostVelocity | None
    gates: Gate | Sequence[Gate] | None
    escalation: Escalation
    decisions: DecisionTable
    saga: Saga | None
    audit: AuditTrail | None
    stages: Mapping[str, P]


LIMITS: Mapping[str, tuple[type[Any], str]] = {
    "steps": (StepLimit, "steps"),
    "hops": (HopLimit, "hops"),
    "depth": (DepthLimit, "depth"),
    "fan_out": (FanOutLimit, "children"),
    "replans": (ReplanLimit, "replans"),
}
_KINDS: Mapping[str, type[Any]] = {
    **{name: kind for name, (kind, _) in LIMITS.items()},
    "loop": LoopDetector,
    "deadlock": DeadlockMonitor,
    "breaker": CircuitBreaker,
    "retry": RetryBudget,
    "backoff": Backoff,
    "deadlines": Deadlines,
    "budget": CostBudget,
    "velocity": CostVelocity,
    "escalation": Escalation,
    "decisions": DecisionTable,
    "saga": Saga,
    "audit": AuditTrail,
}
_ALWAYS = frozenset({"replans", "deadlines", "escalation", "decisions"})
"""What no flow is without."""


def coerced(name: str, value: object, policy: type[P], faults: list[str]) -> object:
    """Return what an override stands for, or note why it stands for nothing."""
    if name == "gates":
        gates = () if value is None else (value,) if isinstance(value, Gate) else value
        if (
            isinstance(gates, Sequence)
            and not isinstance(gates, str | bytes | bytearray)  # an empty one has no wrong part
            and all(isinstance(one, Gate) for one in gates)
        ):
            return tuple(gates)
        faults.append(f"gates={value!r}: give a Gate, or several")
    elif name == "stages":
        if isinstance(value, Mapping) and all(isinstance(one, policy) for one in value.values()):
            return MappingProxyType(dict(value))
        faults.append(f"stages={value!r}: give Guards by the names of agents")
    elif name not in _KINDS:
        faults.append(
            f"{name}: there is no such guard; there are {', '.join(Overrides.__annotations__)}"
        )
    elif isinstance(value, _KINDS[name]) or (value is None and name not in _ALWAYS):
        return value
    elif name in LIMITS and isinstance(value, int):
        try:
            return LIMITS[name][0](value)
        except ConfigurationError as error:
            faults.extend(f"{name}={value!r}: {fault}" for fault in error.faults)
    else:
        faults.append(f"{name}={value!r}: give a {_KINDS[name].__name__}")
    return None


def fallback_faults(breaker: object) -> list[str]:
    """Say what is wrong with what is to answer for a failing provider."""
    fallback = breaker.fallback if isinstance(breaker, CircuitBreaker) else None
    if fallback is None or isinstance(fallback, str | BaseChatModel | AIMessage):
        return []
    return [f"breaker: fallback={fallback!r}: give a model, its name, or an AIMessage to say"]
