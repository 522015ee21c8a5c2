"""Whatever is said in private reaches nobody else: random talks, in which every text has a mark.

Models say a mark of their own each time, in their texts, tool calls, handoffs, questions and
failures, and never what they were shown. Who may see a mark follows from the log alone: those to
whom the message was said that the round answers, who has spoken since, and who got a handoff.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, pairwise
from random import Random  # noqa: TID251 - a seeded one
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.types import interrupt

from agentgraph import Agent, Guards
from agentgraph.errors import AgentGraphError
from agentgraph.guards import effect
from agentgraph.outcomes import Handoff
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_HANDOFF,
    EV_PACKET,
    EV_ROUND_FAILED,
    Envelope,
    FullTranscript,
    Hub,
    Session,
    Team,
    WindowedSummary,
    report_progress,
    set_context,
)
from agentgraph.sessions.state.fold import decision_of, fold_all
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, heard

AGENTS = ("a", "b", "c", "inner")
PEOPLE = ("user", "guest")
BOSS = "boss"
INSIDE = {"x": "inner", "y": "inner"}
"""The agents of the inner team, with the name of that team."""

_MARK = re.compile(r"<mark \d+>")


@tool
def look(what: str) -> str:
    """Look at something."""
    report_progress(f"looking at {what}")
    return f"looked at {what}"


@effect
@tool
def act(what: str) -> str:
    """Change something."""
    return f"changed {what}"


@tool
def note(what: str) -> str:
    """Note something for all."""
    set_context("noted", what)
    return "noted"


@tool
def ask(what: str) -> str:
    """Ask a human."""
    return str(interrupt({"question": what}))[:0] + "asked"


@tool
def give(to: str, what: str) -> Handoff:
    """Give the conversation to somebody."""
    return Handoff(to, what, f"in short: {what}")


class World:
    """A team, its session, and the marks that were said: when, and to whom."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = count(1)
        self.prompts: list[tuple[str, str]] = []
        self.said_to: dict[str, frozenset[str] | None] = {}
        """By mark that was sent from outside: who may see it; None means everybody."""
        self.said_in: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        """By mark in a round: the session, the round, and who said it or is answered by it."""
        self.remarks: dict[str, str | None] = {}
        """By mark of the supervisor: the mark that it remarks on, if there is one."""
        self.live: dict[str, list[str]] = {name: [] for name in (*AGENTS, *PEOPLE)}
        self.session: Session
        self.team = self._team()

    def _team(self) -> Team:
        random = self.random
        inner = Team([self._agent("x"), self._agent("y")], sequence(["x", "y"]), name="inner")
        order = random.sample(AGENTS, random.randint(2, len(AGENTS)))
        links: list[Transition] = [Transition(FromSpeaker(a), b) for a, b in pairwise(order)]
        if len(order) > 3 and random.random() < 0.6:
            fan = ParallelTarget(order[1:3], order[3])
            links = [Transition(FromSpeaker(order[0]), fan)]
        people = [Transition(FromSpeaker(name), random.choice(order)) for name in PEOPLE]
        human = HumanTarget(random.choice([None, "guest"]))
        rules = TransitionGraph(order[0], [*links, *people], human, max_turns=25)
        agents = [inner if name == "inner" else self._agent(name) for name in AGENTS]
        boss = Agent(BOSS, "watches", model=ScriptedModel(self._remark), default_tools=False)
        return Team(
            agents,
            rules,
            name="team",
            humans=["guest"],
            supervisor=boss if random.random() < 0.5 else None,
            view=random.choice([None, FullTranscript(), WindowedSummary(2)]),
            summarize=random.choice([None, lambda before, older: f"{before} {len(older)}"]),
            guards=Guards.interactive(retry=None),
            failure_target=random.choice([None, "a"]),
        )

    def _agent(self, name: str) -> Agent:
        def turn(messages: Sequence[BaseMessage]) -> Any:
            return self._turn(name, messages)

        model, tools = ScriptedModel(turn), [look, act, note, ask, give]
        return Agent(name, f"does {name}", model=model, tools=tools, default_tools=False)

    def _turn(self, name: str, messages: Sequence[BaseMessage]) -> Any:
        self.prompts.append((name, _text_of(messages)))
        mark = self._mark()
        speaker = INSIDE.get(name, name)
        self.said_in[mark] = (self.session.id, self.session.state.round, (speaker,))
        if messages[-1].type == "tool":
            return f"{name} says {mark}"
        kind = self.random.choice(["say"] * 4 + ["look", "act", "note", "ask", "give", "fail"])
        match kind:
            case "say":
                return f"{name} says {mark}"
            case "give":
                peers = ("x", "y") if name in INSIDE else (*AGENTS, "guest", "human", "nobody")
                return call("give", to=self.random.choice(peers), what=mark)
            case "fail":
                return RuntimeError(mark)
            case _:
                return call(kind, what=mark)

    def _remark(self, messages: Sequence[BaseMessage]) -> Any:
        """Remark on the last that was said, if that was to be remarked on."""
        marks = _MARK.findall(heard(messages))
        if self.random.random() < 0.5 or not marks:
            return call("stay_silent")
        mark = self._mark()
        self.remarks[mark] = marks[-1]
        return f"a remark {mark}"

    def _mark(self) -> str:
        return f"<mark {next(self.numbers)}>"

    async def step(self) -> None:
        """Do one thing from outside; what is refused is refused with an error of ours."""
        session, random = self.session, self.random
        state = session.state
        with suppress(AgentGraphError):
            if state.interrupts:
                mark = self._mark()
                key, question = next(iter(state.interrupts.items()))
                self.said_in[mark] = (session.id, state.round, (question["speaker"], "user"))
                await session.decide(key, mark)
            elif state.status == "waiting_human" and random.random() < 0.2:
                await session.release(random.choice([None, "b"]))
            else:
                await self._say(random.choice(PEOPLE))
        async with asyncio.timeout(PATIENCE_S):
            await session.settled()

    async def _say(self, sender: str) -> None:
        names = [*AGENTS, *PEOPLE]
        audience = self.random.choice([None, self.random.sample(names, self.random.randint(0, 2))])
        mark = self._mark()
        self.said_to[mark] = None if audience is None else frozenset((*audience, sender))
        await self.session.send(sender, f"{sender} says {mark}", audience=audience)

    async def read_live(self, reader: str) -> None:
        async for item in self.session.stream(reader=reader):
            self.live[reader].append(str(item))


