"""Agents and teams whose time is limited."""

from __future__ import annotations

from typing import Any

from agentgraph import Guards, Team, sequence
from agentgraph.guards import Backoff, Deadlines
from agentgraph.testing import Fault
from agentgraph.testing.answers import Scripted
from tests.guards.metered_models import worker

FOREVER_S = 1e6


def hangs(turn: Scripted = "late") -> Fault:
    return Fault.delay(FOREVER_S, turn)


def guards(
    step_s: float | None = None,
    stage_s: float | None = None,
    workflow_s: float | None = None,
    **fields: Any,
) -> Guards:
    fields = {"backoff": Backoff(base_s=0), **fields}
    return Guards.interactive(deadlines=Deadlines(step_s, stage_s, workflow_s), **fields)


def line(*turns: Scripted, **fields: Any) -> Team:
    """Return agents who speak one after the other."""
    speakers = [worker(f"s{n}", [turn] * 2) for n, turn in enumerate(turns)]
    names = [one.name for one in speakers]
    return Team(speakers, sequence(names), expectations=(), **fields)
