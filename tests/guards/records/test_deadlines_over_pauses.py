"""Time limits of runs that wait for a human, are killed or taken over: whose time is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.graphs.public_graph import run_whole
from agentgraph.guards import CostBudget, Deadlines, Escalation, Gate, Subject
from agentgraph.sessions import Hub, MemoryLog
from agentgraph.testing import Fault, call
from agentgraph.testing.answers import Scripted
from tests.guards.metered_models import Driven, asked, look, worker
from tests.guards.records.test_account_in_a_new_process import another_process
from tests.guards.timed_agents import FOREVER_S, guards, hangs, line
from tests.sessions.talk import after, held, until

HOUR_S = 3_600


@pytest.fixture
def time() -> Iterator[Driven]:
    with Driven().installed() as clock:
        yield clock


def may_i() -> str:
    """Ask a human."""
    return str(interrupt("may I?"))


def asking(kind: str, saver: InMemorySaver, last: Scripted, *, is_resumed: bool = False) -> Agent:
    """Return an agent that works for 40 s, asks a human, and then says its last.

    Another process that goes on with it has a model of its own, which is asked for the last alone.
    """
    limits: Any = {"deadlines": Deadlines(None, None, 100), "backoff": None}
    policy = Guards.interactive(**limits)
    turns: list[Scripted] = [Fault.delay(40, call("may_i")), last]
    if kind == "gate":
        gate = Gate(invariants=[is_final])
        policy = Guards.regulated(
            velocity=None, budget=CostBudget(tokens=10**6), gates=gate, **limits
        )
        turns = [Fault.delay(40, [call("look"), call("look")]), "a draft", last]
    turns = turns[-1:] if is_resumed else turns
    low = worker("low", turns, tools=[may_i, look], guards=policy)
    if kind != "nested":
        return low.replace(checkpointer=saver)
    asks = [] if is_resumed else [call("transfer_to_low")]
    return worker("top", asks, agents=[low], guards=policy, checkpointer=saver)


def is_final(subject: Subject) -> str | None:
    return "it is a draft" if "draft" in subject.text else None


ASKING = ("tool", "nested", "gate")


@pytest.mark.parametrize("kind", ASKING)
@pytest.mark.parametrize("is_fresh", [True, False])
async def test_the_time_in_which_a_human_decides_is_none_of_the_runs(
    time: Driven, kind: str, is_fresh: bool
) -> None:
    saver = InMemorySaver()
    agent = asking(kind, saver, "final")
    reply = await time.drive(agent.ainvoke("go", thread_id="t"))
    [question] = reply.interrupts
    time.advance(2 * HOUR_S)
    if is_fresh:
        agent = asking(kind, another_process(saver), "final", is_resumed=True)
    ended = await time.drive(agent.aresume("t", {question.id: "approve"}))
    assert ended.close_reason is None
    assert ended.text == "final"  # what the gate has blocked is written once more


@pytest.mark.parametrize("kind", ["tool", "nested"])
async def test_what_was_left_before_a_human_decided_is_what_is_left_after(
    time: Driven, kind: str
) -> None:
    saver = InMemorySaver()
    reply = await time.drive(asking(kind, saver, hangs()).ainvoke("go", thread_id="t"))
    [question] = reply.interrupts
    time.advance(HOUR_S)
    agent = asking(kind, another_process(saver), hangs(), is_resumed=True)
    ended, seconds = await time.lasting(agent.aresume("t", {question.id: "yes"}))
    assert (ended.close_reason, seconds) == ("deadline:workflow", 60)


async def test_what_a_human_takes_to_judge_an_answer_is_left_out_once(time: Driven) -> None:
    policy = Guards.regulated(
        velocity=None,
        budget=CostBudget(tokens=10**6),
        deadlines=Deadlines(None, None, 100),
        backoff=None,
        stages={"low": Guards(escalation=Escalation(0.9, lambda subject: 0.1))},
    )
    below = worker("low", [Fault.delay(40, "a draft")])
    turns: list[Scripted] = [call("transfer_to_low"), hangs()]
    boss = worker("boss", turns, agents=[below], handoff="delegate", guards=policy)
    reply = await time.drive(boss.ainvoke("go", thread_id="t"))
    time.advance(HOUR_S)
    [question] = reply.interrupts
    reply, seconds = await time.lasting(boss.aresume("t", {question.id: "approve"}))
    [late] = reply.interrupts
    assert isinstance(late.payload, dict)
    assert (late.payload["guard"], seconds) == ("deadline", 60)


async def test_each_human_who_is_asked_has_their_own_time(time: Driven) -> None:
    turns = [Fault.delay(30, call("may_i")), Fault.delay(30, call("may_i")), hangs()]
    policy = guards(workflow_s=100)
    agent = worker("a", turns, tools=[may_i], guards=policy, checkpointer=InMemorySaver())
    reply = await time.drive(agent.ainvoke("go", thread_id="t"))
    for _ in range(2):
        time.advance(HOUR_S)
        [question] = reply.interrupts
        reply, seconds = await time.lasting(agent.aresume("t", {question.id: "yes"}))
    assert (reply.close_reason, seconds) == ("deadline:workflow", 40)


@pytest.mark.parametrize(("dead_s", "reason"), [(30, None), (70, "deadline:workflow")])
async def test_a_dead_process_has_its_time_counted(
    time: Driven, dead_s: float, reason: str | None
) -> None:
    saver = InMemorySaver()
    fields: Any = {"tools": [look], "guards": guards(workflow_s=100), "checkpointer": saver}
    turns = [Fault.delay(40, call("look")), hangs()]
    running = asyncio.ensure_future(
        worker("a", turns, durability="sync", **fields).ainvoke("go", thread_id="t")
    )
    await time.asleep()
    time.advance(40)
    await time.asleep()
    running.cancel()
    await asyncio.wait({running})
    time.advance(dead_s)
    # Another process goes on where that one has left off.
    config: Any = {"configurable": {"thread_id": "t"}}
    result = await run_whole(worker("a", ["Done."], **fields).graph, None, config)
    assert result["turn"].get("closed") == reason


async def test_where_stakes_are_high_a_human_may_give_a_late_run_more_time(time: Driven) -> None:
    policy = Guards.regulated(
        velocity=None,
        budget=CostBudget(tokens=10**6),
        deadlines=Deadlines(None, None, 100),
        backoff=None,
    )
    turns = [Fault.delay(FOREVER_S, "late"), Fault.delay(90, "In time.")]
    agent = worker("a", turns, guards=policy)
    reply, seconds = await time.lasting(agent.ainvoke("go", thread_id="t"))
    [question] = reply.interrupts
    assert isinstance(question.payload, dict)
    assert (question.payload["guard"], seconds) == ("deadline", 100)
    assert question.payload["evidence"]["layer"] == "workflow"
    time.advance(HOUR_S)
    ended, seconds = await time.lasting(agent.aresume("t", {question.id: "approve"}))
    assert (ended.text, ended.close_reason, seconds) == ("In time.", None, 90)


async def test_a_human_who_ends_a_late_run_is_told_by_its_layer(time: Driven) -> None:
    policy = Guards.regulated(
        velocity=None,
        budget=CostBudget(tokens=10**6),
        deadlines=Deadlines(None, None, 100),
        backoff=None,
    )
    agent = worker("a", [hangs()], guards=policy)
    reply = await time.drive(agent.ainvoke("go", thread_id="t"))
    ended = await agent.aresume("t", {reply.interrupts[0].id: "reject"})
    assert ended.close_reason == "deadline:workflow"


async def test_a_session_that_is_taken_over_has_no_more_time(time: Driven) -> None:
    team = line(*(Fault.delay(40, f"part {n}") for n in range(3)), guards=guards(workflow_s=100))
    speakers = [one for one in team.agents if isinstance(one, Agent)]
    log = MemoryLog()

    async def opened() -> Hub:
        hub = Hub(log, InMemorySaver(), [team], 30.0)
        await hub.start(time)
        return hub

    async with await opened() as hub:
        session = await hub.session(team, id="s", ttl=None)
        await session.send("user", "go")
        await until(lambda: asked(*speakers) == 1)
        await time.settled()
        time.advance(40)
        await until(lambda: asked(*speakers) == 2)
    time.advance(30)
    async with await opened() as hub:
        state = await time.drive((await hub.get("s")).settled())
    assert (state.turn_count, state.pending_close_reason) == (1, "deadline:workflow")
    assert time.monotonic() == 100


async def test_a_session_that_waits_for_a_human_has_its_time_suspended(time: Driven) -> None:
    turns = [Fault.delay(40, call("may_i")), Fault.delay(50, "Done.")]
    speaker = worker("s", turns, tools=[may_i])
    team = Team([speaker], sequence(["s"]), guards=guards(workflow_s=100), expectations=())
    async with held(team, clock=time, ttl=None) as session:
        state = await time.drive(after(session, "user", "go"))
        [question] = state.interrupts
        time.advance(HOUR_S)
        await session.decide(question, "yes")
        state = await time.drive(session.settled())
        assert state.pending_close_reason == "sequence_complete"