def _text_of(messages: Sequence[BaseMessage]) -> str:
    calls = [m.tool_calls for m in messages if isinstance(m, AIMessage)]
    return f"{[m.content for m in messages]} {calls}"


def rounds_of(log: Sequence[Envelope]) -> dict[int, frozenset[str] | None]:
    """Return by round who may see what is said in it, beside its speakers; None is everybody."""
    rounds: dict[int, frozenset[str] | None] = {0: None}
    spoken: set[str] = set()
    for envelope in log:
        decision = decision_of(envelope)
        current = rounds[len(rounds) - 1]
        if envelope.event_type == EV_PACKET and envelope.sender_id in AGENTS:
            spoken.add(envelope.sender_id)
        if envelope.event_type == EV_ROUND_FAILED and envelope.event_data["final"]:
            spoken.add(envelope.event_data["speaker"])
        if decision is None or decision.action == "close":
            continue
        sender = envelope.sender_id
        if sender in PEOPLE:
            audience = envelope.audience
            current = None if audience is None else frozenset((*audience, sender))
        elif sender == BOSS:
            current = None if envelope.audience is None else frozenset((*envelope.audience, BOSS))
        elif current is not None:
            current |= spoken
        if current is not None and decision.rule == "handoff":
            current |= {*decision.speakers}
        rounds[len(rounds)] = current
        spoken = set()
    return rounds


def receivers_of(log: Sequence[Envelope]) -> dict[tuple[int, str], frozenset[str]]:
    """Return by round and speaker who got the handoff with which this turn ended."""
    packets = {one.envelope_id: one.event_data for one in log if one.event_type == EV_PACKET}
    handoffs = [one for one in log if one.event_type == EV_HANDOFF]
    targets = [(one, one.event_data["target"]) for one in handoffs]
    return {
        (packets[str(one.causation_id)]["round"], one.event_data["from"]): frozenset(
            [target if target != "human" else "guest"]
        )
        for one, target in targets
    }


