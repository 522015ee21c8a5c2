"""Of two guards that both hold, what is at least as strict as either of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from agentgraph.guards.mechanisms.deadlines import Deadlines
from agentgraph.guards.mechanisms.escalation import Escalation
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.mechanisms.loop import LoopDetector
from agentgraph.guards.mechanisms.retry import Backoff, RetryBudget
from agentgraph.guards.overrides import LIMITS
from agentgraph.guards.table import Cell, DecisionTable


def tighter(name: str, own: Any, around: Any) -> Any:
    """Return what holds where one policy is inside of another.

    Of what cannot be compared it is the inner one's own.
    """
    if own is None or around is None:
        return own if around is None else around
    if name in LIMITS:
        return min(own, around, key=lambda limit: getattr(limit, LIMITS[name][1]))
    if name == "deadlines":
        layers = ("step_s", "stage_s", "workflow_s")
        return Deadlines(*(_least(getattr(own, at), getattr(around, at)) for at in layers))
    if name == "gates":
        return (*around, *own)
    if name == "stages":
        both = {stage: own[stage].within(around[stage]) for stage in own.keys() & around.keys()}
        return MappingProxyType({**around, **own, **both})
    combine = _COMBINED.get(name)
    return own if combine is None or own is around else combine(own, around)


def _least(own: float | None, around: float | None) -> float | None:
    known = [seconds for seconds in (own, around) if seconds is not None]
    return min(known) if known else None


def _loop(own: LoopDetector, around: LoopDetector) -> LoopDetector:
    return own.combine(around)


def _retry(own: RetryBudget, around: RetryBudget) -> RetryBudget:
    names = ("ratio", "reserve", "cap")
    is_stricter = all(getattr(own, name) <= getattr(around, name) for name in names)
    return own if is_stricter else around


def _backoff(own: Backoff, around: Backoff) -> Backoff:
    return Backoff(
        max(own.base_s, around.base_s),
        max(own.cap_s, around.cap_s),
        min(own.attempts, around.attempts),
    )


def _escalation(own: Escalation, around: Escalation) -> Escalation:
    waits = [wait for wait in (own.ttl_s, around.ttl_s) if wait is not None]
    return replace(
        own,
        threshold=max(own.threshold, around.threshold),
        critic=_either(own.critic, around.critic),
        ttl_s=min(waits, default=None),
    )


def _either(own: Any, around: Any) -> Any:
    """Return a critic that gives the lower of two scores."""
    if own is None or around is None or own is around:
        return around if own is None else own

    async def both(subject: Subject) -> object:
        scores = [await _scored(critic, subject) for critic in (own, around)]
        odd = [one for one in scores if not isinstance(one, int | float)]
        return odd[0] if odd else min(scores)  # what is no score does not pass

    return both


async def _scored(critic: Callable[[Subject], Any], subject: Subject) -> Any:
    score = critic(subject)
    return await score if inspect.isawaitable(score) else score


def _decisions(own: DecisionTable, around: DecisionTable) -> DecisionTable:
    cells = {key: _cell(cell, around.cell(*key)) for key, cell in own.overrides.items()}
    return DecisionTable({**around.overrides, **cells})


def _cell(own: Cell, around: Cell) -> Cell:
    """Return the cell that ends a run sooner."""
    return own if _rope(own) < _rope(around) else around


def _rope(cell: Cell) -> int:
    return 0 if cell.action in ("escalate", "abort") else cell.bound


_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "loop": _loop,
    "retry": _retry,
    "backoff": _backoff,
    "escalation": _escalation,
    "decisions": _decisions,
    # One run has one trail, or nobody could tell what happened in it.
    "audit": lambda own, around: around,
}
