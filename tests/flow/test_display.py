"""What notebooks show of flows: the drawn graph, and of a result its stages, lit and marked."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.flow import Flow, FlowResult
from tests.flow.planned_work import flow_of, guarded, plan, verdict, worker

BAD = verdict(False, 0.9, "<wrong>")


def marks(html: str) -> dict[str, str]:
    """Return the marks of the nodes in a picture, by their names."""
    nodes = re.findall(r'<g class="node box ?(\w*)"><title>([^<]*)', html)
    return {name: mark for mark, name in nodes}


def ways(html: str) -> set[str]:
    """Return the lit edges of a picture."""
    return set(re.findall(r'<g class="edge on"><title>([^<]*)', html))


def test_flow_is_drawn_with_its_stages_and_workers() -> None:
    bundle = Flow("report", work=[worker("a")])._repr_mimebundle_()
    assert {*bundle} == {"text/plain", "image/svg+xml", "text/vnd.mermaid"}
    ElementTree.fromstring(bundle["image/svg+xml"])
    nodes = marks(bundle["image/svg+xml"]).keys()
    assert {"plan", "plan_gate", "fan_out", "work:a", "validate"} < nodes
    assert "fan_out" in bundle["text/vnd.mermaid"]


def test_flow_that_cannot_be_drawn_says_why() -> None:
    def broken(graph: Any) -> Any:
        raise ConfigurationError("no such node")

    flow: Flow[Any] = Flow("report", work=[Agent("a", patcher=broken)])
    bundle = flow._repr_mimebundle_()
    assert "cannot be drawn" in bundle["text/html"]
    assert "no such node" in bundle["text/html"]


async def test_result_is_a_table_of_stages_and_a_picture_with_them_lit() -> None:
    result = await flow_of(plan("a", "b"), "<ok>", verdict()).ainvoke("go")
    html = result._repr_html_()
    ElementTree.fromstring(html)
    assert html.count("<tr>") == len(result.stages) + 1
    assert "&lt;ok&gt;" in html and "<ok>" not in html
    names = ("plan", "fan_out", "fan_out/a", "fan_out/b", "fan_in", "validate", "finalize")
    assert marks(html) == dict.fromkeys(names, "on")
    assert "plan → fan_out" in ways(html)


async def test_failed_stage_is_marked_and_what_did_not_run_is_dark() -> None:
    turns = [plan("a"), "x", BAD, plan("b"), "y", BAD]
    guards = guarded(replans=1)
    result = await flow_of(*turns, guards=guards).ainvoke("go")
    assert (result.status, result.replans) == ("aborted", 1)
    html = result._repr_html_()
    assert marks(html)["validate"] == "failed"
    assert marks(html)["finalize"] == ""
    assert {"validate → plan: replan 1", "validate → end: aborted"} <= ways(html)
    assert "validate ✗" in html


async def test_result_that_waits_shows_its_question() -> None:
    result = await flow_of(plan("a"), "unsure", verdict(True, 0.1)).ainvoke("go")
    html = result._repr_html_()
    assert "flow waiting" in html
    assert result.interrupts[0].id in html


def test_result_without_stages_is_shown_too() -> None:
    assert "<svg" not in FlowResult(status="aborted", reason="failed")._repr_html_()
