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
from agentgraph.guards.decision import FAILURE_CLASSES, FailureClass, Tier
from agentgraph.guards.guard import Guard, guard_faults
from agentgraph.guards.mechanisms.approval import ToolApproval, VerbChoice
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.escalation import Escalation
from agentgraph.guards.mechanisms.gates.gate import Gate
from agentgraph.guards.mechanisms.gates.schema import Schema
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
from agentgraph.guards.mechanisms.spending.tool_limit import ToolLimit
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.guards.records.audit_trail import AuditTrail
from agentgraph.guards.records.record import Sink
from agentgraph.guards.short_forms import SHORT_FORMS
from agentgraph.guards.table import Cell, DecisionTable

P = TypeVar("P")
"""The policy of a stage: `Guards`. It is a type variable, as `Guards` itself takes `Overrides`."""


class Overrides(TypedDict, Generic[P], total=False):
    """The guards that replace those of a tier.

    A guard is given as such, or by its first setting alone, see `SHORT_FORMS`; None removes it.
    """

    steps: StepLimit | int | None
    hops: HopLimit | int | None
    depth: DepthLimit | int | None
    fan_out: FanOutLimit | int | None
    replans: ReplanLimit | int
    loop: LoopDetector | int | None
    deadlock: DeadlockMonitor | int | None
    breaker: CircuitBreaker | BaseChatModel | AIMessage | str | None
    retry: RetryBudget | float | None
    backoff: Backoff | int | None
    deadlines: Deadlines | float
    budget: CostBudget | int | None
    velocity: CostVelocity | float | None
    gates: Gate | Schema | Sequence[Gate | Schema] | None
    interrupt_on: ToolApproval | Mapping[str, VerbChoice] | None
    tool_limit: ToolLimit | Mapping[str, int] | None
    escalation: Escalation | float
    decisions: DecisionTable | Mapping[tuple[FailureClass, Tier], Cell]
    saga: Saga | int | None
    audit: AuditTrail | Sink | None
    extra: Guard[Any] | Sequence[Guard[Any]]
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
    "interrupt_on": ToolApproval,
    "tool_limit": ToolLimit,
    "escalation": Escalation,
    "decisions": DecisionTable,
    "saga": Saga,
    "audit": AuditTrail,
}
_ALWAYS = frozenset({"replans", "deadlines", "escalation", "decisions"})
"""The guards that None cannot remove: the nodes call them without a check for None."""


def guard_of(name: str, value: object, policy: type[P], tier: Tier, faults: list[str]) -> object:
    """Return the guard for an override; where it is wrong, append to `faults` and return None.

    `policy` is the class that a stage's own policy must have; `tier` completes a short form.
    """
    if name == "gates":
        return _gates_of(value, faults)
    if name == "extra":
        guards = tuple(value) if isinstance(value, list | tuple) else (value,)
        faults.extend(guard_faults(guards))
        return guards
    if name == "stages":
        if isinstance(value, Mapping) and all(isinstance(s, policy) for s in value.values()):
            return MappingProxyType(dict(value))
        faults.append(f"stages={value!r}: give Guards by the names of agents")
        return None
    if name not in _KINDS:
        faults.append(
            f"{name}: there is no such guard; there are {', '.join(Overrides.__annotations__)}"
        )
        return None
    if isinstance(value, _KINDS[name]) or (value is None and name not in _ALWAYS):
        return value
    short_form = SHORT_FORMS.get(name)
    if short_form is None or not short_form.takes(value):
        faults.append(f"{name}={value!r}: {_hint(name)}")
        return None
    try:
        return short_form.make(value, tier)
    except ConfigurationError as error:
        faults.extend(f"{name}={value!r}: {fault}" for fault in error.faults)
        return None


def kind_of_guard(name: str) -> type[Any]:
    """Return the class of the guard that has this name."""
    return _KINDS[name]


def _hint(name: str) -> str:
    """Say what may be given for a guard."""
    short_form = SHORT_FORMS.get(name)
    forms = f", or {short_form.words}" if short_form is not None else ""
    removal = "" if name in _ALWAYS else "; None removes it"
    return f"give a {_KINDS[name].__name__}{forms}{removal}"


def _gates_of(value: object, faults: list[str]) -> tuple[Gate, ...] | None:
    """Return the gates of one gate or of several; a schema stands for the gate that has it."""
    values = () if value is None else value
    if isinstance(values, Gate | Mapping | type):
        values = (values,)
    # An empty text has no part that could be wrong, and would pass for an empty list of gates.
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        values = (value,)
    gates: list[Gate] = []
    own_faults: list[str] = []
    for gate in values:
        try:
            gates.append(_gate_of(gate))
        except ConfigurationError as error:
            own_faults += error.faults
    if own_faults:
        faults.append(f"gates={value!r}: {'; '.join(dict.fromkeys(own_faults))}")
        return None
    return tuple(gates)


def _gate_of(value: object) -> Gate:
    if isinstance(value, Gate):
        return value
    if isinstance(value, Mapping | type):
        return Gate(value)
    raise ConfigurationError("give a Gate, a schema, or several")


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
