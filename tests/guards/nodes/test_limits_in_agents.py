"""Limits in real trees: depth and fan-out, and limits of parts."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Handoff, ParallelTarget, Team
from agentgraph.clock import clock
from agentgraph.guards import FanOutLimit, LoopDetector, MemorySink
from agentgraph.guards.nodes.agent_graph import AWAIT_HUMAN, COMPENSATE
from agentgraph.routing import FromSpeaker, TerminateTarget, Transition, TransitionGraph, sequence
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
        members: Any = [] if below is None else [below if kind == "delegate" else below.as_tool()]
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


async def test_transfers_lead_down_to_the_eighth_level_and_no_further() -> None:
    below: list[Agent] = []
    for level in range(10, 0, -1):
        turns = [call(f"transfer_to_a{level + 1}")] if below else []
        model = ScriptedModel([*turns, f"a{level} does it."])
        below = [Agent(f"a{level}", model=model, agents=below)]
    sink = MemorySink()
    agent = below[0].replace(guards=watched(sink, hops=None))
    reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.text, reply.close_reason) == ("a8 does it.", None)
    path = "/".join(f"a{level}" for level in range(1, 9))
    assert audited(sink) == [(path, "depth_limit", "deny")]
    assert "level 9 lies below the last" in answers(await agent.ahistory("t"))[-1]


async def test_a_tool_may_hand_over_no_deeper_either() -> None:
    def jump() -> Handoff:
        """Hand over to the agent at the bottom."""
        return Handoff("a3")

    leaf = Agent("a3", model=ScriptedModel(["a3 does it."]))
    middle = Agent("a2", model=ScriptedModel(["a2 does it."]), agents=[leaf])
    model = ScriptedModel([call("jump"), "a1 does it."])
    agent = Agent("a1", model=model, agents=[middle], tools=[jump], guards=watched(depth=2))
    assert (await agent.ainvoke("go")).text == "a1 does it."


async def test_agents_in_a_team_within_an_agent_are_deeper_than_the_team() -> None:
    sink = MemorySink()
    leaf = solo(ScriptedModel(["leaf"]), name="leaf")
    turns: list[Any] = [call("leaf", request="go"), "mid"]
    mid = Agent("mid", model=ScriptedModel(turns), agents=[leaf.as_tool()])
    crew = Team([mid], sequence(["mid"]), name="crew")
    boss = ScriptedModel([call("transfer_to_crew"), "Done."])
    guards = watched(sink, depth=3)
    agent = Agent("boss", model=boss, agents=[crew], handoff="delegate", guards=guards)
    assert (await agent.ainvoke("go")).text == "Done."
    assert audited(sink) == [("boss/crew/mid", "depth_limit", "deny")]


async def test_eight_levels_are_nothing_to_talk_about() -> None:
    agent, models = passing_down(8, kind="tool", guards=watched())
    events = await streamed(agent)
    assert decided(events) == []
    assert [len(model.requests) for model in models] == [2] * 7 + [1]


class Crowd:
    """Workers who note how many of them are at work at once, and in which order they began."""

    def __init__(self, kind: str, count: int, *turns: Any, **fields: Any) -> None:
        self.began: list[str] = []
        self.most = self._now = 0
        workers = [self._worker(f"w{n}") for n in range(count)]
        is_tool = kind == "tool"
        self.asks = [
            call(w.name, request="go") if is_tool else call(f"transfer_to_{w.name}")
            for w in workers
        ]
        members: Any = [worker.as_tool() for worker in workers] if is_tool else workers
        given: dict[str, Any] = {"handoff": "sticky" if is_tool else "delegate", **fields}
        said: list[Any] = [[*self.asks], *turns, "All done."]
        self.model = ScriptedModel(said)
        self.agent = solo(self.model, name="boss", agents=members, **given)

    def _worker(self, name: str) -> Agent:
        async def turn(messages: list[BaseMessage]) -> Scripted:
            self.began.append(name)
            self._now += 1
            self.most = max(self.most, self._now)
            for _ in range(20):
                await clock().sleep(0)
            self._now -= 1
            return f"{name} is done."

        return solo(ScriptedModel(turn), name=name)


KIND = pytest.mark.parametrize("kind", ["delegate", "tool"])


@KIND
async def test_of_fifty_workers_eight_work_at_once_and_all_come_to_work(kind: str) -> None:
    sink = MemorySink()
    crowd = Crowd(kind, 50, guards=watched(sink))
    events = await streamed(crowd.agent)
    assert decided(events) == audited(sink) == []
    assert crowd.most == 8
    waves = [crowd.began[at : at + 8] for at in range(0, 50, 8)]
    asked = [f"w{n}" for n in range(50)]
    assert [sorted(wave) for wave in waves] == [
        sorted(asked[at : at + 8]) for at in range(0, 50, 8)
    ]
    history = await crowd.agent.ahistory("t")
    assert is_legal(history)
    assert answers(history) == [f"w{n} is done." for n in range(50)]
    assert len(crowd.model.requests) == 2


@KIND
async def test_workers_in_a_wave_that_asks_a_human_are_waited_for(kind: str) -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    crowd = Crowd(kind, 2, guards=watched(fan_out=1))
    asker = solo(ScriptedModel([call("ask"), "w0 has asked."]), ask, name="w0")
    members: Any = [
        asker,
        crowd.agent.sub_agents[1] if kind == "delegate" else crowd.agent.agent_tools[1].agent,
    ]
    tools: Any = [m.as_tool() for m in members] if kind == "tool" else members
    agent = crowd.agent.replace(agents=tools)
    (question,) = (await agent.ainvoke("go", thread_id="t")).interrupts
    assert crowd.began == []
    reply = await agent.aresume("t", {question.id: "yes"})
    assert (reply.text, crowd.began) == ("All done.", ["w1"])
    assert sorted(answers(await agent.ahistory("t"))) == ["w0 has asked.", "w1 is done."]


@KIND
async def test_workers_beyond_the_total_of_an_input_are_refused(kind: str) -> None:
    sink = MemorySink()
    limit = FanOutLimit(2, total=5)
    crowd = Crowd(kind, 4, guards=watched(sink, fan_out=limit))
    crowd.model = ScriptedModel([crowd.asks, crowd.asks, "All done."])
    agent = crowd.agent.replace(model=crowd.model)
    assert (await agent.ainvoke("go", thread_id="t")).text == "All done."
    assert (len(crowd.began), crowd.most) == (5, 2)
    assert ("boss", "fan_out_limit", "deny") in audited(sink)
    refused = [text for text in answers(await agent.ahistory("t")) if text.startswith("Not exec")]
    assert len(refused) == 3
    assert "5 are allowed for one input" in refused[0]


async def test_tools_beside_workers_do_not_wait_for_a_wave() -> None:
    crowd = Crowd("tool", 2, guards=watched(fan_out=1))
    model = ScriptedModel([[*crowd.asks, call("look", what="it")], "All done."])
    agent = crowd.agent.replace(model=model)
    assert (await agent.ainvoke("go", thread_id="t")).text == "All done."
    assert answers(await agent.ahistory("t"))[:2] in (
        ["w0 is done.", "nothing of it"],
        ["nothing of it", "w0 is done."],
    )
    assert crowd.most == 1


async def test_no_workers_at_all_may_be_allowed() -> None:
    crowd = Crowd("tool", 2, guards=watched(fan_out=0))
    assert (await crowd.agent.ainvoke("go")).text == "All done."
    assert crowd.began == []


async def test_speakers_side_by_side_speak_in_waves() -> None:
    crowd = Crowd("delegate", 5)
    speakers = [crowd._worker(f"s{n}") for n in range(5)]
    names = [one.name for one in speakers]
    start, last = solo(ScriptedModel(["Go."]), name="start"), solo(ScriptedModel(["So."]), name="z")
    rules = [
        Transition(FromSpeaker("start"), ParallelTarget(tuple(names), join="z")),
        Transition(FromSpeaker("z"), TerminateTarget("all_said")),
    ]
    team = Team(
        [start, *speakers, last], TransitionGraph("start", rules), guards=watched(fan_out=2)
    )
    result = await team.arun("go")
    assert (result.text, result.close_reason) == ("So.", "all_said")
    assert (sorted(crowd.began), crowd.most) == (names, 2)


async def test_speakers_side_by_side_are_no_workers_of_the_total() -> None:
    crowd = Crowd("delegate", 5)
    speakers = [crowd._worker(f"s{n}") for n in range(5)]
    rules = [
        Transition(FromSpeaker("start"), ParallelTarget(tuple(s.name for s in speakers), join="z")),
        Transition(FromSpeaker("z"), TerminateTarget("all_said")),
    ]
    start, last = solo(ScriptedModel(["Go."]), name="start"), solo(ScriptedModel(["So."]), name="z")
    limit = FanOutLimit(8, total=1)
    rules_of_team = TransitionGraph("start", rules)
    team = Team([start, *speakers, last], rules_of_team, guards=watched(fan_out=limit))
    result = await team.arun("go")
    assert (result.close_reason, len(crowd.began)) == ("all_said", 5)


# Policies of parts


async def test_one_agent_of_a_tree_may_have_limits_of_its_own() -> None:
    strict = Guards(loop=LoopDetector(window=2, threshold=2))
    model, other = looping(), looping()
    asks = [call("billing", request="x"), call("sales", request="x")]
    boss = ScriptedModel([asks])
    members: Any = [solo(model, name="billing").as_tool(), solo(other, name="sales").as_tool()]
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
