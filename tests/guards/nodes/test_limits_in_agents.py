"""Limits in real trees: depth, fan-out, hops and steps, counted over all levels of an input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Handoff, Team
from agentgraph.guards import LoopDetector, MemorySink
from agentgraph.guards.nodes.agent_graph import AWAIT_HUMAN, COMPENSATE
from agentgraph.routing import FromSpeaker, Transition, TransitionGraph, sequence
from agentgraph.sessions import EV_AUDIT, EV_HANDOFF, EV_HANDOFF_REJECTED
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import (
    answers,
    audited,
    decided,
    elsewhere,
    for_ever,
    is_legal,
    look,
    looping,
    solo,
    streamed,
    watched,
)
from tests.sessions.talk import after, held, of_type, talk


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


# Hops


class Ring:
    """Agents in a circle within a team: each hands over to the next, for ever."""

    def __init__(self, count: int, **fields: Any) -> None:
        self.names = [f"p{n}" for n in range(count)]
        self.reasons = iter(range(1000))
        agents = [self._agent(n) for n in range(count)]
        self.team = Team(agents, TransitionGraph("p0", ()), **fields)

    def _agent(self, number: int) -> Agent:
        following = self.names[(number + 1) % len(self.names)]

        def turn(messages: list[BaseMessage]) -> Scripted:
            refused = messages[-1].type == "tool" and "hop_limit" in str(messages[-1].text)
            return "I stay." if refused else call("over", reason=str(next(self.reasons)))

        def over(reason: str) -> Handoff:
            """Hand over."""
            return Handoff(following, reason)

        return solo(ScriptedModel(turn), over, name=self.names[number])


async def test_in_a_team_five_handoffs_pass_and_the_sixth_is_refused() -> None:
    sink = MemorySink()
    async with held(Ring(4, guards=watched(sink)).team) as session:
        await after(session, "user", "go")
        assert len(await of_type(session, EV_HANDOFF)) == 5
        (rejected,) = await of_type(session, EV_HANDOFF_REJECTED)
        assert '"code":"hop_limit"' in rejected.event_data["told"]
        assert (await talk(session))[-1] == ("p1", "I stay.")
        audits = await of_type(session, EV_AUDIT)
        told = [(one.event_data["guard"], one.event_data["action"]) for one in audits]
        assert told == [("hop_limit", "deny")]
    assert audited(sink) == [("p1", "hop_limit", "deny")]


async def test_a_word_from_outside_allows_the_hops_anew() -> None:
    rules = TransitionGraph("p0", [Transition(FromSpeaker("user"), "p0")])
    ring = Ring(4)
    team = Team(ring.team.agents, rules)
    async with held(team) as session:
        await after(session, "user", "go")
        handed = len(await of_type(session, EV_HANDOFF))
        assert handed == 5


def transfers(model: ScriptedModel, *agents: Agent, **fields: Any) -> Agent:
    return Agent("boss", model=model, agents=agents, **fields)


def helped(name: str = "sub", first: int = 0) -> Agent:
    """Return a sub-agent that gives the conversation back each time."""
    asks = for_ever(*(call("request_help", reason=f"help {first + n}") for n in range(50)))
    return Agent(name, model=asks)


def asking_each_time() -> ScriptedModel:
    """Return a model that transfers until it is refused; each time it has news."""

    def turn(messages: list[BaseMessage]) -> Scripted:
        refused = messages[-1].type == "tool" and "handoffs were made" in str(messages[-1].text)
        return "I do it myself." if refused else call("transfer_to_sub")

    return ScriptedModel(turn)


async def test_in_a_tree_five_transfers_pass_and_the_sixth_is_refused() -> None:
    sink = MemorySink()
    agent = transfers(asking_each_time(), helped(), guards=watched(sink))
    events = await streamed(agent)
    assert decided(events) == audited(sink) == [("boss", "hop_limit", "deny")]
    history = await agent.ahistory("t")
    moved = [text for text in answers(history) if text.startswith("Conversation transferred")]
    assert len(moved) == 5
    assert history[-1].text == "I do it myself."
    assert is_legal(history)
    reply = await agent.ainvoke("again", thread_id="t")
    assert reply.text == "I do it myself."


async def test_hops_are_counted_over_all_levels() -> None:
    """Two transfers down to the leaf and one back up by help are two hops, wherever made."""
    leaf = helped("leaf")
    mid_turns = for_ever(call("transfer_to_leaf"), call("request_help", reason="up"))
    mid = Agent("mid", model=mid_turns, agents=[leaf])

    def turn(messages: list[BaseMessage]) -> Scripted:
        refused = any("handoffs were made" in str(m.text) for m in messages if m.type == "tool")
        return "I do it myself." if refused else call("transfer_to_mid")

    agent = Agent("boss", model=ScriptedModel(turn), agents=[mid])
    events = await streamed(agent)
    assert [told for told in decided(events) if told[1] == "hop_limit"] == [
        ("boss/mid", "hop_limit", "deny")
    ]
    moved = [t for t in answers(await agent.ahistory("t")) if t.startswith("Conversation trans")]
    assert len(moved) == 5


async def test_hops_are_remembered_over_an_interrupt_in_another_agent(tmp_path: Path) -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    def compiled(url: str, model: ScriptedModel, first: int = 0) -> Agent:
        sub = helped(first=first)
        return transfers(model, sub, tools=[ask], checkpointer=url, durability="sync")

    url = f"sqlite:///{tmp_path / 'a.db'}"
    before = compiled(url, ScriptedModel([*[call("transfer_to_sub")] * 3, call("ask")]))
    (question,) = (await before.ainvoke("go", thread_id="t")).interrupts
    after_it = compiled(elsewhere(url), asking_each_time(), first=3)
    reply = await after_it.aresume("t", {question.id: "yes"})
    assert reply.text == "I do it myself."
    moved = [t for t in answers(await after_it.ahistory("t")) if t.startswith("Conversation tran")]
    assert len(moved) == 5


async def test_delegates_and_tools_are_no_hops() -> None:
    sub = solo(ScriptedModel(lambda messages: f"part {len(messages)}"), name="sub")
    asks = [call("transfer_to_sub", reason=str(n)) for n in range(8)]
    boss = ScriptedModel([*asks, "Done."])
    guards = watched(hops=0)
    reply = await transfers(boss, sub, handoff="delegate", guards=guards).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)


async def test_a_limit_of_none_lets_everything_pass() -> None:
    asks = [call("transfer_to_sub")] * 9
    boss = ScriptedModel([*asks, "Done."])
    guards = watched(hops=None, deadlock=None)
    reply = await transfers(boss, helped(), guards=guards).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)


# Steps


async def test_the_fiftieth_model_call_is_the_last() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    agent = solo(model)
    events = await streamed(agent)
    assert decided(events) == [("a", "max_steps", "abort")]
    assert len(model.requests) == 50
    assert is_legal(await agent.ahistory("t"))


async def test_steps_are_shared_by_all_levels() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    boss = ScriptedModel([call("sub", request="go")])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub").as_tool()])
    reply = await agent.replace(guards=watched(steps=10)).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 9)


async def test_steps_are_shared_by_workers_side_by_side() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    boss = ScriptedModel([[call("sub", request=f"part {n}") for n in range(4)]])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub").as_tool()])
    reply = await agent.replace(guards=watched(steps=21)).ainvoke("go", thread_id="t")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 20)
    assert is_legal(await agent.ahistory("t"))


async def test_steps_are_counted_over_a_resume_in_another_agent(tmp_path: Path) -> None:
    pages = iter(range(1000))

    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    def compiled(url: str, *first: Scripted) -> tuple[ScriptedModel, Agent]:
        turns = iter(first)
        model = ScriptedModel(lambda m: next(turns, call("look", what=str(next(pages)))))
        fields: dict[str, Any] = {"checkpointer": url, "durability": "sync"}
        return model, solo(model, look, ask, guards=watched(steps=7), **fields)

    url = f"sqlite:///{tmp_path / 'a.db'}"
    _, before = compiled(url, call("look", what="a"), call("look", what="b"), call("ask"))
    (question,) = (await before.ainvoke("go", thread_id="t")).interrupts
    model, later = compiled(elsewhere(url))
    reply = await later.aresume("t", {question.id: "yes"})
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 4)


async def test_a_regulated_run_that_is_out_of_steps_asks_for_more() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    agent = solo(model, guards=watched(tier="regulated", steps=4))
    reply = await agent.ainvoke("go", thread_id="t")
    (question,) = reply.interrupts
    assert question.payload["guard"] == "max_steps"
    reply = await agent.aresume("t", {question.id: "approve"})
    (again,) = reply.interrupts
    assert len(model.requests) == 8
    reply = await agent.aresume("t", {again.id: "reject"})
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 8)
    assert is_legal(await agent.ahistory("t"))


async def test_steps_of_a_team_are_shared_by_its_rounds() -> None:
    agents = [solo(ScriptedModel(lambda _: "said"), name=name) for name in "abc"]
    async with held(Team(agents, sequence(["a", "b", "c"]), guards=watched(steps=2))) as session:
        state = await after(session, "user", "go")
        assert [who for who, _ in await talk(session)] == ["user", "a", "b"]
        assert state.pending_close_reason == "max_steps"


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
    assert (len(model.requests), len(other.requests)) == (3, 4)


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
    team = Team(agents, sequence(["a", "b", "c"]), guards=watched(steps=2))
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
