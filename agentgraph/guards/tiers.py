"""The default guards of each tier, as functions that make them: most guards have a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from agentgraph.guards.decision import Tier
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.escalation import Escalation
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
from agentgraph.guards.records.audit_trail import AuditTrail
from agentgraph.guards.table import DecisionTable

Defaults: TypeAlias = Mapping[str, Callable[[], Any]]


def guards_of(tier: Tier) -> Defaults:
    """Return the guards of a tier: by the name of each guard, a function that makes it."""
    return {**_IN_ALL_TIERS, **_BY_TIER[tier]()}


_IN_ALL_TIERS: Defaults = {
    "steps": StepLimit.by_default,
    "hops": HopLimit,
    "depth": DepthLimit,
    "loop": LoopDetector,
    "deadlock": DeadlockMonitor,
    "breaker": CircuitBreaker,
    "retry": RetryBudget,
    "backoff": Backoff,
    "gates": tuple,
    "interrupt_on": lambda: None,
    "tool_limit": lambda: None,
    "decisions": DecisionTable,
    "saga": Saga,
    "extra": tuple,
    "stages": lambda: MappingProxyType({}),
}


def _interactive_tier() -> Defaults:
    return {
        "deadlines": lambda: Deadlines(60, 180, 600),
        "fan_out": lambda: FanOutLimit(8),
        "replans": lambda: ReplanLimit(1),
        "escalation": lambda: Escalation(0.5),
        "budget": lambda: CostBudget(tokens=1_000_000),
        "velocity": lambda: CostVelocity(200_000, share=0.5),
        "audit": AuditTrail,
    }


def _batch_tier() -> Defaults:
    return {
        "deadlines": lambda: Deadlines(120, 1_800, 6 * 3_600),
        "fan_out": lambda: FanOutLimit(16),
        "replans": lambda: ReplanLimit(2),
        "escalation": lambda: Escalation(0.7),
        "budget": lambda: CostBudget(tokens=10_000_000),
        "velocity": lambda: CostVelocity(1_000_000, share=0.5, alert=True),
        "audit": AuditTrail,
    }


def _regulated_tier() -> Defaults:
    return {
        "deadlines": lambda: Deadlines(120, 900, 24 * 3_600),
        "fan_out": lambda: FanOutLimit(8),
        "replans": lambda: ReplanLimit(2),
        "escalation": lambda: Escalation(0.85),
        "budget": lambda: None,  # it must be given
        "velocity": lambda: None,
        "audit": AuditTrail,
    }


_BY_TIER: Mapping[Tier, Callable[[], Defaults]] = {
    "interactive": _interactive_tier,
    "batch": _batch_tier,
    "regulated": _regulated_tier,
}

OF_TIER = frozenset({"deadlines", "fan_out", "replans", "escalation"})
"""The guards that a tier brings where it is given to a policy inside of another policy.

Budget and trail are not among them: an inner tier must not open a second account, or split the
trail.
"""
