"""Flows without guards: the same stages, with nothing that limits or counts them."""

from __future__ import annotations

from typing import Any

from agentgraph.flow import Brief, Flow
from tests.flow.planned_work import flow_of, plan, verdict


async def test_flow_without_guards_finishes() -> None:
    result = await flow_of(plan("a", "b"), "ok", verdict(), guards=None).ainvoke("go")
    assert (result.status, result.text) == ("finished", "ok")


async def test_flow_without_guards_still_plans_anew_and_ends_after_two_new_plans() -> None:
    turns = [plan("a"), "weak", verdict(False, 0.9, "no sources")] * 3
    result = await flow_of(*turns, guards=None).ainvoke("go")
    assert (result.status, result.failure_class, result.replans) == ("aborted", "schema_failure", 2)


async def test_flow_without_guards_ends_with_the_cause_where_a_worker_raises() -> None:
    def broken(brief: Brief) -> str:
        raise RuntimeError("broken")

    flow: Flow[Any] = Flow("f", work=[broken], guards=None)
    result = await flow.ainvoke("go")
    assert result.status == "aborted"
    assert "RuntimeError: broken" in result.text
