"""What is drawn of a flow: its stages and workers, the way through them, and the ways back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentgraph.flow import Flow, debate
from tests.flow.planned_work import flow_of, plan, verdict, worker


def edges_in(svg: str) -> set[str]:
    """Return the edges of a picture, each as the tooltip tells it."""
    return set(re.findall(r'<g class="edge[^"]*"><title>([^<]*)</title>', svg))


def flow(topology: Any = "supervisor", **fields: Any) -> Flow[Any]:
    work = [worker("a"), worker("b"), worker("c")]
    return flow_of(plan("a"), "ok", verdict(), work=work, topology=topology, **fields)


def test_picture_has_the_way_through_the_stages_and_the_ways_back_at_the_gates() -> None:
    assert edges_in(flow().svg()) == {
        "__start__ → plan",
        "plan → plan_gate",
        "plan_gate → fan_out",
        *(f"fan_out → work:{name}" for name in "abc"),
        *(f"work:{name} → fan_in" for name in "abc"),
        "fan_in → fan_out: next wave",
        "fan_in → validate",
        "validate → validate_gate",
        "validate_gate → finalize",
        "finalize → __end__",
        "plan_gate → plan: new plan",
        "validate_gate → plan: new plan",
        "plan_gate → escalate",
        "validate_gate → escalate",
        "escalate → finalize: approve",
        "escalate → compensate: reject",
        "compensate → __end__",
    }


def test_picture_without_guards_has_no_human() -> None:
    edges = edges_in(flow(guards=None).svg())
    assert "validate_gate → __end__" in edges
    assert not [edge for edge in edges if "escalate" in edge or "compensate" in edge]


@pytest.mark.parametrize(
    ("topology", "edge"),
    [
        ("sop", "work:a → work:b"),
        ("handoff", "fan_in → fan_out: hand over"),
        (debate(), "fan_in → fan_out: next round"),
    ],
)
def test_picture_shows_the_wiring_of_the_topology(topology: Any, edge: str) -> None:
    assert edge in edges_in(flow(topology).svg())


def test_mermaid_names_each_stage_and_draws_the_workers_as_a_group() -> None:
    text = flow().mermaid()
    assert "plan --> plan_gate;" in text
    assert "validate_gate -. &nbsp;new plan&nbsp; .-> plan;" in text
    assert re.search(r"subgraph work\n.*\(a\)\n.*\(b\)\n.*\(c\)\n\s*end", text)
