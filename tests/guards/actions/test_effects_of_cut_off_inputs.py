"""What an input has done that failed or was cancelled is undone with the next one, if that is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, Hub, Session, Team, TransitionGraph, effect, idempotency_key
from agentgraph.errors import AgentGraphError
from agentgraph.guards import AuditTrail, Escalation, MemorySink
from agentgraph.routing import FromSpeaker, HumanTarget, Transition
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, PLACES, Till, pays, tree, unsure
from tests.guards.records.test_account_in_a_new_process import another_process
from tests.sessions.talk import settled

DURABILITIES = ("sync", "async", "exit")
WAYS = ("failed", "cancelled")

everywhere = pytest.mark.parametrize("place", PLACES)
both_ways = pytest.mark.parametrize("way", WAYS)
elsewhere = pytest.mark.parametrize("is_elsewhere", [False, True])


class Desk:
    """A clerk who pays for tea and milk, and then for jam, about which a human is asked.

    The first input fails or hangs after the milk.
    """

    def __init__(self, way: str) -> None:
        self.till = Till()
        self.hangs = asyncio.Event()
        self.way = way
        self._is_cut_off = False

    def clerk(self) -> Agent:
        tools: list[Any] = [self.till.tool, self._wait]
        return Agent("clerk", model=ScriptedModel(self._turn), tools=tools, default_tools=False)

    def cut_off(self) -> Any:
        """Return what the model does where the first input ends: it fails, or hangs in a tool."""
        self._is_cut_off = True
        return Fault.server_error() if self.way == "failed" else call("_wait")

    async def _wait(self) -> str:
        """Wait."""
        self.hangs.set()
        await asyncio.Event().wait()
        return "never"

    def _turn(self, messages: list[Any]) -> Any:
        if "pay jam" in self.till.tries:
            return ANSWER
        if self._is_cut_off:
            return pays("jam")
        paid = sum(isinstance(m, ToolMessage) and m.name == "pay" for m in messages)
        return [*pays("tea"), *pays("milk"), None][paid] or self.cut_off()


def doubtful(sink: MemorySink | None = None) -> Any:
    """Return guards that ask a human about each answer of the clerk's, and pass errors on."""
    policy = unsure("doubt")
    return type(policy).interactive(
        retry=None,
        escalation=Escalation(0.85, policy.escalation.critic),
        audit=AuditTrail(sink or MemorySink()),
    )


@everywhere
@both_ways
@elsewhere
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_rejection_undoes_what_the_input_before_has_done_on_a_thread(
    durability: Any, is_elsewhere: bool, way: str, place: str
) -> None:
    desk, saver = Desk(way), InMemorySaver()
    fields = {"guards": doubtful(), "durability": durability}
    agent = tree(place, desk.clerk(), checkpointer=saver, **fields)
    run = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    if way == "cancelled":
        await desk.hangs.wait()
        run.cancel()
    with suppress(AgentGraphError, asyncio.CancelledError):
        await run
    assert desk.till.tries == ["pay tea", "pay milk"]
    if is_elsewhere:
        agent = tree(place, desk.clerk(), checkpointer=another_process(saver), **fields)
    reply = await agent.ainvoke("go on", thread_id="t")
    [question] = reply.interrupts
    reply = await agent.aresume("t", {question.id: "reject"})
    assert reply.close_reason == "escalation"
    assert desk.till.tries[-3:] == ["give back jam", "give back milk", "give back tea"]
    assert (desk.till.left, len(desk.till.tries)) == ([], 6)


def team_of(agent: Agent, **fields: Any) -> Team:
    """Return a team in which an agent answers the user."""
    rules = [
        Transition(FromSpeaker("user"), agent.name),
        Transition(FromSpeaker(agent.name), HumanTarget()),
    ]
    graph = TransitionGraph(agent.name, rules)
    return Team([agent], graph, name="desk", expectations=(), **fields)


@both_ways
@elsewhere
async def test_rejection_undoes_what_the_input_before_has_done_in_a_session(
    is_elsewhere: bool, way: str, tmp_path: Path
) -> None:
    desk, url = Desk(way), f"sqlite:///{tmp_path / 'sessions.db'}"
    async with await Hub.open(url, serve=[desk.clerk().replace(guards=doubtful())]) as hub:
        session = await hub.session("clerk", id="s")
        await cut_off(session, desk)
        if not is_elsewhere:
            await rejected(session)
    if is_elsewhere:
        async with await Hub.open(url, serve=[desk.clerk().replace(guards=doubtful())]) as hub:
            await rejected(await hub.session("clerk", id="s"))
    assert desk.till.tries[-3:] == ["give back jam", "give back milk", "give back tea"]
    assert (desk.till.left, len(desk.till.tries)) == ([], 6)


