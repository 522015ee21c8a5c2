"""Flows whose caller gives up: a cancelled `ainvoke`, and a stream that is left early."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import effect
from agentgraph.flow import Brief, Flow, Verdict
from agentgraph.guards import MemorySink
from agentgraph.stream import StageEvent
from agentgraph.testing import call
from tests.flow.planned_work import guarded, lead, plan, requests, verdict, worker
from tests.guards.guarded_agents import recorded


class Hanging:
    """Something that hangs until it may end, and notes how it did."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.ends: list[str] = []

    async def wait(self) -> None:
        """Wait until it may end."""
        self.has_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        self.ends.append("done")

    async def plan(self, task: str) -> Any:
        """Plan."""
        await self.wait()
        return {"briefs": [{"worker": "a", "task": task}]}

    async def work(self, brief: Brief) -> str:
        """Work."""
        await self.wait()
        return "late"

    async def judge(self, aggregate: object) -> Verdict:
        """Judge."""
        await self.wait()
        return Verdict(accepted=True)


async def cancelled(flow: Flow[Any], when: asyncio.Event) -> None:
    """Run a flow on the thread t, and cancel it once something has happened."""
    running = asyncio.ensure_future(flow.ainvoke("go", thread_id="t"))
    await when.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("part", ["plan", "validate", "aggregate"])
async def test_cancelled_flow_goes_on_with_the_stage_it_was_in(part: str) -> None:
    hanging, a, sink = Hanging(), worker("a"), MemorySink()
    parts: Any = {"plan": hanging.plan, "validate": hanging.judge, "aggregate": hanging.work}
    fields: Any = {part: parts[part]}
    flow: Flow[Any] = Flow("f", work=[a], guards=guarded(sink=sink), **fields)
    await cancelled(flow, hanging.has_begun)
    assert hanging.ends == ["cancelled"]
    assert (await flow.aresult("t")).status == "waiting"
    assert [record.data["reason"] for record in recorded(sink, "end")] == ["cancelled"]
    hanging.may_end.set()
    assert (await flow.acontinue("t")).status == "finished"
    assert hanging.ends == ["cancelled", "done"]
    assert len(requests(a)) == 1


async def left_once_finished(flow: Flow[Any], worker: str) -> None:
    """Read what a flow does on the thread t until a worker has finished, and leave then."""
    async with aclosing(flow.astream("go", thread_id="t")) as events:
        async for event in events:
            if isinstance(event, StageEvent) and (event.worker, event.status) == (
                worker,
                "finished",
            ):
                break


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_cancelled_flow_is_stored_under_each_durability(durability: Any) -> None:
    hanging, a = Hanging(), worker("a")
    flow: Flow[Any] = Flow("f", work=[a, hanging.work], topology="sop", durability=durability,
                           guards=guarded())  # fmt: skip
    await cancelled(flow, hanging.has_begun)
    hanging.may_end.set()
    assert (await flow.acontinue("t")).text == "a is done\n\nlate"
    assert len(requests(a)) == 1


async def test_flow_whose_stream_is_left_is_cut_off_and_its_finished_work_is_kept() -> None:
    hanging, a = Hanging(), worker("a")
    flow: Flow[Any] = Flow("f", work=[a, hanging.work], guards=guarded())
    await left_once_finished(flow, "a")
    assert hanging.ends in (["cancelled"], [])  # it may not have begun
    hanging.may_end.set()
    result = await flow.acontinue("t")
    assert (result.status, result.text) == ("finished", "a is done\n\nlate")
    assert len(requests(a)) == 1


async def test_thread_of_a_flow_that_was_left_takes_a_new_task() -> None:
    hanging, a = Hanging(), worker("a")
    flow: Flow[Any] = Flow("f", work=[a, hanging.work], guards=guarded())
    await left_once_finished(flow, "a")
    hanging.may_end.set()
    result = await flow.ainvoke("another", thread_id="t")
    assert (result.status, result.text) == ("finished", "a is done\n\nlate")
    texts = [message.text for message in await flow.ahistory("t")]
    assert texts[0] == "go" and "was cut off" in texts[1] and texts[2:] == ["another", result.text]


async def test_agent_that_is_cancelled_beside_a_finished_one_works_alone_once_more() -> None:
    hanging = Hanging()

    async def look_up(what: str) -> str:
        """Look up."""
        await hanging.wait()
        return what

    a, b = worker("a"), worker("b", call("look_up", what="it"), "b is done", tools=[look_up])
    flow: Flow[Any] = Flow(
        "f", supervisor=lead(plan("a", "b"), "ok", verdict()), work=[a, b], guards=guarded(),
        checkpointer=InMemorySaver(),
    )  # fmt: skip
    await cancelled(flow, hanging.has_begun)
    hanging.may_end.set()
    result = await flow.acontinue("t")
    assert (result.status, result.text) == ("finished", "ok")
    assert hanging.ends == ["cancelled", "done"]
    assert (len(requests(a)), len(requests(b))) == (1, 2)


async def test_undoing_that_is_cancelled_is_done_before_a_new_task() -> None:
    hanging, undone = Hanging(), list[str]()

    async def free(seat: str) -> None:
        await hanging.wait()
        undone.append(seat)

    @effect(compensate=free)
    def book(seat: str) -> str:
        """Book a seat."""
        return f"booked {seat}"

    def judge(aggregate: object) -> Verdict:
        return Verdict(accepted=hanging.may_end.is_set())

    a = worker("a", call("book", seat="1A"), "a is done", "done again", tools=[book])
    flow: Flow[Any] = Flow("f", work=[a], validate=judge, guards=guarded(replans=0))
    await cancelled(flow, hanging.has_begun)
    hanging.may_end.set()
    result = await flow.ainvoke("another", thread_id="t")
    assert (result.status, result.text) == ("finished", "done again")
    assert undone == ["1A"]


def test_stream_that_is_left_ends_the_run_in_a_script_too() -> None:
    ends: list[str] = []

    async def work(brief: Brief) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("over")
        return "never"

    flow: Flow[Any] = Flow("f", work=[work], guards=guarded())
    events: Any = flow.stream("go")
    for event in events:
        if isinstance(event, StageEvent) and event.worker:
            break
    events.close()
    assert ends == ["over"]
