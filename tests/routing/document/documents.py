"""Graphs as documents, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    Registry,
    TransitionGraph,
)

FLAT: dict[str, Any] = {"name": "always", "args": {}}


def document(*rules: Any, **changes: Any) -> dict[str, Any]:
    plain = {"version": 1, "initial_speaker": "a", "default_target": "b", "max_turns": None}
    return {**plain, "transitions": list(rules), **changes}


def rule(when: Any = FLAT, then: Any = "b", **changes: Any) -> dict[str, Any]:
    return {"when": when, "then": then, **changes}


def part(kind: str, /, **args: Any) -> dict[str, Any]:
    return {"name": kind, "args": args}


def faults(data: Any, registry: Registry | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        TransitionGraph.from_dict(data, registry)
    assert caught.value.code == "graph"
    return caught.value.faults
