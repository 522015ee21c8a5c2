"""`Deadlines(tool_s=…)`: a call of a tool that takes too long is answered, and the run goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from agentgraph import Agent, Guards, effect, patched
from agentgraph.clock import clock as current_clock
from agentgraph.guards import AuditTrail, Deadlines, MemorySink
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import answers, audited, is_legal, recorded, solo
from tests.guards.metered_models import Driven
from tests.guards.timed_agents import FOREVER_S

CUT_OFF = "`hang` was cut off after 5 s by the deadline of the tool"


@pytest.fixture
def time() -> Iterator[Driven]:
    with Driven().installed() as clock:
        yield clock


def limited(tool_s: float | None = 5, **fields: Any) -> Guards:
    return Guards(deadlines=Deadlines(tool_s=tool_s), **fields)


async def hang() -> str:
    """Hang."""
    await current_clock().sleep(FOREVER_S)
    return "late"


async def quick() -> str:
    """Answer."""
    return "quick"


async def test_a_tool_that_hangs_is_cut_off_and_the_model_goes_on(time: Driven) -> None:
    sink = MemorySink()
    model = ScriptedModel([call("hang"), "Without it."])
    agent = solo(model, hang, guards=limited(audit=AuditTrail(sink)))
    reply, seconds = await time.lasting(agent.ainvoke("go"))

    assert (reply.text, reply.close_reason, seconds) == ("Without it.", None, 5)
    assert answers(reply.messages) == [f"Error: {CUT_OFF}. What it has done so far is not known."]
    assert is_legal(reply.messages)
    assert audited(sink) == [("a", "deadline", "deny")]
    assert recorded(sink, "decision")[0].decision["evidence"]["layer"] == "tool"  # type: ignore[index]


async def test_calls_beside_it_keep_their_answers(time: Driven) -> None:
    both = [call("quick"), call("hang")]
    agent = solo(ScriptedModel([both, "Done."]), hang, quick, guards=limited())
    reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.text, seconds) == ("Done.", 5)
    assert sorted(text[:9] for text in answers(reply.messages)) == ["Error: `h", "quick"]


async def test_a_tool_that_swallows_its_cancellation_is_left_behind(time: Driven) -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        """Hang."""
        try:
            await current_clock().sleep(FOREVER_S)
        except asyncio.CancelledError:
            await release.wait()
        ended.set()
        return "late"

    model = ScriptedModel([call("hang"), "Without it.", "Hi."])
    agent = solo(model, hang, guards=limited())
    reply = await time.drive(agent.ainvoke("go", thread_id="t"))
    assert reply.text == "Without it." and not ended.is_set()

    release.set()
    await ended.wait()
    await agent.ainvoke("and now?", thread_id="t")
    assert all("late" not in text for text in answers(await agent.ahistory("t")))


async def test_a_sync_tool_is_left_behind_in_its_thread() -> None:
    release = threading.Event()

    def hang() -> str:
        """Hang."""
        release.wait(30)
        return "late"

    agent = solo(ScriptedModel([call("hang"), "Without it."]), hang, guards=limited(0.05))
    try:
        reply = await agent.ainvoke("go")
    finally:
        release.set()
    assert reply.text == "Without it."
    assert "cut off after 0.05 s" in answers(reply.messages)[0]


async def test_the_deadline_of_the_input_comes_first(time: Driven) -> None:
    agent = solo(
        ScriptedModel([call("hang"), "Done."]),
        hang,
        guards=Guards(deadlines=Deadlines(workflow_s=3, tool_s=5)),
    )
    reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.close_reason, seconds) == ("deadline:workflow", 3)


async def test_a_tool_below_has_the_shorter_limit_of_two(time: Driven) -> None:
    below = Agent("below", model=ScriptedModel([call("hang"), "Late."]), tools=[hang])
    below = below.replace(guards=limited(100))
    says = ScriptedModel([call("transfer_to_below")])
    top = Agent("top", model=says, agents=[below], guards=limited(5))
    reply, seconds = await time.lasting(top.ainvoke("go"))
    assert (reply.text, seconds) == ("Late.", 5)


async def test_an_action_that_was_cut_off_counts_as_begun_and_is_undone(time: Driven) -> None:
    undone: list[str] = []

    async def unpay() -> str:
        undone.append("paid back")
        return "paid back"

    @effect(compensate=unpay)
    async def pay() -> str:
        """Pay."""
        await current_clock().sleep(FOREVER_S)
        return "paid"

    turns = [call("pay"), *(call("missing") for _ in range(9))]
    agent = solo(ScriptedModel(turns), pay, guards=limited(steps=3))
    reply = await time.drive(agent.ainvoke("go"))
    assert reply.close_reason == "max_steps"
    assert undone == ["paid back"]


async def test_a_foreign_graph_has_the_limit_too(time: Driven) -> None:
    sink = MemorySink()
    model = ScriptedModel([call("hang"), "Without it."])
    graph = patched(create_agent(model, [hang]), limited(audit=AuditTrail(sink)))
    result: Any = await time.drive(graph.ainvoke({"messages": [HumanMessage("go")]}))
    assert result["messages"][-1].text == "Without it."
    assert CUT_OFF in answers(result["messages"])[0]
    assert [told[1:] for told in audited(sink)] == [("deadline", "deny")]


async def test_without_a_limit_a_tool_has_the_time_of_its_input(time: Driven) -> None:
    agent = solo(ScriptedModel([call("hang"), "Done."]), hang)
    reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.close_reason, seconds) == ("deadline:workflow", 600)


async def test_a_run_that_is_cancelled_waits_until_its_tool_has_cleaned_up(time: Driven) -> None:
    begun, log = asyncio.Event(), []

    async def hang() -> str:
        """Hang."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await current_clock().sleep(0)
            log.append("clean")
        return ""

    agent = solo(ScriptedModel([call("hang")]), hang, guards=limited())
    task = asyncio.ensure_future(agent.ainvoke("go"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["clean"]


def test_the_three_deadlines_are_given_in_their_order() -> None:
    limits = Deadlines(1, 2, 3)
    assert (limits.step_s, limits.stage_s, limits.workflow_s, limits.tool_s) == (1, 2, 3, None)
