"""Whatever happens to a session, and in whatever order: its state is what its log folds to."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from random import Random  # noqa: TID251 - a seeded one
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Guards, effect
from agentgraph.errors import AgentGraphError
from agentgraph.guards import Backoff, CostBudget
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import (
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.sessions import (
    EV_AUDIT,
    EV_CANCELLED,
    EV_CONTEXT_SET,
    EV_DECISION,
    EV_EXPECTATION_VIOLATED,
    EV_HANDOFF,
    EV_INTERRUPT,
    EV_PACKET,
    EV_REWOUND,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_LEFT,
    EV_SESSION_RELEASED,
    EV_TEXT,
    Draft,
    Envelope,
    Expectation,
    Hub,
    Priority,
    Session,
    SessionState,
    Team,
    packet_envelope,
    set_context,
    text_envelope,
)
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.state import state as states
from agentgraph.sessions.state.fold import fold_all
from agentgraph.testing import FakeClock, Fault, ScriptedModel, call
from tests.sessions.talk import PATIENCE_S

LEASE_S = 30.0
EVERY = 6
"""How often there is a milestone."""
AGENTS = ("a", "b", "c")

MOVES = {
    "say": 3.0,
    "write": 3,
    "pass": 2,
    "human": 1,
    "ask": 2,
    "end": 0.2,
    "fail": 1,
    "falter": 0.5,
    "mute": 1,
    "act": 1,
    "circle": 0.5,
}
"""What models do when it is their turn, and how often."""
STEPS = {
    "send": 8.0,
    "set": 1,
    "delete": 0.5,
    "decide": 3,
    "leave": 0.3,
    "release": 1.5,
    "cancel": 0.7,
    "rewind": 0.7,
    "pause": 4,
    "settle": 2,
    "crash": 1.5,
    "pass time": 0.7,
    "close": 0.15,
}
"""What is done from outside, and how often."""


def scripted(seed: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return what models do, and what is done from outside."""
    random = Random(seed)
    does = random.choices([*MOVES], [*MOVES.values()], k=20)
    names = random.choices([*STEPS], [*STEPS.values()], k=random.randint(3, 18))
    return does, [SEND, *(_step(name, random) for name in names)]


def _step(name: str, random: Random) -> tuple[Any, ...]:
    match name:
        case "send":
            sender = random.choice(["user"] * 6 + ["guest", "a", "c", "mallory"])
            audience = random.choice([None, None, None, (), ("a",), ("guest", "b")])
            key = random.choice([None, None, None, "key 1", "key 2"])
            kind = random.choice(["text"] * 4 + ["packet", "handoff", "event", "settled"])
            return (name, sender, audience, random.choice([*Priority]), key, kind)
        case "set":
            return (name, random.choice("xy"), random.randint(0, 3))
        case "delete":
            return (name, random.choice("xy"))
        case "decide":
            return (name, random.choice(["yes", "no"]))
        case "leave":
            return (name, random.choice(["b", "guest"]))
        case "release":
            return (name, random.choice([None, "b", "mallory"]))
        case "rewind":
            return (name, random.random())
        case "pause":
            return (name, random.randint(0, 120))
        case "pass time":
            return (name, random.choice([1, 20, 70, 130]))
        case _:
            return (name,)


SEND = ("send", "user", None, Priority.NORMAL, None, "text")


@pytest.fixture(autouse=True)
def _milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MILESTONE_EVERY", EVERY)


