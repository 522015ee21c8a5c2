"""Hops in trees and teams: how often models hand over in a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph import Agent, Handoff, Team
from agentgraph.guards import MemorySink
from agentgraph.routing import FromSpeaker, Transition, TransitionGraph
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
    solo,
    streamed,
    watched,
)
from tests.sessions.talk import after, held, of_type, talk


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


def stairs(levels: int, tools: Sequence[Any] = (), **fields: Any) -> Agent:
    """Return a chain of agents: each transfers to the one below, after it has used its tools."""
    below: list[Agent] = []
    for level in range(levels, 0, -1):
        turns = [call(tool.__name__) for tool in tools]
        if below:
            turns.append(call(f"transfer_to_a{level + 1}"))
        said: Any = [*turns, f"a{level} does it."]
        given = fields if level == 1 else {}
        below = [Agent(f"a{level}", model=ScriptedModel(said), agents=below, tools=tools, **given)]
    return below[0]


def moved(history: Sequence[BaseMessage]) -> int:
    return sum(text.startswith("Conversation transferred") for text in answers(history))


async def test_in_a_tree_five_transfers_pass_and_the_sixth_is_refused() -> None:
    sink = MemorySink()
    agent = stairs(7, guards=watched(sink))
    events = await streamed(agent)
    assert decided(events) == audited(sink) == [("a1/a2/a3/a4/a5/a6", "hop_limit", "deny")]
    history = await agent.ahistory("t")
    assert moved(history) == 5
    assert "5 handoffs were made in a row, without a tool's work" in answers(history)[-1]
    assert history[-1].text == "a6 does it."
    assert is_legal(history)


async def test_a_tool_s_work_begins_a_new_chain_of_hops() -> None:
    numbers = count()

    def work() -> str:
        """Do a part of the work."""
        return f"part {next(numbers)}"

    agent = stairs(7, [work], guards=watched())
    assert (await agent.ainvoke("go", thread_id="t")).text == "a7 does it."
    assert moved(await agent.ahistory("t")) == 6


async def test_seven_specialists_may_each_give_back() -> None:
    subs = [helped(f"s{n}", first=n) for n in range(7)]
    boss = ScriptedModel([*(call(f"transfer_to_s{n}") for n in range(7)), "All have helped."])
    sink = MemorySink()
    reply = await transfers(boss, *subs, guards=watched(sink)).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("All have helped.", None)
    assert [told for told in audited(sink) if told[1] == "hop_limit"] == []


async def test_hops_are_remembered_over_an_interrupt_in_another_agent(tmp_path: Path) -> None:
    def ask() -> Handoff:
        """Ask a human whether to go down."""
        interrupt("may I?")
        return Handoff("a3")

    def compiled(url: str, *turns: Scripted) -> Agent:
        last = Agent("a3", model=ScriptedModel(["a3 does it."]))
        middle = Agent("a2", model=ScriptedModel(turns), agents=[last], tools=[ask])
        fields: Any = {"checkpointer": url, "durability": "sync", "guards": watched(hops=1)}
        return Agent("a1", model=ScriptedModel([call("transfer_to_a2")]), agents=[middle], **fields)

    url = f"sqlite:///{tmp_path / 'a.db'}"
    before = compiled(url, call("ask"))
    (question,) = (await before.ainvoke("go", thread_id="t")).interrupts
    later = compiled(elsewhere(url), "I do it myself.")
    reply = await later.aresume("t", {question.id: "yes"})
    assert reply.text == "I do it myself."
    assert "1 handoffs were made in a row" in answers(await later.ahistory("t"))[-1]


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
