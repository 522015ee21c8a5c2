"""Flows of many workers: what counts once for each of them must not end them all."""

from __future__ import annotations

from typing import Any

from agentgraph.flow import Flow
from tests.flow.planned_work import guarded, worker


async def test_workers_that_all_answer_the_same_are_no_run_without_a_new_result() -> None:
    work = [worker(f"w{number}", "yes") for number in range(12)]
    flow: Flow[Any] = Flow("vote", work=work, guards=guarded(fan_out=4, steps=8))
    result = await flow.ainvoke("go")
    assert (result.status, result.text.split()) == ("finished", ["yes"] * 12)