class World:
    """A store, the hubs that come and go on it, and one session."""

    def __init__(self, kind: str, folder: str, durability: Any, does: Sequence[str]) -> None:
        self.clock = FakeClock()
        self.url = f"sqlite:///{Path(folder) / 's.db'}" if kind == "sqlite" else None
        self.memory, self.saver = MemoryLog(), InMemorySaver()
        self.does = iter(does)
        self.circles = count(1)
        self.durability = durability
        self.accepted: dict[str, str] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.refused: list[AgentGraphError] = []
        self.hub: Hub
        self.session: Session

    @cached_property
    def team(self) -> Team:
        """The team, which takes longer to build than to play."""
        agents = [
            Agent(name, model=ScriptedModel(self._turn), tools=TOOLS, default_tools=False)
            for name in AGENTS
        ]
        rules = TransitionGraph(
            "a",
            [
                Transition(ContextEquals("x", 3), ParallelTarget(("a", "b"), "c")),
                Transition(FromSpeaker("a"), "b"),
                Transition(FromSpeaker("user"), "c"),
            ],
            HumanTarget(),
            max_turns=25,
        )
        expected = [Expectation("turn_within", 60.0), Expectation("max_silence", 100.0, "audit")]
        return Team(
            agents,
            rules,
            name="team",
            humans=["guest"],
            expectations=expected,
            durability=self.durability,
            # Nobody waits before it is tried again, and a tenth of the budget is one model call.
            guards=Guards.interactive(backoff=Backoff(base_s=0), budget=CostBudget(tokens=11_000)),
        )

    def _turn(self, messages: Any) -> Any:
        last = messages[-1]
        if last.type == "tool" and last.text != IN_A_CIRCLE:
            return "and so on"
        if last.type == "tool" and next(self.circles) % 8:
            return call("circle")
        match next(self.does, "say"):
            case "write" | "pass" | "human" | "ask" | "end" | "act" | "circle" as name:
                return call(name)
            case "falter":
                return Fault.server_error()
            case "fail":
                return RuntimeError("down")
            case "mute":
                return ""
            case _:
                return "something"

    async def open(self) -> None:
        if self.url is not None:
            self.hub = await Hub.open(
                self.url, serve=[self.team], clock=self.clock, lease_s=LEASE_S
            )
        else:
            self.hub = Hub(self.memory, self.saver, [self.team], LEASE_S)
            await self.hub.start(self.clock)
        self.session = await self.hub.session("team", id="s", ttl="10m")

    async def crash(self) -> None:
        """Drop the hub where it stands; its lease runs out, and another one comes."""
        hub = self.hub
        hub._unsubscribe()
        while tasks := list(hub._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        hub._is_closed = True
        if self.url is not None:
            await hub.log.close()
        self.clock.advance(LEASE_S + 1)
        await self.open()

    async def settle(self) -> None:
        await self.session.settled()
        await self.check()

    async def check(self) -> None:
        """Compare what is live, what is stored and what is fold_all."""
        hub, session = self.hub, self.session
        log = await hub.log.read("s")
        assert [one.sequence for one in log] == list(range(1, len(log) + 1))
        state = fold_all(SessionState.initial(session.record), log)
        stored = await hub.log.load("s")
        assert stored is not None and stored.state == state and stored.head == len(log)
        assert session.state == state
        await self.check_past(log)
        again = [Envelope.from_dict(json.loads(json.dumps(one.to_dict()))) for one in log]
        assert again == log
        ids = [one.envelope_id for one in log]
        assert len(set(ids)) == len(ids)
        instants = [one.created_at for one in log]
        assert instants == sorted(instants)
        rounds = [
            _key(one) for one in log if "round" in one.event_data and one.event_type == EV_PACKET
        ]
        assert len(set(rounds)) == len(rounds)
        closes = [one.sequence for one in log if one.event_type == EV_SESSION_CLOSED]
        assert closes in ([], [len(log)]) and bool(closes) == state.is_ended
        # Nothing that was accepted is missing.
        waiting = {one.envelope_id for one in await hub.log.inbox("s")}
        missing = {key: self.accepted[key] for key in self.accepted.keys() - {*ids}}
        if state.status in ("waiting_decision", "pending"):
            missing = {key: text for key, text in missing.items() if key not in waiting}
        else:
            assert not waiting
        assert not missing

    async def check_past(self, log: Sequence[Envelope]) -> None:
        """Compare the state at each sequence, from a milestone on, with what was before it."""
        own_log, record = self.hub.log, self.session.record
        state = SessionState.initial(record)
        milestones: dict[int, SessionState] = {}
        for sequence in range(len(log) + 1):
            state = fold_all(state, log[sequence - 1 : sequence] if sequence else ())
            assert await state_at(own_log, record, sequence) == state
            milestone = await own_log.milestone("s", sequence)
            if milestone is not None and milestone.sequence == sequence:
                milestones[sequence] = milestone
                assert milestone == state
        for sequence, milestone in milestones.items():
            assert fold_all(milestone, log[sequence:]) == state
        assert len(log) < EVERY or milestones

    async def do(self, step: Sequence[Any]) -> None:
        """Do one thing; what is refused is refused with a type of ours."""
        try:
            await self._do(step)
        except AgentGraphError as error:
            self.refused.append(error)

    async def _do(self, step: Sequence[Any]) -> None:  # noqa: C901
        session = self.session
        match step:
            case ("send", *how):
                await self._send(*how)
            case ("set", key, value):
                await session.set_context(key, value)
                await self.check_if_resting()
            case ("delete", key):
                await session.delete_context(key)
            case ("decide", answer):
                for asked in list(session.state.interrupts)[:1] or ["nothing"]:
                    await session.decide(asked, answer)
            case ("leave", name):
                await session.leave(name)
            case ("release", name):
                await session.release(name)
            case ("cancel",):
                await session.cancel()
            case ("rewind", part):
                await session.rewind(1 + round(part * (session.state.sequence - 1)))
            case ("pause", turns):
                for _ in range(turns):
                    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait
            case ("settle",):
                await self.settle()
            case ("crash",):
                await self.crash()
            case ("pass time", seconds):
                self.clock.advance(seconds)
            case ("close",):
                await session.close()

    async def check_if_resting(self) -> None:
        driver = self.hub.drivers.get("s")
        if driver is None or driver.is_resting:
            await self.check()

    async def _send(
        self, sender: str, audience: Any, priority: Priority, key: str | None, kind: str
    ) -> None:
        given: dict[str, Any] = {"audience": audience, "priority": priority, "idempotency_key": key}
        text = f"{sender} {len(self.accepted)}"
        match kind:
            case "packet":
                draft: Any = packet_envelope(text, context_set={"y": text}, **given)
            case "handoff":
                draft = packet_envelope(text, handoff=Handoff("c", "because"), **given)
            case "event":
                draft = Draft("my.event", {"text": text}, **given)
            case _:
                draft = text_envelope(text, **given)
        receipt = await self.session.send(sender, draft)
        if key is not None:
            assert self.keys.setdefault((sender, key), receipt.id) == receipt.id
        self.accepted[receipt.id] = text
        if kind == "settled" and self.session.state.status == "active":
            await self.settle()


def _key(packet: Envelope) -> tuple[int, str]:
    return packet.event_data["round"], packet.sender_id


@tool
def write() -> str:
    """Write."""
    set_context("x", 3)
    set_context("y", [1, {"z": None}])
    return "written"


@tool("pass")
def pass_on() -> Handoff:
    """Pass on."""
    return Handoff("c", "because", "so far")


@tool
def human() -> Handoff:
    """Ask for a human."""
    return Handoff("human", "because")


@tool
def ask() -> str:
    """Ask."""
    return f"the answer is {interrupt('may I?')}"


@tool
def end() -> Finish:
    """End."""
    return Finish("that is all")


IN_A_CIRCLE = "nothing new"


@tool
def circle() -> str:
    """Circle."""
    return IN_A_CIRCLE


@effect
@tool
def act() -> str:
    """Act."""
    return "acted"


TOOLS = [write, pass_on, human, ask, end, act, circle]


async def play(world: World, script: Sequence[Sequence[Any]]) -> World:
    async with asyncio.timeout(PATIENCE_S):
        await world.open()
        try:
            await world.session.join("guest")
            for step in script:
                await world.do(step)
            await world.settle()
            await world.crash()  # and whoever comes next finds the same
            await world.settle()
        finally:
            await world.hub.aclose()
    return world


def played(kind: str, durability: str, does: Sequence[str], script: Sequence[Any]) -> World:
    errors, log = Errors(), logging.getLogger("agentgraph")
    log.addHandler(errors)
    try:
        with TemporaryDirectory() as folder:
            world = asyncio.run(play(World(kind, folder, durability, does), script))
    finally:
        log.removeHandler(errors)
    assert errors.told == []  # nothing had to be tried again
    return world


class Errors(logging.Handler):
    """What was logged as an error: a fault of the hub's own, and not of a model or a tool."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


PLAYED: list[tuple[list[str], list[tuple[Any, ...]]]] = [
    (["ask"], [SEND, ("settle",), SEND, ("crash",), ("decide", "yes")]),
    (["ask"], [SEND, ("pause", 40), ("crash",), ("settle",), ("decide", "yes"), SEND]),
    (["write"], [SEND, ("pause", 30), ("crash",), SEND, ("settle",), SEND]),
    (["human"], [SEND, ("settle",), ("release", "b"), ("settle",), SEND]),
    (["fail", "fail"], [SEND, SEND, ("settle",), SEND]),
    (["ask"], [SEND, ("settle",), ("pass time", 700)]),
    (["ask"], [SEND, ("settle",), ("cancel",), ("settle",), SEND]),
    (["ask"], [SEND, ("settle",), ("rewind", 1.0), ("decide", "yes"), ("settle",)]),
    (["write"], [SEND, ("pause", 40), ("rewind", 0.7), ("crash",), SEND, ("settle",)]),
    (["act"], [SEND, ("pause", 60), ("cancel",), ("crash",), SEND, ("settle",)]),
    (["act", "circle"], [SEND, ("pause", 40), ("crash",), SEND, ("settle",), SEND]),
    (
        [],
        [("set", "x", 3), SEND, ("leave", "b"), ("settle",), SEND, ("pass time", 130), ("settle",)],
    ),
]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("durability", ["round", "step"])
@pytest.mark.parametrize("script", PLAYED)
def test_the_live_state_is_what_the_log_folds_to(
    kind: str, durability: str, script: tuple[list[str], list[tuple[Any, ...]]]
) -> None:
    played(kind, durability, *script)


@pytest.mark.timeout(240)  # on a busy machine
@pytest.mark.parametrize("durability", ["round", "step"])
@settings(max_examples=150)
@example(seed=147232)  # one who is asked, and a parallel speaker who leaves as the answer comes
@given(seed=st.integers(0, 2**32))
def test_in_memory_it_is_so_for_random_interleavings(durability: str, seed: int) -> None:
    played("memory", durability, *scripted(seed))


@pytest.mark.timeout(240)  # on a busy machine
@pytest.mark.parametrize("durability", ["round", "step"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_in_a_file_it_is_so_for_random_interleavings(durability: str, seed: int) -> None:
    played("sqlite", durability, *scripted(seed))


def test_the_interleavings_reach_what_they_are_meant_to() -> None:
    """Guard the tests above: a script in which nothing happens shows nothing."""
    reached: Counter[str] = Counter()
    for seed in range(60):
        world = played("memory", "round", *scripted(seed))
        log = asyncio.run(world.memory.read("s"))
        reached.update(one.event_type for one in log)
        reached.update(_told(one) for one in log if one.event_type == EV_AUDIT)
    assert reached[EV_PACKET] > 100
    for told in (
        EV_TEXT,
        EV_CONTEXT_SET,
        EV_HANDOFF,
        EV_INTERRUPT,
        EV_DECISION,
        EV_ROUND_FAILED,
        EV_CANCELLED,
        EV_REWOUND,
        EV_EXPECTATION_VIOLATED,
        EV_SESSION_RELEASED,
        EV_SESSION_LEFT,
        EV_SESSION_CLOSED,
        *("reserved", "effect started", "effect done"),
        *("loop_detector: correct", "loop_detector: abort"),
    ):
        assert reached[told], told


def _told(audit: Envelope) -> str:
    data = audit.event_data
    if data["kind"] == "effect":
        return f"effect {data['entry']['state']}"
    return f"{data['guard']}: {data['action']}" if data["kind"] == "decision" else data["kind"]
