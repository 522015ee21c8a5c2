"""Limits in real trees: depth and fan-out, and limits of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from agentgraph import Agent, Guards, Team
from agentgraph.guards import LoopDetector, MemorySink
from agentgraph.guards.nodes.agent_graph import AWAIT_HUMAN, COMPENSATE
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import (
    answers,
    audited,
    calls,
    decided,
    is_legal,
    looping,
    solo,
    streamed,
    watched,
)


def passing_down(levels: int, *, kind: str, guards: Guards) -> tuple[Agent, list[ScriptedModel]]:
    """Return a chain of agents, each of which passes the work on to the one below."""
    below: Agent | None = None
    models: list[ScriptedModel] = []
    for level in range(levels, 0, -1):
        down = call(f"transfer_to_a{level + 1}") if kind == "delegate" else None
        down = down or call(f"a{level + 1}", request="do it")
        turns: list[Scripted] = [f"a{level} is done."]
        model = ScriptedModel([down, *turns] if below is not None else turns)
        members = [] if below is None else [below if kind == "delegate" else below.as_tool()]
        mode: Any = "delegate" if kind == "delegate" else "sticky"
        given: dict[str, Any] = {"agents": members, "handoff": mode, "tools": ()}
        below = Agent(f"a{level}", model=model, default_tools=False, guards=guards, **given)
        models.insert(0, model)
    assert below is not None
    return below, models


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_the_eighth_level_works_and_the_ninth_is_refused(kind: str) -> None:
    sink = MemorySink()
    agent, models = passing_down(10, kind=kind, guards=watched(sink))
    events = await streamed(agent)
    assert [len(model.requests) for model in models] == [2] * 8 + [0, 0]
    path = "/".join(f"a{level}" for level in range(1, 9))
    assert decided(events) == audited(sink) == [(path, "depth_limit", "deny")]
    refused = models[7].requests[1].messages[-1]
    assert isinstance(refused, ToolMessage)
    assert refused.status == "error"
    assert "Not executed: level 9 lies below the last allowed one, 8" in refused.text
    assert is_legal(await agent.ahistory("t"))


async def test_eight_levels_are_nothing_to_talk_about() -> None:
    agent, models = passing_down(8, kind="tool", guards=watched())
    events = await streamed(agent)
    assert decided(events) == []
    assert [len(model.requests) for model in models] == [2] * 7 + [1]


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_of_nine_at_once_eight_work_and_one_is_told_why_not(kind: str) -> None:
    ran: list[str] = []

    def part(name: str) -> Agent:
        def turn(messages: list[BaseMessage]) -> Scripted:
            ran.append(name)
            return f"{name} is done."

        return solo(ScriptedModel(turn), name=name)

    workers = [part(f"w{n}") for n in range(9)]
    if kind == "delegate":
        asks = [call(f"transfer_to_w{n}") for n in range(9)]
    else:
        asks = [call(f"w{n}", request="do it") for n in range(9)]
    boss = ScriptedModel([asks, "All done."])
    members = workers if kind == "delegate" else [worker.as_tool() for worker in workers]
    mode: Any = "delegate" if kind == "delegate" else "sticky"
    agent = Agent("boss", model=boss, agents=members, handoff=mode, default_tools=False)
    events = await streamed(agent)
    assert sorted(ran) == [f"w{n}" for n in range(8)]
    assert decided(events) == [("boss", "fan_out_limit", "deny")]
    history = await agent.ahistory("t")
    assert is_legal(history)
    refused = [m for m in history if isinstance(m, ToolMessage) and m.status == "error"]
    assert [str(m.text).partition(":")[0] for m in refused] == ["Not executed"]
    assert "9 workers were asked for at once; 8 are allowed" in refused[0].text
    assert refused[0].tool_call_id == str(calls_of_first(history)[8])


def calls_of_first(history: Sequence[Any]) -> list[str]:
    return [made["id"] for made in next(m for m in history if m.type == "ai").tool_calls]


async def test_what_was_refused_may_be_asked_for_in_the_next_message() -> None:
    workers = [solo(ScriptedModel(["done"]), name=f"w{n}") for n in range(9)]
    asks = [call(f"w{n}", request="do it") for n in range(9)]
    boss = ScriptedModel([asks, asks[8], "All done."])
    agent = Agent("boss", model=boss, agents=[worker.as_tool() for worker in workers])
    reply = await agent.ainvoke("go", thread_id="t")
    assert reply.text == "All done."
    assert answers(await agent.ahistory("t"))[-1] == "done"


# Policies of parts


async def test_one_agent_of_a_tree_may_have_limits_of_its_own() -> None:
    strict = Guards(loop=LoopDetector(window=2, threshold=2))
    model, other = looping(), looping()
    asks = [call("billing", request="x"), call("sales", request="x")]
    boss = ScriptedModel([asks])
    members = [solo(model, name="billing").as_tool(), solo(other, name="sales").as_tool()]
    guards = watched(stages={"billing": strict})
    agent = Agent("boss", model=boss, agents=members, guards=guards)
    await agent.ainvoke("go", thread_id="t")
    assert (len(model.requests), len(other.requests)) == (5, 7)


async def test_a_stage_may_be_given_longer_than_the_rest() -> None:
    """What the operator says of one agent is said on purpose, and may lift as well."""
    patient = Guards(loop=None)
    model = ScriptedModel([*[call("look", what="it")] * 9, "At last."])
    boss = ScriptedModel([call("transfer_to_billing")])
    sub = solo(model, name="billing")
    agent = Agent("boss", model=boss, agents=[sub], guards=watched(stages={"billing": patient}))
    assert (await agent.ainvoke("go")).text == "At last."


async def test_a_participant_s_own_guards_never_lift_a_team_s() -> None:
    agents = [
        solo(ScriptedModel(lambda _: "said"), name=name, guards=Guards(steps=99)) for name in "abc"
    ]
    team = Team(agents, sequence(["a", "b", "c"]), guards=watched(steps=calls(2)))
    assert (await team.arun("go")).close_reason == "max_steps"


def guarded_nodes(agent: Agent) -> set[str]:
    drawn = agent.graph.get_graph(xray=True).nodes
    return {name.rpartition(":")[2] for name in drawn} & {AWAIT_HUMAN, COMPENSATE}


async def test_without_guards_there_is_nothing_of_them_in_the_graph() -> None:
    sub = solo(ScriptedModel(["done"]), name="sub")
    boss = ScriptedModel([call("transfer_to_sub")])
    bare = Agent("boss", model=boss, agents=[sub], guards=None)
    assert guarded_nodes(bare) == set()
    assert "guarded" not in bare.graph.channels
    assert guarded_nodes(bare.replace(guards=Guards.interactive())) == {AWAIT_HUMAN, COMPENSATE}
    assert (await bare.ainvoke("go")).text == "done"


async def test_without_guards_nothing_is_stopped() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 60, "At last."])
    assert (await solo(model, guards=None).ainvoke("go")).text == "At last."
