"""The stricter of two guards, which applies where one policy is inside of another.

An inner policy may tighten the outer one and never loosen it, so each combination is at least as
strict as either of the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from agentgraph.guards.mechanisms.deadlines import Deadlines
from agentgraph.guards.mechanisms.escalation import Escalation
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.mechanisms.loop import LoopDetector
from agentgraph.guards.mechanisms.retry import Backoff, RetryBudget
from agentgraph.guards.overrides import LIMITS
from agentgraph.guards.table import Cell, DecisionTable


def tighter(name: str, own: Any, outer: Any) -> Any:
    """Return the guard of this name that applies where `own` is inside of `outer`.

    Where one of them is None, the other one applies. Of guards that cannot be compared, such as two
    breakers, the inner policy's applies.
    """
    if own is None or outer is None:
        return own if outer is None else outer
    if name in _OF_TWO_COUNTS:
        counts = (field.name for field in fields(own) if field.init)
        return type(own)(*(_least(getattr(own, at), getattr(outer, at)) for at in counts))
    if name in LIMITS:
        return min(own, outer, key=lambda limit: getattr(limit, LIMITS[name][1]))
    if name == "deadlines":
        layers = ("step_s", "stage_s", "workflow_s", "tool_s")
        return Deadlines(*(_least(getattr(own, at), getattr(outer, at)) for at in layers))
    if name == "gates":
        return (*outer, *own)
    if name == "stages":
        stages = {stage: own[stage].within(outer[stage]) for stage in own.keys() & outer.keys()}
        return MappingProxyType({**outer, **own, **stages})
    combine = _COMBINATIONS.get(name)
    return own if combine is None or own is outer else combine(own, outer)


_OF_TWO_COUNTS = ("steps", "fan_out")
"""The limits with a second count, of the whole input."""


def _least(own: float | None, outer: float | None) -> float | None:
    limits = [seconds for seconds in (own, outer) if seconds is not None]
    return min(limits) if limits else None


def _loop(own: LoopDetector, outer: LoopDetector) -> LoopDetector:
    return own.combine(outer)


def _retry(own: RetryBudget, outer: RetryBudget) -> RetryBudget:
    names = ("ratio", "reserve", "cap")
    is_stricter = all(getattr(own, name) <= getattr(outer, name) for name in names)
    return own if is_stricter else outer


def _backoff(own: Backoff, outer: Backoff) -> Backoff:
    return Backoff(
        max(own.base_s, outer.base_s),
        max(own.cap_s, outer.cap_s),
        min(own.attempts, outer.attempts),
    )


def _escalation(own: Escalation, outer: Escalation) -> Escalation:
    waits = [wait for wait in (own.ttl_s, outer.ttl_s) if wait is not None]
    return replace(
        own,
        threshold=max(own.threshold, outer.threshold),
        critic=_lower_score(own.critic, outer.critic),
        ttl_s=min(waits, default=None),
    )


def _lower_score(own: Any, outer: Any) -> Any:
    """Return a critic that asks both and gives the lower score."""
    if own is None or outer is None or own is outer:
        return outer if own is None else own

    async def critic_of_both(subject: Subject) -> object:
        scores = [await _score(critic, subject) for critic in (own, outer)]
        # A score that is no number is returned as it is: the escalation refuses it.
        invalid_scores = [score for score in scores if not isinstance(score, int | float)]
        return invalid_scores[0] if invalid_scores else min(scores)

    return critic_of_both


async def _score(critic: Callable[[Subject], Any], subject: Subject) -> Any:
    score = critic(subject)
    return await score if inspect.isawaitable(score) else score


def _decisions(own: DecisionTable, outer: DecisionTable) -> DecisionTable:
    cells = {key: _cell(cell, outer.cell(*key)) for key, cell in own.overrides.items()}
    return DecisionTable({**outer.overrides, **cells})


def _cell(own: Cell, outer: Cell) -> Cell:
    """Return the cell that ends a run sooner; of two equally strict ones, the outer cell."""
    return own if _attempts(own) < _attempts(outer) else outer


def _attempts(cell: Cell) -> int:
    """Return how often a cell lets the run go on after the failure."""
    return 0 if cell.action in ("escalate", "abort") else cell.bound


_COMBINATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "loop": _loop,
    "retry": _retry,
    "backoff": _backoff,
    "escalation": _escalation,
    "interrupt_on": lambda own, outer: own.combine(outer),
    "tool_limit": lambda own, outer: own.combine(outer),
    "decisions": _decisions,
    # A run has one trail: split over two, neither would show what happened in it.
    "audit": lambda own, outer: outer,
}