class Judge:
    """Tells who may see a mark."""

    def __init__(self, world: World, logs: dict[str, Sequence[Envelope]]) -> None:
        self.world = world
        self.rounds = {name: rounds_of(log) for name, log in logs.items()}
        self.receivers = {name: receivers_of(log) for name, log in logs.items()}

    def may_see(self, reader: str, mark: str) -> bool:
        world = self.world
        if mark in world.said_to:
            allowed = world.said_to[mark]
            return allowed is None or reader in allowed
        if mark in world.remarks:
            remarked = world.remarks[mark]
            return reader == BOSS or remarked is None or self.may_see(reader, remarked)
        session_id, round, speakers = world.said_in[mark]
        allowed = self.rounds[session_id].get(round)
        receivers = self.receivers[session_id].get((round, speakers[0]), frozenset())
        return allowed is None or reader in (*allowed, *speakers, *receivers)

    def check(self, reader: str, text: str, where: str) -> None:
        for mark in dict.fromkeys(_MARK.findall(text)):
            assert self.may_see(reader, mark), f"{reader} sees {mark} in {where}"


async def read_all(session: Session, reader: str) -> dict[str, str]:
    """Return all that a participant can read of a session."""
    history = await session.history(reader=reader)
    watched = [one async for one in session.watch(reader=reader)]
    assert watched == history
    explained: list[str] = []
    for number in [one.sequence for one in await session.history()]:
        with suppress(AgentGraphError):
            explained.append(str(await session.explain(number, reader=reader)))
    return {"history": str([one.to_dict() for one in history]), "explain": str(explained)}


async def play(seed: int, steps: int) -> World:
    world = World(seed)
    async with await Hub.open(serve=[world.team]) as hub:
        world.session = original = await hub.session(world.team)
        await original.join("guest")
        readers = [asyncio.ensure_future(world.read_live(name)) for name in world.live]
        for _ in range(steps):
            await world.step()
        fork = None
        if original.state.sequence > 3 and world.random.random() < 0.5:
            fork = await original.fork(world.random.randint(2, original.state.sequence))
        await original.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*readers)
        if fork is not None:
            world.session = fork
            await world.step()
            await fork.close()
        sessions = [original, *([] if fork is None else [fork])]
        await check(world, hub, sessions)
    return world


async def check(world: World, hub: Hub, sessions: Sequence[Session]) -> None:
    logs: dict[str, Sequence[Envelope]] = {one.id: await one.history() for one in sessions}
    judge = Judge(world, logs)
    for session in sessions:
        state = fold_all(SessionState.initial(session.record), logs[session.id])
        assert state == await session.refresh()
        for reader in (*AGENTS, *PEOPLE):
            for where, text in (await read_all(session, reader)).items():
                judge.check(reader, text, where)
            # What all may know: nothing that only some have heard may have got there.
            judge.check(reader, str(dict(state.context_vars)), "context")
    for reader, items in world.live.items():
        judge.check(reader, str(items), "stream")
    for name, prompt in world.prompts:
        judge.check(INSIDE.get(name, name), prompt, f"a prompt of {name}")
    for summary in await hub.log.sessions():
        inner = await hub.get(summary.session_id)
        if inner.record.serves:
            for reader in {*PEOPLE} & {*inner.record.people}:
                text = str([one.to_dict() for one in await inner.history(reader=reader)])
                judge.check(reader, text, "an inner session")


@pytest.mark.timeout(240)  # on a busy machine
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 6))
def test_what_is_said_in_private_reaches_nobody_else(seed: int, steps: int) -> None:
    asyncio.run(play(seed, steps))


def test_the_talks_reach_what_they_are_meant_to() -> None:
    """Guard the test above: a talk in which nothing is private shows nothing."""
    worlds = [asyncio.run(play(seed, 5)) for seed in range(12)]
    said = [mark for world in worlds for mark in world.said_in]
    private = [one for world in worlds for one in world.said_to.values() if one is not None]
    assert len(said) > 100 and len(private) > 10
    assert any(world.remarks for world in worlds)
    assert any(name in INSIDE for world in worlds for name, _ in world.prompts)
