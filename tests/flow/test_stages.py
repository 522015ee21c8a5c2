"""The five stages of a flow: who does them, what passes between them, and what is told of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from agentgraph import Agent
from agentgraph.errors import RoutingError
from agentgraph.flow import Brief, Flow, Plan, Summary, Verdict, debate
from agentgraph.testing import ScriptedModel, call
from tests.flow.planned_work import (
    flow_of,
    guarded,
    lead,
    plan,
    reports,
    requests,
    stages_of,
    verdict,
    worker,
)

STAGES = ("plan", "fan_out", "fan_in", "validate", "finalize")


class Page(BaseModel):
    title: str
    words: int


async def test_supervisor_plans_aggregates_validates_and_finalizes() -> None:
    page = call("Page", title="Tides", words=3)
    flow = flow_of(plan("a", "b"), "both", verdict(), page, outcome=Page)
    result = await flow.ainvoke("A page on tides")
    assert (result.status, result.reason) == ("finished", "finished")
    assert result.outcome == Page(title="Tides", words=3)
    planned, aggregated, judged, finalized = requests(flow.supervisor)
    assert "A page on tides" in planned and "- a: does a" in planned
    assert "a is done" in aggregated and "b is done" in aggregated
    assert "both" in judged
    assert "both" in finalized
    assert reports(result)[0] == ("plan", 1, "")
    assert {("fan_out", 1, "a"), ("fan_out", 1, "b")} < {*reports(result)}


async def test_without_an_outcome_the_aggregate_is_it() -> None:
    flow = flow_of(plan("a"), "the result", verdict())
    result = await flow.ainvoke("go")
    assert (result.text, result.outcome) == ("the result", "the result")
    assert len(requests(flow.supervisor)) == 3


async def test_without_a_supervisor_no_model_is_asked_that_was_not_given() -> None:
    flow: Flow[str] = Flow("report", work=[worker("a"), worker("b")])
    result = await flow.ainvoke("the task")
    assert result.text == "a is done\n\nb is done"
    assert result.outcome == result.text


async def test_each_part_may_be_a_function_sync_or_async() -> None:
    asked: list[Any] = []

    def planned(task: str, problems: list[str]) -> Plan:
        asked.append((task, problems))
        return Plan(briefs=(Brief(worker="count", task="count"),))

    async def count(brief: Brief) -> Summary:
        return Summary(worker="count", text="three", artifacts={"n": 3})

    def judged(aggregate: Any) -> Verdict:
        asked.append(aggregate)
        return Verdict(accepted=True)

    flow: Flow[Page] = Flow(
        "report",
        work=[count],
        plan=planned,
        aggregate=lambda summaries: {"title": "T", "words": summaries[0].artifacts["n"]},
        validate=judged,
        outcome=Page,
        oracle=lambda page: page.words == 3,
    )
    result = await flow.ainvoke("the task")
    assert asked == [("the task", []), {"title": "T", "words": 3}]
    assert (result.outcome, result.success) == (Page(title="T", words=3), True)


async def test_schemas_of_briefs_and_summaries_are_what_models_are_made_to_answer() -> None:
    class Search(Brief):
        query: str

    class Found(Summary):
        hits: int

    searcher = Agent(
        "searcher",
        model=ScriptedModel([call("Found", worker="searcher", text="two", hits=2)]),
        default_tools=False,
    )
    planned = call("Plan", briefs=[{"worker": "searcher", "task": "look", "query": "tides"}])
    flow: Flow[Any] = Flow(
        "report", supervisor=lead(planned, "ok", verdict()), work=[searcher],
        brief=Search, summary=Found, guards=guarded(),
    )  # fmt: skip
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    assert "query: tides" in requests(searcher)[0]
    [summary] = [r.output for r in result.stages if r.worker == "searcher"]
    assert summary["hits"] == 2


async def test_what_is_done_is_told_as_it_happens() -> None:
    told = await stages_of(flow_of(plan("a"), "ok", verdict()))
    assert [event for event in told if not event[1]] == [
        (stage, "", status)
        for stage in ("plan", "fan_out", "fan_in", "validate", "finalize")
        for status in ("started", "finished")
    ]
    assert [event for event in told if event[1]] == [
        ("fan_out", "a", "started"),
        ("fan_out", "a", "finished"),
    ]


@pytest.mark.parametrize("topology", ["supervisor", "sop", "handoff", debate(rounds=3)])
async def test_work_is_told_as_one_stage_around_all_its_workers(topology: Any) -> None:
    turns = [call("transfer_to_b")] if topology == "handoff" else ["one", "two", "three"]
    work = [worker("a", *turns), worker("b", *"987")]
    briefs = plan("a") if topology == "handoff" else plan("a", "b")
    flow = flow_of(briefs, "ok", verdict(), work=work, topology=topology, guards=guarded(fan_out=1))
    told = await stages_of(flow)
    of_stages = [(stage, status) for stage, name, status in told if not name]
    assert [stage for stage, _ in of_stages[::2]] == [*STAGES]
    assert of_stages == [(s, status) for s in STAGES for status in ("started", "finished")]
    places = [at for at, (stage, name, _) in enumerate(told) if name]
    begin, end = told.index(("fan_out", "", "started")), told.index(("fan_out", "", "finished"))
    assert [begin + 1, end - 1] == [places[0], places[-1]]


async def test_usage_is_told_by_stage_and_in_all() -> None:
    flow = flow_of(plan("a", "b"), "ok", verdict())
    result = await flow.ainvoke("go")
    assert result.usage.total_tokens == sum(r.usage.total_tokens for r in result.stages) > 0
    assert {*result.usage.by_agent} == {
        "report/plan/lead",
        "report/fan_out/a",
        "report/fan_out/b",
        "report/fan_in/lead",
        "report/validate/lead",
    }


async def test_a_brief_begins_when_what_it_requires_is_there_and_shows_it() -> None:
    a, b = worker("a", "the sources"), worker("b")
    briefs = [
        {"worker": "b", "task": "write", "requires": ["a"]},
        {"worker": "a", "task": "search"},
    ]
    flow = flow_of(call("Plan", briefs=briefs), "ok", verdict(), work=[a, b])
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    assert "From a:\nthe sources" in requests(b)[0]


async def test_a_brief_begins_when_the_artifact_that_it_requires_is_there() -> None:
    shown_to_b: list[str] = []

    def a(brief: Brief) -> Any:
        return {"text": "found", "artifacts": {"sources": ["x"]}}

    def b(brief: Brief, shown: Any) -> str:
        shown_to_b.extend(summary.worker for summary in shown)
        return "written"

    briefs = (Brief(worker="b", task="write", requires=("sources",)), Brief(worker="a", task="go"))
    flow: Flow[Any] = Flow(
        "f", work=[a, b], plan=lambda task: Plan(briefs=briefs), guards=guarded()
    )
    assert (await flow.ainvoke("go")).status == "finished"
    assert shown_to_b == ["a"]


@pytest.mark.parametrize("topology", ["supervisor", "sop"])
async def test_a_brief_whose_artifact_nobody_brings_does_not_begin(topology: Any) -> None:
    work = [worker("a"), worker("b")]
    briefs = [{"worker": "a", "task": "x"}, {"worker": "b", "task": "y", "requires": ["sources"]}]
    bad, good = call("Plan", briefs=briefs), plan("a", "b")
    flow = flow_of(bad, good, "ok", verdict(), work=work, topology=topology, guards=guarded(),
                   critic=lambda plan: Verdict(accepted=True))  # fmt: skip
    result = await flow.ainvoke("go")
    assert (result.status, result.replans) == ("finished", 1)
    assert "b: 'sources' is required, and no summary has it" in requests(flow.supervisor)[1]
    assert len(requests(work[1])) == 1


async def test_each_input_on_a_thread_is_a_new_run_of_the_flow() -> None:
    flow = flow_of(plan("a"), "one", verdict(), plan("b"), "two", verdict())
    first = await flow.ainvoke("first", thread_id="t")
    second = await flow.ainvoke("second", thread_id="t")
    assert (first.text, second.text) == ("one", "two")
    assert [report for report in reports(second) if report[2]] == [("fan_out", 1, "b")]
    history = await flow.ahistory("t")
    assert [str(m.text) for m in history] == ["first", "one", "second", "two"]


async def test_result_of_a_thread_is_told_later_too() -> None:
    flow = flow_of(plan("a"), Page(title="T", words=1).model_dump_json(), verdict(), outcome=Page,
                   finalize=Page.model_validate_json, guards=guarded())  # fmt: skip
    result = await flow.ainvoke("go", thread_id="t")
    later = await flow.aresult("t")
    assert replace(later, usage=result.usage) == result
    assert later.usage.total_tokens == result.usage.total_tokens > 0
    assert json.loads(json.dumps(later.to_dict()))["outcome"] == {"title": "T", "words": 1}
    assert await flow.ainterrupts("t") == ()
    with pytest.raises(RoutingError, match="no run on thread 'none'"):
        await flow.aresult("none")


async def test_result_of_a_thread_that_waits_has_its_questions() -> None:
    flow = flow_of(plan("a"), "unsure", verdict(True, 0.1))
    result = await flow.ainvoke("go", thread_id="t")
    later = await flow.aresult("t")
    assert (later.status, later.interrupts) == ("waiting", result.interrupts)
    assert await flow.ainterrupts("t") == result.interrupts


async def test_plan_of_a_function_may_have_briefs_of_the_flows_own_class() -> None:
    class Search(Brief):
        query: str

    asked: list[str] = []

    def search(brief: Search) -> str:
        asked.append(brief.query)
        return "two"

    flow: Flow[Any] = Flow(
        "report",
        work=[search],
        brief=Search,
        plan=lambda task: Plan(briefs=(Search(worker="search", task=task, query="tides"),)),
    )
    assert (await flow.ainvoke("go")).text == "two"
    assert asked == ["tides"]
