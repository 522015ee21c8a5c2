"""The overrides of a policy: which guards a user can give, their checks, and their display."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, Generic, TypedDict, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agentgraph.display import code, escaped, panel, table
from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import FAILURE_CLASSES, Tier
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
from agentgraph.guards.records.audit_trail import AuditTrail
from agentgraph.guards.table import DecisionTable

P = TypeVar("P")
"""The policy of a stage: `Guards`. It is a type variable, as `Guards` itself takes `Overrides`."""


class Overrides(TypedDict, Generic[P], total=False):
    """The guards that replace those of a tier; None removes a guard, a number is its limit."""

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
"""The guards that None cannot remove: the nodes call them without a check for None."""


def guard_of(name: str, value: object, policy: type[P], faults: list[str]) -> object:
    """Return the guard for an override; where it is wrong, append to `faults` and return None.

    `policy` is the class that a stage's own policy must have.
    """
    if name == "gates":
        return _gates_of(value, faults)
    if name == "stages":
        if isinstance(value, Mapping) and all(isinstance(s, policy) for s in value.values()):
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


def _gates_of(value: object, faults: list[str]) -> tuple[Gate, ...] | None:
    gates = () if value is None else (value,) if isinstance(value, Gate) else value
    if (
        isinstance(gates, Sequence)
        # An empty text has no part that could be wrong, and would pass for an empty list of gates.
        and not isinstance(gates, str | bytes | bytearray)
        and all(isinstance(gate, Gate) for gate in gates)
    ):
        return tuple(gates)
    faults.append(f"gates={value!r}: give a Gate, or several")
    return None


def fallback_faults(breaker: object) -> list[str]:
    """Return what is wrong with the fallback of a breaker, which answers for a failing provider."""
    fallback = breaker.fallback if isinstance(breaker, CircuitBreaker) else None
    if fallback is None or isinstance(fallback, str | BaseChatModel | AIMessage):
        return []
    return [f"breaker: fallback={fallback!r}: give a model, its name, or an AIMessage to say"]


def unused_fallback(table: DecisionTable, tier: Tier, breaker: CircuitBreaker | None) -> str:
    """Return what is wrong with a fallback that no decision of a tier's table leads to, else ""."""
    fallback = breaker.fallback if breaker is not None else None
    classes = FAILURE_CLASSES if isinstance(fallback, AIMessage) else ("provider_error",)
    if fallback is None or any(table.cell(name, tier).action == "fallback" for name in classes):
        return ""
    return (
        f"a {tier} run swaps no model in silence, so the fallback would never answer: "
        "give none, or a cell that asks for it, "
        f"DecisionTable({{('provider_error', {tier!r}): Cell('fallback', 1, 'escalate')}})"
    )


def policy_html(tier: str, guards: Mapping[str, object], overrides: Collection[str]) -> str:
    """Show the guards of a policy and their limits, by their names; overrides are highlighted."""
    rows = [
        [f"<b>{escaped(name)}</b>" if name in overrides else escaped(name), code(text)]
        for name, text in _lines(guards)
    ]
    return panel(f"Guards, {tier}", table(["guard", "holds"], rows))


def _lines(guards: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each guard, and for each stage that has a policy of its own."""
    for name, value in guards.items():
        if name != "stages":
            yield name, call_text(value)
        elif isinstance(value, Mapping):
            yield from ((f"stage {stage}", repr(policy)) for stage, policy in value.items())


def call_text(guard: object) -> str:
    """Write a guard as the call that makes it: its settings, without its memory.

    For example `LoopDetector(window=5, threshold=3)`; "off" for None. A `Gate` is written by the
    names of its checks, as functions have no readable text.
    """
    if guard is None or guard == ():
        return "off"
    if isinstance(guard, Mapping):
        pairs = (f"{name!r}: {call_text(value)}" for name, value in guard.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(guard, tuple):
        return ", ".join(map(call_text, guard))
    if not is_dataclass(guard) or isinstance(guard, type):
        return getattr(guard, "__name__", None) or repr(guard)
    if (names := getattr(guard, "names", None)) is not None:
        return f"Gate({', '.join(names)})"
    arguments = [
        f"{field.name}={call_text(value)}"
        for field in fields(guard)
        if field.init and (value := getattr(guard, field.name)) not in (None, (), {})
    ]
    return f"{type(guard).__name__}({', '.join(arguments)})"
