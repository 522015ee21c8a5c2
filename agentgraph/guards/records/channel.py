"""What of an account stands in a graph's state, and what becomes of two that meet there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from typing_extensions import TypedDict

from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.saga_entry import merge_entries

BY_SPOT = ("corrections", "tries")
"""What is kept as it is, by the spots of agents."""
BY_PATH: Mapping[str, int | None] = {"loops": 64, "replans": None}
"""The memories by path, and of how many each is stored: a run may make any number of visits."""

Dumped = Mapping[str, Any]
"""An account as JSON-able values."""


def latest(left: Dumped, right: Dumped) -> Dumped:
    """Merge accounts: a new input's replaces the old one, of one input's the later one wins."""
    if left.get("input") != right.get("input"):
        return right
    later = right if right.get("version", 0) >= left.get("version", 0) else left
    sagas = [one.get("saga", {}) for one in (left, right)]
    if sagas[0] == sagas[1]:
        return later
    # A branch that was killed and runs again numbers on from before: no action may get lost.
    merged = merge_entries(*sagas)
    if merged == later.get("saga"):
        return later
    version = max(left.get("version", 0), right.get("version", 0)) + 1
    return {**later, "saga": merged, "version": version}


class GuardedState(TypedDict, total=False):
    """The channel in which a graph keeps the account; it crosses all levels."""

    guarded: Annotated[dict[str, Any], latest]


def decisions_of(dumped: Mapping[str, Any]) -> dict[str, list[Decision]]:
    """Return the decisions that were left to spots, from what is dumped of them."""
    return {spot: [Decision(**one) for one in made] for spot, made in dumped.items()}
