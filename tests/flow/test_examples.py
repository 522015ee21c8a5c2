"""The examples of flows: each is played whole, and says what it does."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentgraph.flow import FlowResult
from tests.flow.planned_work import reports

ROOT = Path(__file__).parents[2]
EXAMPLES = ("supervisor", "hierarchical", "handoff", "debate", "sop")


def example(name: str) -> Any:
    return importlib.import_module(f"examples.flow.{name}")


def work_in(result: FlowResult[Any]) -> list[str]:
    """Return the workers in the order in which they began."""
    return [report.worker for report in result.stages if report.worker]


def outputs_of(result: FlowResult[Any]) -> list[tuple[str, str]]:
    """Return what each worker has brought, in order."""
    return [(r.worker, str(r.output["text"])) for r in result.stages if r.worker]


async def test_supervisor_plans_anew_with_the_problem_of_its_verdict() -> None:
    module = example("supervisor")
    result = await module.flow.ainvoke("A page on tides")
    assert (result.status, result.replans, result.success) == ("finished", 1, True)
    assert result.outcome == module.Page(title="Tides", text="four metres and almanac")
    attempts = [(attempt, worker) for stage, attempt, worker in reports(result) if worker]
    assert attempts == [(1, "gauge"), (2, "gauge"), (2, "librarian")]
    [rejection] = [report for report in result.stages if not report.passed]
    assert (rejection.stage, rejection.attempt) == ("validate", 1)
    assert [v.problems for v in rejection.verdicts if not v.passed] == [("name a source",)]


async def test_hierarchy_answers_through_a_flow_and_through_a_sub_agent() -> None:
    result = await example("hierarchical").flow.ainvoke("the house at the harbour")
    assert result.status == "finished"
    assert outputs_of(result) == [
        (
            "inspection",
            "Offline model: count_rooms says: nine rooms\n\n"
            "Offline model: find_damage says: a leaking roof",
        ),
        ("broker", "A repair costs 9,000."),
    ]
    assert "valuation/fan_out/broker/actuary" in result.usage.by_agent


async def test_peers_pass_the_brief_on_until_one_answers_or_the_hops_are_used_up() -> None:
    module = example("handoff")
    result = await module.flow.ainvoke("I was charged twice")
    assert (result.status, result.text) == ("finished", "You have 20 back.")
    assert work_in(result) == ["reception", "billing", "refunds"]
    result = await module.endless.ainvoke("I was charged twice")
    assert (result.status, result.reason, result.failure_class) == (
        "aborted",
        "hop_limit",
        "deadlock",
    )
    assert work_in(result) == ["reception", "billing", "refunds"] * 2


async def test_debate_ends_when_the_answers_are_near() -> None:
    result = await example("debate").flow.ainvoke("How long does the new roof take?")
    assert (result.status, result.text) == ("finished", "6 days")
    first, second = outputs_of(result)[:3], outputs_of(result)[3:]
    assert first == [("optimist", "3 days"), ("realist", "6 days"), ("pessimist", "20 days")]
    assert second == [(worker, "6 days") for worker, _ in first]


async def test_procedure_charges_after_it_has_reserved_or_gives_the_seat_back() -> None:
    module = example("sop")
    module.booked_seats.clear()
    steps = ["read_form", "reserve", "charge"]
    result = await module.booking("The card is charged.").ainvoke("Ann, card 4111")
    assert (result.status, work_in(result), module.booked_seats) == ("finished", steps, ["12A"])
    module.booked_seats.clear()
    result = await module.booking("The card is refused.").ainvoke("Ann, card 4111")
    assert (result.status, work_in(result), module.booked_seats) == ("aborted", steps, [])
    assert "the card was not charged" in result.text


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_alone(name: str) -> None:
    command = [sys.executable, "-m", f"examples.flow.{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 4


def test_every_example_is_tested() -> None:
    modules = {path.stem for path in (ROOT / "examples" / "flow").glob("[!_]*.py")}
    assert modules == set(EXAMPLES)
