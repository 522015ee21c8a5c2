"""What stands in a trail is what was done: where a cell cannot be, what comes after it is."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agentgraph.guards import Cell, CircuitBreaker, DecisionTable, Gate, MemorySink
from agentgraph.testing import ScriptedModel
from tests.guards.guarded_agents import audited, looping, recorded, solo, systems, watched


def table(failure: Any, tier: Any, cell: Cell) -> DecisionTable:
    return DecisionTable({(failure, tier): cell})


@pytest.mark.parametrize("bound", [1, 4, 40])
@pytest.mark.parametrize("then", ["abort", "escalate"])
async def test_a_loop_is_corrected_as_often_as_its_cell_says(then: Any, bound: int) -> None:
    sink = MemorySink()
    patient = table("infinite_loop", "interactive", Cell("correct", bound, then))
    model = looping()
    reply = await solo(model, guards=watched(sink, decisions=patient, steps=99)).ainvoke("go")
    corrected = ("a", "loop_detector", "correct")
    assert audited(sink) == [*[corrected] * bound, ("a", "loop_detector", then)]
    assert len(model.requests) == 6 + bound
    corrected_at = [3, *range(7, 6 + bound)]
    assert all("Do something else" in systems(model.requests[at])[0] for at in corrected_at)
    assert reply.close_reason == ("loop_detector" if then == "abort" else None)
    assert len(reply.interrupts) == (then == "escalate")


async def test_a_request_that_is_refused_for_good_is_decided_as_it_ends() -> None:
    sink = MemorySink()
    again = table("schema_failure", "regulated", Cell("replan", 2, "escalate"))
    model = ScriptedModel([ValueError("no such field"), "Never."])
    reply = await solo(model, guards=watched(sink, "regulated", decisions=again)).ainvoke("go")
    assert audited(sink) == [("a", "failure", "escalate")]
    assert (len(reply.interrupts), len(model.requests)) == (1, 1)


@pytest.mark.parametrize("has_answer", [True, False])
async def test_no_progress_is_answered_safely_where_there_is_a_safe_answer(
    has_answer: bool,
) -> None:
    sink, safe = MemorySink(), AIMessage("I cannot say.")
    cells = {
        ("schema_failure", "interactive"): Cell("correct", 5, "abort"),
        ("no_progress", "interactive"): Cell("fallback", 2, "escalate"),
    }
    guards = watched(
        sink,
        decisions=DecisionTable(cells),  # type: ignore[arg-type]
        gates=Gate(invariants=[lambda subject: "no"]),
        breaker=CircuitBreaker(fallback=safe if has_answer else None),
        replans=3,
    )
    reply = await solo(ScriptedModel(["same", "same", "same"]), guards=guards).ainvoke("go")
    done = "fallback" if has_answer else "escalate"
    assert audited(sink) == [("a", "gate", "correct"), ("a", "replan_limit", done)]
    assert (reply.text, len(reply.interrupts)) == ((safe.text, 0) if has_answer else ("", 1))
    assert len(recorded(sink, "gate")) == 2
