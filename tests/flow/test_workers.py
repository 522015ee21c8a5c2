"""The workers of a flow: functions of all kinds, what they answer, and how they fail."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.flow import Brief, Flow, Stage, Summary
from agentgraph.guards import Deadlines, Gate, Tier
from agentgraph.stream import StageEvent
from agentgraph.testing import FakeClock, Fault, call
from tests.flow.planned_work import flow_of, guarded, plan, verdict, worker


class Counter:
    """A worker that is an object, which can be called."""

    async def __call__(self, brief: Brief) -> str:
        return "three"

    def add(self, brief: Brief) -> str:
        return "four"


def search(brief: Brief, shown: Any = (), *, depth: int = 1) -> str:
    return f"depth {depth}"


def flow_on(work: Any, tier: Tier = "interactive", **fields: Any) -> Flow[Any]:
    return Flow("f", work=[work], guards=guarded(tier, **fields))


async def played_past_deadline(flow: Flow[Any]) -> list[StageEvent]:
    """Run a flow, and move the clock on once its worker b has finished; return its stage events."""
    events: list[StageEvent] = []
    with FakeClock().installed() as clock:
        is_done = asyncio.Event()

        async def read() -> None:
            async for event in flow.astream("go", thread_id="t"):
                if isinstance(event, StageEvent):
                    events.append(event)
                    if (event.worker, event.status) == ("b", "finished"):
                        is_done.set()

        reading = asyncio.ensure_future(read())
        await is_done.wait()
        clock.advance(200)
        await reading
    return events


def told_of(worker: str, events: list[StageEvent]) -> StageEvent:
    """Return the last event of a worker."""
    return [event for event in events if event.worker == worker][-1]


@pytest.mark.parametrize(
    ("work", "name", "text"),
    [
        (search, "search", "depth 1"),
        (partial(search, depth=3), "search", "depth 3"),
        (partial(partial(search), depth=2), "search", "depth 2"),
        (Counter(), "Counter", "three"),
        (Counter().add, "add", "four"),
    ],
)
async def test_anything_that_can_be_called_is_a_worker_under_its_own_name(
    work: Any, name: str, text: str
) -> None:
    flow = flow_on(work)
    assert [*flow.workers] == [name]
    assert (await flow.ainvoke("go")).text == text


def test_worker_without_a_legal_name_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"'<lambda>'.*a function one by def"):
        flow_on(lambda brief: "x")
    with pytest.raises(ConfigurationError, match="'validate_gate', as a node of every flow is"):
        flow_on(worker("validate_gate"))


@pytest.mark.parametrize("nothing", [None, "", " \n", Summary(worker="x", text="")])
async def test_worker_that_answers_nothing_has_failed(nothing: Any) -> None:
    def answer(brief: Brief) -> Any:
        return nothing

    result = await flow_on(answer, replans=0).ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "schema_failure")
    assert "answer has answered nothing" in result.text


async def test_worker_may_answer_with_artifacts_alone() -> None:
    def answer(brief: Brief) -> Any:
        return {"sources": ["a", "b"]}

    result = await flow_on(answer).ainvoke("go")
    [output] = [report.output for report in result.stages if report.worker]
    assert output["artifacts"] == {"sources": ["a", "b"]}


async def test_functions_that_block_work_at_the_same_time() -> None:
    both_at_work = threading.Barrier(2, timeout=20)

    def first(brief: Brief) -> str:
        both_at_work.wait()
        return "one"

    def second(brief: Brief) -> str:
        both_at_work.wait()
        return "two"

    flow: Flow[Any] = Flow("f", work=[first, second], guards=guarded())
    assert (await flow.ainvoke("go")).text == "one\n\ntwo"


HUNG = Deadlines(step_s=5_000, stage_s=100, workflow_s=10_000)


@pytest.mark.parametrize("blocks", [False, True])
async def test_worker_that_hangs_past_its_stages_deadline_is_cut_off_alone(blocks: bool) -> None:
    is_over = threading.Event()

    def block(brief: Brief) -> str:
        is_over.wait(20)
        return "late"

    async def hang(brief: Brief) -> str:
        await asyncio.Event().wait()
        return "never"

    a: Any = block if blocks else hang
    flow: Flow[Any] = Flow("f", work=[a, worker("b")], guards=guarded(deadlines=HUNG))
    try:
        events = await played_past_deadline(flow)
    finally:
        is_over.set()
    told = told_of(a.__name__, events)
    assert told.status == "failed" and told.verdict is not None
    assert told.verdict["mast"] == "inter_agent"
    assert "by the deadline of the stage" in str(told.verdict["problems"])
    assert [e.status for e in events if e.stage == "fan_in"] == ["started", "failed", "aborted"]


async def test_agent_that_hangs_past_its_stages_deadline_is_cut_off_alone() -> None:
    a = worker("a", *[Fault.delay(1_000, "late")] * 9)
    flow = flow_of(
        plan("a", "b"), "ok", verdict(), work=[a, worker("b")], guards=guarded(deadlines=HUNG)
    )
    events = await played_past_deadline(flow)
    assert told_of("a", events).status == "failed"
    assert [e.status for e in events if e.stage == "fan_in"] == ["started", "failed", "aborted"]


async def test_cause_of_an_inner_flows_end_is_told_as_it_was() -> None:
    stages = {"validate": Stage(after=Gate(policy=lambda subject: "that is secret..."))}
    inner: Flow[Any] = Flow("inner", work=[worker("a")], stages=stages, guards=guarded())
    result = await inner.ainvoke("go")
    flow: Flow[Any] = Flow("outer", work=[inner], guards=guarded())
    told = [e async for e in flow.astream("go") if isinstance(e, StageEvent)]
    verdict: Any = told_of("inner", told).verdict
    [problem] = verdict["problems"]
    assert problem.endswith("that is secret...") and "The run was ended" not in problem
    assert result.text.startswith("The run was ended by the guard gate: ")


@pytest.mark.parametrize("tier", ["interactive", "batch", "regulated"])
async def test_unsafe_answer_of_a_worker_is_no_reason_for_a_new_plan(tier: Tier) -> None:
    gates = Gate(policy=lambda subject: "poison" not in subject.text)
    work = [worker("a", *["poison"] * 20), worker("b")]
    flow = flow_of(*[plan("a", "b"), "ok", verdict()] * 3, work=work,
                   guards=guarded(tier, gates=gates))  # fmt: skip
    result = await flow.ainvoke("go", thread_id="t")
    assert result.replans == 0
    if tier == "regulated":
        assert result.interrupts[0].payload["failure_class"] == "unsafe_output"
    else:
        assert (result.status, result.failure_class) == ("aborted", "unsafe_output")


async def test_failure_of_a_worker_is_told_with_its_category() -> None:
    def broken(brief: Brief) -> str:
        raise RuntimeError("broken")

    events = [event async for event in flow_on(broken, replans=0).astream("go")]
    [told] = [e for e in events if isinstance(e, StageEvent) and e.worker and e.status == "failed"]
    assert told.verdict is not None and told.verdict["mast"] == "verification"


async def test_usage_of_a_worker_that_fails_is_counted() -> None:
    def look(what: str) -> str:
        """Look."""
        return f"{what} seen"

    a = worker("a", call("look", what="it"), RuntimeError("broken"), tools=[look])
    flow = flow_of(plan("a"), work=[a], guards=guarded("interactive", replans=0))
    result = await flow.ainvoke("go")
    assert result.status == "aborted"
    [spent] = [report.usage.total_tokens for report in result.stages if report.worker]
    assert spent > 0
    assert result.usage.by_agent["report/fan_out/a"].total_tokens == spent
