"""The topologies: who works when, who sees what, and that gates and budgets hold in each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.flow import Brief, Flow, Stage, Summary, debate
from agentgraph.guards import Gate
from agentgraph.testing import ScriptedModel, call
from tests.flow.planned_work import flow_of, guarded, plan, reports, requests, verdict, worker


async def test_workers_of_a_hierarchy_may_be_flows_and_agents_with_sub_agents() -> None:
    inner: Flow[Any] = Flow("inner", "works inside", work=[worker("x"), worker("y")])
    below = worker("below", "from below")
    boss = Agent(
        "boss",
        model=ScriptedModel([call("transfer_to_below")]),
        agents=[below],
        default_tools=False,
    )
    flow = flow_of(
        plan("inner", "boss"), "ok", verdict(), work=[inner, boss], topology="hierarchical"
    )
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    outputs = {r.worker: r.output for r in result.stages if r.worker}
    assert outputs["inner"]["text"] == "x is done\n\ny is done"
    assert outputs["boss"]["text"] == "from below"


async def test_peers_hand_the_work_over_until_one_answers() -> None:
    a = worker("a", call("transfer_to_b", reason="not mine"))
    b = worker("b", "b knows")
    flow = flow_of(plan("a"), "ok", verdict(), work=[a, b], topology="handoff")
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    assert [report[2] for report in reports(result) if report[2]] == ["a", "b"]
    assert "b knows" in requests(flow.supervisor)[1]


async def test_peers_that_hand_over_for_ever_are_ended() -> None:
    a = worker("a", *[call("transfer_to_b")] * 30)
    b = worker("b", *[call("transfer_to_a")] * 30)
    flow = flow_of(
        plan("a"), "ok", verdict(), work=[a, b], topology="handoff", guards=guarded("interactive")
    )
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "deadlock")
    assert len([report for report in reports(result) if report[2]]) <= 7


async def test_more_than_one_brief_is_malformed_for_peers() -> None:
    flow = flow_of(plan("a", "b"), topology="handoff", guards=guarded("interactive"))
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "spec_malformed")


async def test_debaters_see_the_answers_of_the_others_and_may_change_theirs() -> None:
    a, b = worker("a", "seven", "eight"), worker("b", "nine", "eight", "eight")
    flow = flow_of(plan("a", "b"), "eight", verdict(), work=[a, b], topology=debate(rounds=4))
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    assert len(requests(a)) == len(requests(b)) == 2  # they agree after the second round
    assert "From b:\nnine" in requests(a)[1]


async def test_debate_ends_after_its_rounds_or_when_its_judge_says_so() -> None:
    a, b = worker("a"), worker("b")
    flow = flow_of(plan("a", "b"), "ok", verdict(), work=[a, b], topology=debate(rounds=3))
    await flow.ainvoke("go")
    assert len(requests(a)) == 3
    seen: list[list[str]] = []

    def agree(summaries: Sequence[Summary]) -> bool:
        seen.append([summary.worker for summary in summaries])
        return True

    c, d = worker("c"), worker("d")
    flow = flow_of(plan("c", "d"), "ok", verdict(), work=[c, d], topology=debate(5, agree))
    await flow.ainvoke("go")
    assert len(requests(c)) == 1
    assert seen[0] == ["c", "d"]


class Estimate(Summary):
    hours: int


@pytest.mark.parametrize("is_async", [False, True])
async def test_judge_of_a_debate_is_asked_once_a_round_and_off_the_loop(is_async: bool) -> None:
    judged: list[list[int]] = []
    threads: list[int] = []

    def near(estimates: Sequence[Estimate]) -> bool:
        threads.append(threading.get_ident())
        judged.append([estimate.hours for estimate in estimates])
        return max(judged[-1]) - min(judged[-1]) < 3

    async def near_later(estimates: Sequence[Estimate]) -> bool:
        return near(estimates)

    def estimating(name: str, *hours: int) -> Any:
        rest = iter(hours)

        def estimate(brief: Brief) -> Estimate:
            return Estimate(worker=name, text="an estimate", hours=next(rest))

        estimate.__name__ = name
        return estimate

    agree: Any = near_later if is_async else near
    work = [estimating("a", 1, 4), estimating("b", 9, 6)]
    flow: Flow[Any] = Flow("f", work=work, summary=Estimate, topology=debate(5, agree),
                           guards=guarded())  # fmt: skip
    assert (await flow.ainvoke("go")).status == "finished"
    assert judged == [[1, 9], [4, 6]]
    assert is_async == (threading.get_ident() in threads)


async def test_procedure_runs_in_order_each_on_those_before() -> None:
    a, b, c = worker("a"), worker("b"), worker("c")
    flow = flow_of(plan("a", "b", "c"), "ok", verdict(), work=[a, b, c], topology="sop")
    result = await flow.ainvoke("go")
    assert [report[2] for report in reports(result) if report[2]] == ["a", "b", "c"]
    assert "From a:\na is done" in requests(c)[0] and "From b:\nb is done" in requests(c)[0]
    flow = flow_of(plan("b", "a"), work=[worker("a"), worker("b")], topology="sop",
                   guards=guarded("interactive"))  # fmt: skip
    assert (await flow.ainvoke("go")).failure_class == "spec_malformed"


async def test_procedure_without_a_planner_has_the_order_of_its_workers() -> None:
    flow: Flow[Any] = Flow("f", work=[worker("a"), worker("b")], topology="sop", guards=guarded())
    assert (await flow.ainvoke("go")).text == "a is done\n\nb is done"


@pytest.mark.parametrize("topology", ["supervisor", "hierarchical", "sop", "handoff", debate()])
async def test_gates_of_workers_hold_in_each_topology(topology: Any) -> None:
    gate = Stage(after=Gate(invariants=[lambda subject: "no"]))
    work = [worker("a"), worker("b")]
    briefs = ["a"] if topology == "handoff" else ["a", "b"]
    flow = flow_of(
        plan(*briefs), work=work, topology=topology, stages={"a": gate},
        guards=guarded("interactive", replans=0),
    )  # fmt: skip
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "schema_failure")


def test_unknown_topology_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'supervisor'.*and debate"):
        Flow("f", work=[worker("a")], topology="ring")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="give 1 or more"):
        debate(rounds=0)
