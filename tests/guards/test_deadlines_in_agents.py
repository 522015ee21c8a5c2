"""Time limits in three layers: no retry, no resume and no sub-agent makes them any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.clock import clock as current_clock
from agentgraph.errors import ModelError
from agentgraph.guards import Backoff, CostBudget, Deadlines, Escalation, Gate, Subject
from agentgraph.participant import Participant
from agentgraph.sessions import EV_ROUND_FAILED, Hub, MemoryLog
from agentgraph.testing import Fault, call
from agentgraph.testing.turns import Scripted
from tests.guards.spending import Driven, actions, asked, told, worker
from tests.sessions.talk import after, held, of_type, until

FOREVER_S = 1e6
HOUR_S = 3_600


@pytest.fixture
def time() -> Iterator[Driven]:
    with Driven().installed() as clock:
        yield clock


def hangs(turn: Scripted = "late") -> Fault:
    return Fault.delay(FOREVER_S, turn)


def guards(
    step_s: float | None = None,
    stage_s: float | None = None,
    workflow_s: float | None = None,
    **fields: Any,
) -> Guards:
    fields = {"backoff": Backoff(base_s=0), **fields}
    return Guards.interactive(deadlines=Deadlines(step_s, stage_s, workflow_s), **fields)


def below_one(kind: str, below: Participant, policy: Guards) -> Agent:
    """Return a supervisor who hands over to somebody, or asks them, and has the last word."""
    if kind == "tool":
        assert isinstance(below, Agent)
        asks: Any = call(below.name, request="go")
        return worker("boss", [asks, "Done."], agents=[below.as_tool()], guards=policy)
    asks = call(f"transfer_to_{below.name}")
    return worker("boss", [asks, "Done."], agents=[below], handoff=kind, guards=policy)


KINDS = ("sticky", "delegate", "tool")


async def test_a_model_that_hangs_is_cut_off_at_the_deadline_of_its_step(time: Driven) -> None:
    agent = worker("a", [hangs()], guards=guards(step_s=60, backoff=Backoff(attempts=1)))
    began = time.monotonic()
    with pytest.raises(ModelError, match="cut off after 60 s by the deadline of the step"):
        await time.drive(agent.ainvoke("go"))
    assert time.monotonic() - began == 60
    assert asked(agent) == 1


async def test_each_try_has_the_time_of_a_step(time: Driven) -> None:
    agent = worker("a", [hangs(), hangs(), "At last."], guards=guards(step_s=60))
    reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.text, seconds, asked(agent)) == ("At last.", 120, 3)


async def test_retries_never_extend_the_deadline_of_the_whole(time: Driven) -> None:
    agent = worker("a", [hangs()] * 9, guards=guards(step_s=60, workflow_s=100))
    (end, decisions), seconds = await time.lasting(told(agent, "go"))
    assert (end.close_reason, seconds, asked(agent)) == ("deadline:workflow", 100, 2)
    assert decisions[-1]["evidence"]["layer"] == "workflow"
    assert actions(decisions) == [("deadline", "abort")]


@pytest.mark.parametrize("kind", KINDS)
async def test_retries_never_extend_the_deadline_of_a_stage(time: Driven, kind: str) -> None:
    below = worker("below", [hangs()] * 9)
    boss = below_one(kind, below, guards(step_s=60, stage_s=100, workflow_s=1_000))
    (end, decisions), seconds = await time.lasting(told(boss, "go"))
    assert (end.close_reason, seconds, asked(below)) == ("deadline:stage", 100, 2)
    assert decisions[-1]["evidence"]["layer"] == "stage"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_steps_of_a_stage_share_its_time(time: Driven, kind: str) -> None:
    turns = [Fault.delay(40, call("look", number=n)) for n in range(9)]
    below = worker("below", turns, tools=[look])
    boss = below_one(kind, below, guards(stage_s=100, workflow_s=1_000))
    (end, _), seconds = await time.lasting(told(boss, "go"))
    assert (end.close_reason, seconds, asked(below)) == ("deadline:stage", 100, 3)


def look(number: int = 0) -> str:
    """Look at something."""
    return f"seen {number}"


async def test_each_visit_of_a_stage_has_its_own_time(time: Driven) -> None:
    below = worker("below", [Fault.delay(80, "One."), Fault.delay(80, "Two.")])
    asks = [call("below", request="one"), call("below", request="two")]
    policy = guards(stage_s=100, workflow_s=1_000)
    boss = worker("boss", [*asks, "Both."], agents=[below.as_tool()], guards=policy)
    reply, seconds = await time.lasting(boss.ainvoke("go"))
    assert (reply.text, seconds) == ("Both.", 160)


async def test_a_stage_may_have_less_time_than_the_others(time: Driven) -> None:
    below = worker("below", [hangs()])
    stages = {"below": Guards(deadlines=Deadlines(None, 30, None))}
    boss = below_one("sticky", below, guards(stage_s=100, workflow_s=1_000, stages=stages))
    (end, _), seconds = await time.lasting(told(boss, "go"))
    assert (end.close_reason, seconds) == ("deadline:stage", 30)


@pytest.mark.parametrize("stage_s", [100, 500])
async def test_the_outer_layer_is_named_where_it_is_over_first(
    time: Driven, stage_s: float
) -> None:
    policy = guards(step_s=100, stage_s=stage_s, workflow_s=100)
    boss = below_one("sticky", worker("below", [hangs()]), policy)
    (end, _), seconds = await time.lasting(told(boss, "go"))
    assert (end.close_reason, seconds) == ("deadline:workflow", 100)


async def test_nothing_is_begun_with_less_time_than_is_of_use(time: Driven) -> None:
    agent = worker("a", [Fault.delay(99.5, call("look")), "never"], tools=[look])
    agent = agent.replace(guards=guards(workflow_s=100))
    (end, _), seconds = await time.lasting(told(agent, "go"))
    assert (end.close_reason, seconds, asked(agent)) == ("deadline:workflow", 99.5, 1)
    [answer] = [m for m in await agent.ahistory("t") if isinstance(m, ToolMessage)]
    assert str(answer.text).startswith("Not executed: the workflow has 0.5 s left")


@pytest.mark.parametrize("layer", ["stage", "workflow"])
async def test_a_tool_that_hangs_is_cut_off_with_its_layer(time: Driven, layer: str) -> None:
    async def wait() -> str:
        """Wait."""
        await current_clock().sleep(FOREVER_S)
        return "late"

    below = worker("below", [call("wait"), "never"], tools=[wait])
    policy = guards(stage_s=50 if layer == "stage" else 500, workflow_s=100)
    boss = below_one("sticky", below, policy)
    (end, _), seconds = await time.lasting(told(boss, "go"))
    assert (end.close_reason, asked(below)) == (f"deadline:{layer}", 1)
    assert seconds == (50 if layer == "stage" else 100)
    answers = [m for m in await boss.ahistory("t") if isinstance(m, ToolMessage)]
    assert f"by the deadline of the {layer}" in str(answers[-1].text)


async def test_a_critic_that_hangs_is_cut_off(time: Driven) -> None:
    async def doubtful(subject: Subject) -> float:
        await current_clock().sleep(FOREVER_S)
        return 1.0

    policy = guards(workflow_s=100, escalation=Escalation(0.5, doubtful))
    (end, _), seconds = await time.lasting(told(worker("a", ["So."], guards=policy), "go"))
    assert (end.close_reason, seconds) == ("deadline:workflow", 100)


@pytest.mark.parametrize("kind", ["sticky", "delegate"])
async def test_a_graph_of_others_is_held_to_the_time_of_its_stage(time: Driven, kind: str) -> None:
    async def wait(state: MessagesState) -> dict[str, Any]:
        await current_clock().sleep(FOREVER_S)
        return {}

    graph = StateGraph(MessagesState).add_node("wait", wait).add_edge(START, "wait")
    policy = guards(stage_s=100, workflow_s=1_000)
    boss = below_one(kind, graph.compile(name="theirs"), policy)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="after 100 s by the deadline of the stage"):
        await time.drive(boss.ainvoke("go"))


async def test_without_limits_everything_has_the_time_it_takes(time: Driven) -> None:
    agent = worker("a", [Fault.delay(10 * HOUR_S, "Late.")], guards=guards())
    reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.text, seconds) == ("Late.", 10 * HOUR_S)


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
        policy = Guards.regulated(budget=CostBudget(tokens=10**6), gates=gate, **limits)
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
        agent = asking(kind, saver, "final", is_resumed=True)
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
    agent = asking(kind, saver, hangs(), is_resumed=True)
    ended, seconds = await time.lasting(agent.aresume("t", {question.id: "yes"}))
    assert (ended.close_reason, seconds) == ("deadline:workflow", 60)


async def test_what_a_human_takes_to_judge_an_answer_is_left_out_once(time: Driven) -> None:
    policy = Guards.regulated(
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
    result = await worker("a", ["Done."], **fields).graph.ainvoke(None, config)
    assert result["turn"].get("closed") == reason


async def test_where_stakes_are_high_a_human_may_give_a_late_run_more_time(time: Driven) -> None:
    policy = Guards.regulated(
        budget=CostBudget(tokens=10**6), deadlines=Deadlines(None, None, 100), backoff=None
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
        budget=CostBudget(tokens=10**6), deadlines=Deadlines(None, None, 100), backoff=None
    )
    agent = worker("a", [hangs()], guards=policy)
    reply = await time.drive(agent.ainvoke("go", thread_id="t"))
    ended = await agent.aresume("t", {reply.interrupts[0].id: "reject"})
    assert ended.close_reason == "deadline:workflow"


def line(*turns: Scripted, **fields: Any) -> Team:
    """Return agents who speak one after the other."""
    speakers = [worker(f"s{n}", [turn] * 2) for n, turn in enumerate(turns)]
    names = [one.name for one in speakers]
    return Team(speakers, sequence(names), expectations=(), **fields)


async def test_the_rounds_of_an_input_share_the_time_of_the_whole(time: Driven) -> None:
    team = line(*(Fault.delay(40, f"part {n}") for n in range(4)), guards=guards(workflow_s=100))
    async with held(team, clock=time, ttl=None) as session:
        state, seconds = await time.lasting(after(session, "user", "go"))
    assert (state.pending_close_reason, seconds) == ("deadline:workflow", 100)
    assert state.turn_count == 2


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


async def test_a_turn_that_is_too_long_has_failed_and_the_stage_is_named(time: Driven) -> None:
    async with held(line(hangs(), guards=guards(stage_s=50)), clock=time, ttl=None) as session:
        state = await time.drive(after(session, "user", "go"))
        failed = await of_type(session, EV_ROUND_FAILED)
    assert state.pending_close_reason == "round_failed"
    assert {one.event_data["code"] for one in failed} == {"deadline"}
    assert {one.event_data["message"] for one in failed} == {
        "cut off after 50 s by the deadline of the stage"
    }


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