@elsewhere
async def test_rejection_undoes_what_a_cancelled_input_has_done_in_a_team(
    is_elsewhere: bool, tmp_path: Path
) -> None:
    desk, url = Desk("cancelled"), f"sqlite:///{tmp_path / 'sessions.db'}"
    team = team_of(desk.clerk(), guards=doubtful())
    async with await Hub.open(url, serve=[team]) as hub:
        session = await hub.session(team, id="s", ttl=None)
        await cut_off(session, desk)
        if not is_elsewhere:
            await rejected(session)
    if is_elsewhere:
        team = team_of(desk.clerk(), guards=doubtful())
        async with await Hub.open(url, serve=[team]) as hub:
            await rejected(await hub.session(team, id="s", ttl=None))
    assert desk.till.tries[-3:] == ["give back jam", "give back milk", "give back tea"]
    assert (desk.till.left, len(desk.till.tries)) == ([], 6)


async def cut_off(session: Session, desk: Desk) -> None:
    """Have the first input fail, or cancel it."""
    await session.send("user", "go")
    if desk.way == "cancelled":
        await desk.hangs.wait()
        await session.cancel()
    await settled(session)
    assert desk.till.tries == ["pay tea", "pay milk"]


async def rejected(session: Session) -> None:
    """Say something, and reject the answer."""
    await session.send("user", "go on")
    state = await settled(session)
    [key] = [key for key, question in state.interrupts.items() if "decision" not in question]
    await session.decide(key, "reject")
    await settled(session)


# What was under way is looked up


class Courier:
    """Brings a parcel, and is cut off before or after that, or goes on without regard to that."""

    def __init__(self, when: str) -> None:
        self.keys: list[str] = []
        self.begun = asyncio.Event()
        self._when = when

    def agent(self, **fields: Any) -> Agent:
        @effect(lookup=self.find)
        async def bring(item: str) -> str:
            """Bring something."""
            key = idempotency_key()
            if self._when == "after":
                self.keys.append(key)
            self.begun.set()
            await asyncio.Event().wait()
            return "never"

        def turn(messages: list[Any]) -> Any:
            asks = messages[-1].type == "human" and not self.begun.is_set()
            return call("bring", item="tea") if asks else ANSWER

        model = ScriptedModel(turn)
        return Agent("courier", model=model, tools=[bring], default_tools=False, **fields)

    def find(self, key: str) -> str | None:
        return "brought tea" if key in self.keys else None


EXPECTED = {
    # In the same process it may still be done: a thread cannot be cut off.
    ("before", False): "Outcome unknown",
    ("before", True): "Not executed",
    ("after", False): "brought tea",
    ("after", True): "brought tea",
}


@pytest.mark.parametrize(("when", "is_elsewhere"), EXPECTED)
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_new_message_is_told_what_the_lookup_says_on_a_thread(
    durability: Any, when: str, is_elsewhere: bool
) -> None:
    courier, saver = Courier(when), InMemorySaver()
    agent = courier.agent(checkpointer=saver, durability=durability)
    run = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    await courier.begun.wait()
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    if is_elsewhere:
        agent = courier.agent(checkpointer=another_process(saver), durability=durability)
    await agent.ainvoke("And?", thread_id="t")
    [answer] = [m for m in await agent.ahistory("t") if isinstance(m, ToolMessage)]
    assert EXPECTED[when, is_elsewhere] in str(answer.text)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["single", "team"])
async def test_new_message_is_told_what_the_lookup_says_in_a_session(kind: str, when: str) -> None:
    courier = Courier(when)
    agent = courier.agent()
    team: Any = agent if kind == "single" else team_of(agent)
    async with await Hub.open("memory", serve=[team]) as hub:
        session = await hub.session(team.name, id="s", ttl=None)
        await session.send("user", "go")
        await courier.begun.wait()
        await session.cancel()
        await settled(session)
        model = agent.model
        await session.send("user", "And?")
        await settled(session)
    assert isinstance(model, ScriptedModel)
    answers = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert [EXPECTED[when, False] in str(answer.text) for answer in answers] == [True]
