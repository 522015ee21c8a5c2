"""How much a flow may begin and spend: one purse, waves, and what is told of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph.flow import Brief, Flow, FlowResult, Plan, Stage
from agentgraph.guards import CostBudget, FanOutLimit, MemorySink, StepLimit
from agentgraph.testing import call
from tests.flow.planned_work import flow_of, guarded, plan, verdict, worker
from tests.guards.guarded_agents import recorded


class Crew:
    """Workers that count how many of them are at work at once."""

    def __init__(self, *names: str) -> None:
        self.at_work = self.most_at_work = self.runs = 0
        self.workers = [self._worker(name) for name in names]

    def _worker(self, name: str) -> Any:
        async def work(brief: Brief) -> str:
            self.at_work += 1
            self.runs += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
            await helper.ainvoke("go")  # gives the others time to begin
            self.at_work -= 1
            return f"{name} is done"

        helper: Flow[Any] = Flow("helper", work=[_answer], guards=None)
        work.__name__ = name
        return work


async def _answer(brief: Brief) -> str:
    return "ok"


def many(count: int, worker: str = "a") -> Any:
    """Return a planner that gives so many briefs to a worker."""

    def planned(task: str) -> Plan:
        briefs = (Brief(worker=worker, task=f"part {n}") for n in range(count))
        return Plan(briefs=tuple(briefs))

    return planned


def done(result: FlowResult[Any]) -> list[bool]:
    """Return of each piece of work whether it was done."""
    return [report.output is not None for report in result.stages if report.worker]


async def test_workers_beyond_those_at_once_begin_in_waves() -> None:
    crew = Crew("a")
    flow: Flow[Any] = Flow("f", work=crew.workers, plan=many(30), guards=guarded(fan_out=7))
    result = await flow.ainvoke("go")
    assert (result.status, crew.runs, crew.most_at_work) == ("finished", 30, 7)


@pytest.mark.parametrize(("limit", "begun"), [(FanOutLimit(2, total=3), 3), (FanOutLimit(0), 0)])
async def test_workers_beyond_the_total_never_begin_and_are_told(
    limit: FanOutLimit, begun: int
) -> None:
    crew, sink = Crew("a"), MemorySink()
    guards = guarded(fan_out=limit, sink=sink)
    flow: Flow[Any] = Flow("f", work=crew.workers, plan=many(5), guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "cost_overrun")
    assert crew.runs == begun == len(recorded(sink, "dispatch"))
    assert (done(result).count(True), done(result).count(False)) == (begun, 5 - begun)
    assert result.reason == "fan_out_limit"


async def test_fifty_briefs_on_a_budget_for_twenty_never_overspend_at_any_width() -> None:
    for width in (1, 8, 50):
        work = [worker("a", *["four words are said"] * 50)]
        guards = guarded(budget=CostBudget(tokens=400), fan_out=width)
        flow: Flow[Any] = Flow("f", work=work, plan=many(50), guards=guards)
        result = await flow.ainvoke("go")
        assert (result.status, result.failure_class) == ("aborted", "cost_overrun")
        assert 0 < result.usage.total_tokens <= 400
        assert len(done(result)) == 50
        assert any(done(result)) and not all(done(result))


async def test_budget_of_a_worker_is_reserved_before_it_begins() -> None:
    crew = Crew("a", "b", "c", "d")
    stages = {name: Stage(budget=CostBudget(tokens=500)) for name in "abcd"}
    guards = guarded(budget=CostBudget(tokens=1_200))
    flow: Flow[Any] = Flow("f", work=crew.workers, stages=stages, guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, crew.runs, crew.most_at_work) == ("finished", 4, 2)


async def test_worker_for_whose_budget_not_enough_is_left_does_not_begin() -> None:
    crew = Crew("a", "b")
    stages = {"b": Stage(budget=CostBudget(tokens=2_000))}
    guards = guarded(budget=CostBudget(tokens=1_200))
    flow: Flow[Any] = Flow("f", work=crew.workers, stages=stages, guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, result.reason) == ("aborted", "cost_budget")
    assert crew.runs == 1


@pytest.mark.parametrize("topology", ["sop", "supervisor"])
async def test_work_that_was_not_begun_is_told(topology: Any) -> None:
    def broken(brief: Brief) -> str:
        raise RuntimeError("broken")

    briefs = [
        {"worker": "broken", "task": "one"},
        {"worker": "b", "task": "two", "requires": ["broken"]},
    ]
    flow = flow_of(call("Plan", briefs=briefs), work=[broken, worker("b")], topology=topology,
                   guards=guarded("interactive", replans=0))  # fmt: skip
    result = await flow.ainvoke("go")
    assert result.status == "aborted"
    assert "b: was not begun" in result.text


async def test_budget_of_a_stage_holds_for_that_stage_alone() -> None:
    stages = {"validate": Stage(budget=CostBudget(tokens=1))}
    flow = flow_of(plan("a"), "ok", verdict(), stages=stages, guards=guarded("interactive"))
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "cost_overrun")
    assert {report.stage for report in result.stages} == {"plan", "fan_out", "fan_in", "validate"}


async def test_budget_of_the_work_is_that_of_all_workers_together() -> None:
    stages = {"fan_out": Stage(budget=CostBudget(tokens=400))}
    a = worker("a", *["four words are said"] * 50)
    flow: Flow[Any] = Flow("f", work=[a], plan=many(50), stages=stages, guards=guarded())
    result = await flow.ainvoke("go")
    assert (result.status, result.reason) == ("aborted", "cost_budget")
    assert 0 < result.usage.total_tokens <= 400
    assert any(done(result)) and not all(done(result))


async def test_peers_that_hand_the_same_work_back_and_forth_are_stopped_on_record() -> None:
    sink = MemorySink()
    a = worker("a", *[call("transfer_to_b")] * 30)
    b = worker("b", *[call("transfer_to_a")] * 30)
    guards = guarded("interactive", sink=sink, replans=0, steps=StepLimit(500))
    flow = flow_of(plan("a"), work=[a, b], topology="handoff", guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "deadlock")
    moves = [record.data["target"] for record in recorded(sink, "handoff")]
    assert moves[:2] == ["b", "a"]


async def test_flows_in_flows_end_at_the_depth_limit_with_its_cause() -> None:
    flow: Flow[Any] = Flow("level0", work=[worker("deep")])
    for level in range(1, 6):
        flow = Flow(f"level{level}", work=[flow], guards=guarded("interactive", depth=4))
    result = await flow.ainvoke("go")
    assert (result.status, result.reason) == ("aborted", "depth_limit")
    assert result.failure_class == "infinite_loop"
    assert result.text.count("was ended by the guard") == 1
