"""Time limits in three layers: no retry, no resume and no sub-agent makes them any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph import Agent, Guards, patched
from agentgraph.clock import clock as current_clock
from agentgraph.errors import ModelError
from agentgraph.guards import Backoff, Deadlines, Escalation, Gate, Subject
from agentgraph.participant import Participant
from agentgraph.sessions import EV_ROUND_FAILED
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.guarded_agents import stopped_by
from tests.guards.metered_models import Driven, actions, asked, told, worker
from tests.guards.timed_agents import FOREVER_S, guards, hangs, line
from tests.sessions.talk import after, held, of_type

HOUR_S = 3_600


@pytest.fixture
def time() -> Iterator[Driven]:
    with Driven().installed() as clock:
        yield clock


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


async def test_the_time_of_the_whole_begins_with_the_input(time: Driven) -> None:
    def prompt(_: object) -> str:
        time.advance(60)
        return "You answer."

    agent = worker("a", ["Done."], guards=guards(workflow_s=100), system_prompt=prompt)
    assert (await agent.ainvoke("go", thread_id="t")).text == "Done."
    late = worker("a", ["Done."], guards=guards(workflow_s=50), system_prompt=prompt)
    reply = await late.ainvoke("go", thread_id="t")
    assert (reply.close_reason, asked(late)) == ("deadline:workflow", 0)


async def test_the_time_in_which_a_thread_is_busy_is_no_time_of_the_next_input(
    time: Driven,
) -> None:
    async def work() -> str:
        """Work."""
        await current_clock().sleep(60)
        return "worked"

    turns: list[Any] = [call("work"), "One.", call("work"), "Two.", call("work"), "Three."]
    agent = worker("a", turns, tools=[work], guards=guards(workflow_s=100))

    async def all_three() -> list[str]:
        told = [agent.ainvoke(text, thread_id="t") for text in ("one", "two", "three")]
        return [reply.text for reply in await asyncio.gather(*told)]

    assert await time.drive(all_three()) == ["One.", "Two.", "Three."]


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


@pytest.mark.parametrize("gate", ["input", "policy", "grounding"])
async def test_a_gate_that_hangs_is_cut_off_before_anything_passes(time: Driven, gate: Any) -> None:
    async def doubts(subject: Subject) -> bool:
        await current_clock().sleep(FOREVER_S)
        return True

    checks: Any = {gate: doubts}
    policy = guards(workflow_s=100, gates=Gate(**checks))
    agent = worker("a", [call("look"), "So."], tools=[look], guards=policy)
    (end, _), seconds = await time.lasting(told(agent, "go"))
    assert (end.close_reason, seconds) == ("deadline:workflow", 100)
    assert asked(agent) == {"input": 0, "policy": 1, "grounding": 2}[gate]
    texts = [str(m.text) for m in await agent.ahistory("t") if isinstance(m, ToolMessage)]
    assert all(text.startswith("Not executed: ") for text in texts) or gate == "grounding"


@pytest.mark.parametrize("gate", ["input", "grounding"])
async def test_a_gate_that_hangs_in_a_graph_of_others_is_cut_off(time: Driven, gate: Any) -> None:
    async def doubts(subject: Subject) -> bool:
        await current_clock().sleep(FOREVER_S)
        return True

    checks: Any = {gate: doubts}
    graph: Any = create_agent(ScriptedModel(["So."]), [])
    safe = patched(graph, guards(workflow_s=100, gates=Gate(**checks)))
    said, seconds = await time.lasting(safe.ainvoke({"messages": [("user", "go")]}))
    assert (seconds, stopped_by(said)) == (100, "deadline:workflow")


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


async def test_the_rounds_of_an_input_share_the_time_of_the_whole(time: Driven) -> None:
    team = line(*(Fault.delay(40, f"part {n}") for n in range(4)), guards=guards(workflow_s=100))
    async with held(team, clock=time, ttl=None) as session:
        state, seconds = await time.lasting(after(session, "user", "go"))
    assert (state.pending_close_reason, seconds) == ("deadline:workflow", 100)
    assert state.turn_count == 2


async def test_a_turn_that_is_too_long_has_failed_and_the_stage_is_named(time: Driven) -> None:
    async with held(line(hangs(), guards=guards(stage_s=50)), clock=time, ttl=None) as session:
        state = await time.drive(after(session, "user", "go"))
        failed = await of_type(session, EV_ROUND_FAILED)
    assert state.pending_close_reason == "round_failed"
    assert {one.event_data["code"] for one in failed} == {"deadline"}
    assert {one.event_data["message"] for one in failed} == {
        "cut off after 50 s by the deadline of the stage"
    }
