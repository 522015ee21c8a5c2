"""The short forms of guards: the plain value that a user may give in place of a guard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agentgraph.guards.decision import Tier
from agentgraph.guards.mechanisms.approval import ToolApproval
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadlines
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
from agentgraph.guards.mechanisms.settings import is_finite, is_positive, is_whole
from agentgraph.guards.mechanisms.spending.budget import CostBudget
from agentgraph.guards.mechanisms.spending.tool_limit import ToolLimit
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.guards.records.audit_trail import AuditTrail
from agentgraph.guards.table import DecisionTable
from agentgraph.guards.tiers import guards_of


class ShortForm(NamedTuple):
    """How a guard is made of one plain value, in place of a guard."""

    words: str
    """What the value is, as the end of a sentence: "give …"."""
    takes: Callable[[object], bool]
    make: Callable[[Any, Tier], object]


def _whole(least: int, words: str, make: Callable[[int], object]) -> ShortForm:
    words = f"{words}, {least} or more"
    return ShortForm(words, lambda value: is_whole(value, least), lambda n, _: make(n))


def _deadlines_of(seconds: float, tier: Tier) -> Deadlines:
    """Return the deadlines where `seconds` are all that an input may take; calls have the tier's.

    The policy may be that of a stage, so the stage has as much time.
    """
    step_s = guards_of(tier)["deadlines"]().step_s
    return Deadlines(min(step_s, seconds), seconds, seconds)


def _loop_of(threshold: int) -> LoopDetector:
    """Return a detector whose window holds two calls that alternate so often."""
    return LoopDetector(window=max(5, 2 * threshold - 1), threshold=threshold)


def _is_share(value: object) -> bool:
    return is_finite(value) and 0 <= value <= 1


def _is_sink(value: object) -> bool:
    is_class = isinstance(value, type)
    return not is_class and all(callable(getattr(value, name, None)) for name in ("write", "read"))


SHORT_FORMS: Mapping[str, ShortForm] = {
    "steps": _whole(1, "how many model calls", StepLimit),
    "hops": _whole(0, "how many handoffs", HopLimit),
    "depth": _whole(0, "how many levels", DepthLimit),
    "fan_out": _whole(0, "how many workers at once", FanOutLimit),
    "replans": _whole(0, "how many new plans", ReplanLimit),
    "loop": _whole(2, "how many equal calls are a loop", _loop_of),
    "breaker": ShortForm(
        "a model, its name, or an AIMessage, which answers for a failing provider",
        lambda value: isinstance(value, str | BaseChatModel | AIMessage),
        lambda fallback, _: CircuitBreaker(fallback=fallback),
    ),
    "retry": ShortForm(
        "which part of all calls may be repetitions, from 0 to 1",
        _is_share,
        lambda ratio, _: RetryBudget(ratio),
    ),
    "backoff": _whole(1, "how often a call is tried", lambda tries: Backoff(attempts=tries)),
    "deadlines": ShortForm("seconds above 0 for a whole input", is_positive, _deadlines_of),
    "budget": _whole(0, "how many tokens", lambda tokens: CostBudget(tokens=tokens)),
    "velocity": ShortForm(
        "how many tokens a minute",
        is_positive,
        lambda tokens, _: CostVelocity(tokens_per_min=tokens),
    ),
    "interrupt_on": ShortForm(
        "{tool name: True, or the answers that are allowed}",
        lambda value: isinstance(value, Mapping),
        lambda tools, _: ToolApproval(tools),
    ),
    "tool_limit": ShortForm(
        "{tool name: how many calls}",
        lambda value: isinstance(value, Mapping),
        lambda calls, _: ToolLimit(calls),
    ),
    "escalation": ShortForm(
        "the score from 0 to 1 below which a human is asked",
        _is_share,
        lambda threshold, _: Escalation(threshold),
    ),
    "decisions": ShortForm(
        "{(failure class, tier): Cell(…)}",
        lambda value: isinstance(value, Mapping),
        lambda cells, _: DecisionTable(cells),
    ),
    "audit": ShortForm(
        "a sink, which has write() and read()",
        _is_sink,
        lambda sink, _: AuditTrail(sink),
    ),
}
"""What may be given in place of a guard: the setting of it that most users give."""
