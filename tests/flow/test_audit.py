"""The audit of flows: what stages record, runs rebuilt from it, and the oracle's later answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.types import interrupt
from pydantic import BaseModel

from agentgraph import Agent, Hub
from agentgraph.errors import ConfigurationError, RoutingError
from agentgraph.flow import Brief, Flow, FlowResult, Plan, Summary, Verdict, debate
from agentgraph.guards import AuditTrail, JSONLSink, MemorySink, Record, SQLiteSink
from agentgraph.testing import ScriptedModel, call
from tests.flow.planned_work import flow_of, guarded, plan, verdict, worker

SECRET = "zebra"


class Page(BaseModel):
    title: str


def audited(sink: Any, tier: Any = "batch", **fields: Any) -> Any:
    """Return guards whose audit has the texts too."""
    return guarded(tier, audit=AuditTrail(sink, payloads=True), **fields)


def records_of(sink: Any) -> list[Record]:
    return [record for run in sink.runs() for record in sink.read(run)]


def assert_rebuilt(result: FlowResult[Any], sink: Any, outcome: Any = None) -> None:
    """Assert that the records of the last run of a sink give this result."""
    rebuilt = FlowResult.from_records(sink.read(sink.runs()[-1]), outcome)
    assert rebuilt == replace(result, interrupts=())


# Runs rebuilt.

WORKERS = ("a", "b", "c")
DEEDS = (*["answers", "is an agent"] * 5, "raises", "says nothing")
TOPOLOGIES: tuple[Any, ...] = ("supervisor", "hierarchical", "handoff", "sop", debate(2))


@dataclass(frozen=True)
class Script:
    """What happens in a random flow."""

    plans: tuple[Any, ...]
    verdicts: tuple[Verdict, ...]
    deeds: tuple[str, ...]
    topology: Any
    tier: str
    has_outcome: bool

    @property
    def _good_plan(self) -> Plan:
        names = ("b",) if self.topology == "handoff" else WORKERS
        return Plan(briefs=tuple(Brief(worker=name, task="t") for name in names))

    def flow(self, sink: Any) -> Flow[Any]:
        """Return the flow of this script, whose plans and verdicts become good at last."""
        plans, verdicts = iter(self.plans), iter(self.verdicts)
        work = [_deed(name, deed) for name, deed in zip(WORKERS, self.deeds, strict=True)]
        return Flow(
            "random",
            work=work,
            plan=lambda task: next(plans, self._good_plan),
            validate=lambda aggregate: next(verdicts, Verdict(accepted=True)),
            finalize=lambda aggregate: {"title": str(aggregate)} if self.has_outcome else aggregate,
            outcome=Page if self.has_outcome else None,
            oracle=lambda outcome: len(str(outcome)) % 2 == 0,
            topology=self.topology,
            guards=audited(sink, self.tier),
        )


def _deed(name: str, deed: str) -> Any:
    if deed == "is an agent":
        return worker(name)

    def work(brief: Brief, shown: Any) -> Any:
        if deed == "raises":
            raise ValueError(f"{name} cannot")
        text = "" if deed == "says nothing" else f"{name}: {brief.task}"
        return Summary(worker=name, text=text, confidence=0.5) if text else ""

    work.__name__ = name
    return work


briefs = st.builds(
    Brief, worker=st.sampled_from([*WORKERS, *WORKERS, "nobody"]), task=st.text(max_size=4)
)
scripts = st.builds(
    Script,
    plans=st.lists(
        st.one_of(
            st.just("no plan at all"),
            st.builds(Plan, briefs=st.lists(briefs, max_size=3).map(tuple)),
        ),
        max_size=2,
    ).map(tuple),
    verdicts=st.lists(
        st.builds(
            Verdict,
            accepted=st.booleans(),
            confidence=st.sampled_from([0.1, 0.9, 0.95, 1.0, 1.0]),
            problems=st.lists(st.text(max_size=5), max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    deeds=st.tuples(*[st.sampled_from(DEEDS)] * len(WORKERS)),
    topology=st.sampled_from(TOPOLOGIES),
    tier=st.sampled_from(["interactive", "batch", "regulated"]),
    has_outcome=st.booleans(),
)


@given(scripts)
@settings(max_examples=80)
def test_audit_with_payloads_rebuilds_any_run(script: Script) -> None:
    sink = MemorySink()
    result = asyncio.run(script.flow(sink).ainvoke("go", thread_id="t"))
    assert_rebuilt(result, sink, Page if script.has_outcome else None)


@pytest.fixture(params=[JSONLSink, SQLiteSink])
def file_sink(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    sink = request.param(tmp_path / "audit")
    yield sink
    sink.close()


async def test_run_is_rebuilt_from_a_file_with_its_usage_and_outcome(file_sink: Any) -> None:
    page = call("Page", title="Tides")
    turns = [plan("a", "b"), "both", verdict(False, 0.9, "weak"), plan("a"), "one", verdict(), page]
    flow = flow_of(*turns, outcome=Page, guards=audited(file_sink))
    result = await flow.ainvoke("go")
    assert (result.status, result.replans, result.outcome) == ("finished", 1, Page(title="Tides"))
    assert result.usage.total_tokens > 0
    assert_rebuilt(result, file_sink, Page)


async def test_run_that_a_human_has_decided_is_rebuilt_at_each_pause() -> None:
    sink = MemorySink()
    flow = flow_of(plan("a"), "ok", verdict(True, 0.1), guards=audited(sink))
    waiting = await flow.ainvoke("go", thread_id="t")
    assert waiting.status == "waiting"
    assert_rebuilt(waiting, sink)
    [question] = waiting.interrupts
    result = await flow.aresume("t", {question.id: {"type": "approve"}})
    assert result.status == "finished"
    assert_rebuilt(result, sink)


async def test_run_that_was_cut_off_and_goes_on_is_rebuilt(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(brief: Brief) -> str:
        begun.set()
        await go.wait()
        return "slow is done"

    sink, url = MemorySink(), f"sqlite:///{tmp_path / 'flows.db'}"
    fields: Any = {"work": [worker("a"), slow], "checkpointer": url, "guards": audited(sink)}
    flow: Flow[Any] = Flow("report", topology="sop", **fields)
    run = asyncio.create_task(flow.ainvoke("go", thread_id="t"))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    cut_off = FlowResult.from_records(records_of(sink))
    assert (cut_off.status, cut_off.reason) == ("aborted", "cancelled")
    go.set()
    result = await flow.acontinue("t")
    assert [r.worker for r in result.stages if r.worker] == ["a", "slow"]
    assert_rebuilt(result, sink)


async def test_step_that_runs_again_counts_once() -> None:
    """A process is killed after a stage has recorded its report, and before that is stored."""

    def buy(item: str) -> str:
        """Buy something."""
        return f"bought: {interrupt({'buy': item})}"

    sink = MemorySink()
    work = [worker("a", call("buy", item="x"), "a is done", tools=[buy]), worker("b")]
    flow = flow_of(plan("a", "b"), "ok", verdict(), work=work, guards=audited(sink))
    [question] = (await flow.ainvoke("go", thread_id="t")).interrupts
    result = await flow.aresume("t", {question.id: "yes"})
    first = next(record for record in records_of(sink) if record.data.get("worker") == "b")
    assert [r.worker for r in result.stages if r.worker] == ["b", "a"]
    again = [r for r in records_of(sink) if r.data.get("worker") == "b" and "key" in r.data]
    lost = replace(again[0], seq=first.seq, data={**again[0].data, "reports": {"0": "stale"}})
    rebuilt = FlowResult.from_records([lost, *records_of(sink)])
    assert rebuilt == replace(result, interrupts=())


async def test_flow_in_another_one_is_a_run_of_its_own() -> None:
    sink = MemorySink()
    inner: Flow[Any] = Flow("inner", "works", work=[worker("c")])
    outer: Flow[Any] = Flow("outer", work=[inner], guards=audited(sink))
    result = await outer.ainvoke("go")
    assert result.text == "c is done"
    assert_rebuilt(result, sink)


def test_records_without_a_flow_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no run of a flow"):
        FlowResult.from_records([Record("input", run="r")])


# Texts.


async def test_without_payloads_no_text_is_in_the_records_of_stages() -> None:
    sink = MemorySink()
    flow = flow_of(
        plan("a", inputs={"x": SECRET}), f"ok {SECRET}", verdict(False, 0.9, SECRET),
        plan("a"), f"ok {SECRET}", verdict(), work=[worker("a", SECRET, SECRET)],
        guards=guarded(sink=sink),
    )  # fmt: skip
    result = await flow.ainvoke(SECRET)
    assert (result.status, result.text) == ("finished", f"ok {SECRET}")
    records = [record for record in records_of(sink) if record.kind == "stage"]
    assert records
    assert SECRET not in str(records)
    rebuilt = FlowResult.from_records(records_of(sink))
    shown = [(r.stage, r.worker, r.attempt, r.passed, r.usage) for r in result.stages]
    told = [(r.stage, r.worker, r.attempt, r.usage) for r in rebuilt.stages]
    assert told == [(stage, name, attempt, usage) for stage, name, attempt, _, usage in shown]
    assert [r.passed for r in rebuilt.stages] == [passed for *_, passed, _ in shown]


def test_faults_of_an_audit_trail_are_told() -> None:
    with pytest.raises(ConfigurationError, match="payloads='yes'"):
        AuditTrail(payloads="yes")  # type: ignore[arg-type]
    assert repr(AuditTrail(payloads=True)) == "AuditTrail(MemorySink, payloads=True)"


# The oracle's later answer.


async def test_oracle_answers_later_and_the_last_answer_counts(file_sink: Any) -> None:
    flow = flow_of(plan("a"), "ok", verdict(), guards=audited(file_sink))
    result = await flow.ainvoke("go", thread_id="t")
    assert result.success is None
    flow.judged(result.thread_id, True)
    other_process = flow_of(guards=audited(type(file_sink)(file_sink._path)))
    other_process.judged(result.thread_id, False)
    records = records_of(file_sink)
    assert FlowResult.from_records(records) == replace(result, success=False)
    assert len({record.seq for record in records}) == len(records)
    assert other_process.guards.audit.trail(records[0].run).end == "finished"  # type: ignore[union-attr]


async def test_oracle_judges_the_last_run_of_the_thread() -> None:
    sink = MemorySink()
    turns = [plan("a"), "one", verdict(), plan("a"), "two", verdict()]
    flow = flow_of(*turns, guards=audited(sink))
    for task in ("first", "second"):
        await flow.ainvoke(task, thread_id="t")
    flow.judged("t", True)
    successes = [FlowResult.from_records(sink.read(run)).success for run in sink.runs()]
    assert successes == [None, True]


async def test_what_cannot_be_judged_is_refused() -> None:
    flow = flow_of(plan("a"), "ok", verdict())
    with pytest.raises(RoutingError, match="no end of the flow 'report'") as error:
        flow.judged("t", True)
    assert error.value.code == "not_ended"
    without_guards: Flow[Any] = Flow("f", work=[worker("a")], guards=None)
    with pytest.raises(ConfigurationError, match="no audit trail"):
        without_guards.judged("t", True)


async def test_flow_that_a_hub_serves_is_in_the_audit_too() -> None:
    sink = MemorySink()
    flow: Flow[Any] = Flow("alone", work=[worker("a")], guards=audited(sink))
    async with await Hub.open(serve=[flow]) as hub:
        answer = await (await hub.session("alone", id="s")).ask("go")
    result = FlowResult.from_records(records_of(sink))
    assert (result.status, result.text) == ("finished", answer.text)
    assert [r.worker for r in result.stages if r.worker] == ["a"]


async def test_flow_below_an_agent_is_in_the_audit_too() -> None:
    sink = MemorySink()
    flow: Flow[Any] = Flow("small", work=[worker("a")])
    turns: Any = [call("small", request="go"), "done"]
    boss = Agent("boss", model=ScriptedModel(turns), tools=[flow.as_tool()], guards=audited(sink))
    await boss.ainvoke("go")
    result = FlowResult.from_records(records_of(sink))
    assert (result.status, result.text) == ("finished", "a is done")
