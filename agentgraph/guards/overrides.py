"""The guards that a policy has: their list, how a user gives them, and how they are shown."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypedDict, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agentgraph.display import code, escaped, panel, table
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import FailureClass, Tier
from agentgraph.guards.guard import Guard, guard_faults
from agentgraph.guards.mechanisms.approval import ToolApproval, VerbChoice
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.escalation import Escalation
from agentgraph.guards.mechanisms.gates.gate import Gate, Gates
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
from agentgraph.guards.table import Cell, DecisionTable

BUILT_IN_GUARDS: tuple[type[BuiltInGuard], ...] = (
    StepLimit,
    HopLimit,
    DepthLimit,
    FanOutLimit,
    ReplanLimit,
    LoopDetector,
    DeadlockMonitor,
    CircuitBreaker,
    RetryBudget,
    Backoff,
    Deadlines,
    CostBudget,
    CostVelocity,
    Gates,
    ToolApproval,
    ToolLimit,
    Escalation,
    DecisionTable,
    Saga,
    AuditTrail,
)
"""The guards of each policy, in the order in which they are shown: all else is in their classes."""

P = TypeVar("P")
"""The policy of a stage: `Guards`. It is a type variable, as `Guards` itself takes `Overrides`."""


class Overrides(TypedDict, Generic[P], total=False):
    """The guards that replace those of a tier.

    A guard is given as such, or by a plain value that stands for it; None removes it.
    """

    steps: StepLimit | int | None
    hops: HopLimit | int | None
    depth: DepthLimit | int | None
    fan_out: FanOutLimit | int | None
    replans: ReplanLimit | int
    loop: LoopDetector | int | None
    deadlock: DeadlockMonitor | None
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
    saga: Saga | None
    audit: AuditTrail | Sink | None
    extra: Guard[Any] | Sequence[Guard[Any]]
    stages: Mapping[str, P]


class PolicyGuards:
    """The guards of a policy as its attributes, with the types for code that reads them by name.

    A guard without a line here is an attribute too, of which type checkers do not know.
    """

    steps: StepLimit | None
    hops: HopLimit | None
    depth: DepthLimit | None
    fan_out: FanOutLimit | None
    replans: ReplanLimit
    loop: LoopDetector | None
    deadlock: DeadlockMonitor | None
    breaker: CircuitBreaker | None
    retry: RetryBudget | None
    backoff: Backoff | None
    deadlines: Deadlines
    budget: CostBudget | None
    velocity: CostVelocity | None
    gates: Gates
    interrupt_on: ToolApproval | None
    tool_limit: ToolLimit | None
    escalation: Escalation
    decisions: DecisionTable
    saga: Saga | None
    audit: AuditTrail | None


def guard_classes() -> dict[str, type[BuiltInGuard]]:
    """Return the classes of the guards, by the names of their settings."""
    return {guard.setting: guard for guard in BUILT_IN_GUARDS}


def setting_names() -> tuple[str, ...]:
    """Return what a policy may be given: also guards of others, and the policies of its stages."""
    return (*guard_classes(), "extra", "stages")


def guard_of(name: str, value: object, tier: Tier) -> BuiltInGuard | None:
    """Return the guard that a value for a setting is or stands for; `tier` completes it.

    Raises `ConfigurationError` for a value that is neither.
    """
    guard_class = guard_classes().get(name)
    if guard_class is None:
        raise ConfigurationError(
            f"{name}: there is no such guard; there are {', '.join(setting_names())}"
        )
    if isinstance(value, guard_class):
        return value
    if value is None and guard_class.is_removable:
        return None
    try:
        guard = guard_class.from_value(value, tier)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}={value!r}: {fault}" for fault in error.faults) from None
    if guard is None:
        raise ConfigurationError(f"{name}={value!r}: {_hint(guard_class)}")
    return guard


def _hint(guard_class: type[BuiltInGuard]) -> str:
    """Say what may be given for a guard."""
    short_form = f", or {guard_class.short_form}" if guard_class.short_form else ""
    removal = "; None removes it" if guard_class.is_removable else ""
    article = "an" if guard_class.__name__[0] in "AEIOU" else "a"
    return f"give {article} {guard_class.__name__}{short_form}{removal}"


def guards_of_user(value: object) -> tuple[Guard[Any], ...]:
    """Return the guards that a user brings; raises `ConfigurationError` for what is none."""
    guards = tuple(value) if isinstance(value, list | tuple) else (value,)
    if faults := [*guard_faults(guards)]:
        raise ConfigurationError(faults)
    return guards


def policy_faults(tier: Tier, overrides: Mapping[str, object]) -> Iterator[str]:
    """Yield what is wrong with a policy of a tier that has these guards in place of the tier's."""
    classes = guard_classes()
    for name, guard_class in classes.items():
        if overrides.get(name) is None:
            yield from guard_class.absence_faults(tier, is_removed=name in overrides)
    for name in classes:
        if isinstance(guard := overrides.get(name), BuiltInGuard):
            yield from (f"{name}: {fault}" for fault in guard.policy_faults())


def parameter_list() -> str:
    """Return a line for each setting of a policy, for its documentation."""
    summaries = {name: guard.summary for name, guard in guard_classes().items()}
    summaries["extra"] = "(): guards of your own, see `Guard`"
    summaries["stages"] = "{an agent's name: Guards(…)}: what holds at that agent instead"
    return "\n".join(f"{name:<10}  {summary}" for name, summary in summaries.items())


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
