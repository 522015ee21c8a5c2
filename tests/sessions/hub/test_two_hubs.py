"""Two hubs on one store: each session has one owner at a time, and everybody may take part."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Team
from agentgraph.errors import AlreadyDecided, SessionClosed
from agentgraph.routing import Always, FromSpeaker, HumanTarget, Transition, TransitionGraph
from agentgraph.sessions import (
    EV_INTERRUPT,
    EV_PACKET,
    EV_SESSION_CLOSED,
    EV_TEXT,
    Envelope,
    Hub,
    MemoryLog,
    Session,
    SessionState,
    open_log,
)
from agentgraph.sessions.state.fold import fold_all
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.crashing import SAID, Ledger, chatting, team_of
from tests.sessions.kills import Pen, Played, checkpoint_rows, faults, pen

PATIENCE_S = 30
SENDS = 60

Open: TypeAlias = Any


@pytest.fixture(scope="module")
def one() -> Iterator[Pen]:
    with pen() as kept:
        yield kept


@pytest.fixture(scope="module")
def other() -> Iterator[Pen]:
    with pen() as kept:
        yield kept


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the test's own, that outlives its processes."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue("postgres").url)


@pytest.fixture
async def opened(log_url: str) -> AsyncIterator[Open]:
    """Open hubs on one store, whose clock stands still: no hub looks around by itself."""
    memory, clock = MemoryLog(), FakeClock(1_700_000_000)
    async with AsyncExitStack() as stack:

        async def opened(*teams: Team) -> Hub:
            if log_url != "memory":
                hub = await Hub.open(log_url, serve=teams, clock=clock)
            else:
                hub = Hub(memory, InMemorySaver(), teams, 30.0)
                await hub.start(clock)
            return await stack.enter_async_context(hub)

        yield opened


@asynccontextmanager
async def patient() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


def answering(*, asks: bool = False) -> Team:
    """Return somebody who answers each time, and may ask first."""

    def ask() -> str:
        """Ask a human."""
        return f"they say {interrupt('may I?')}"

    def turn(messages: Any) -> Any:
        is_asked = asks and messages[-1].type == "human"
        return call("ask") if is_asked else f"answer: {messages[-1].text}"

    clerk = Agent("clerk", model=ScriptedModel(turn), tools=[ask], default_tools=False)
    rules = [Transition(FromSpeaker("clerk"), HumanTarget()), Transition(Always(), "clerk")]
    return Team([clerk], TransitionGraph("clerk", rules), name="answering", expectations=())


def by_ownership(one: Hub, other: Hub) -> tuple[Hub, Hub]:
    """Return who has the session, and who has not: whichever of them was the first to take it."""
    return (one, other) if one.drivers.owned_session("s") is not None else (other, one)


async def test_what_two_processes_send_into_one_session_is_neither_lost_nor_doubled(
    one: Pen, other: Pen, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    for kept, who in ((one, "a"), (other, "b")):
        kept.begin(run="chat", url=url, ledger=ledger.path, session="s", who=who, count=SENDS)
    for kept in (one, other):
        await asyncio.to_thread(kept.until, "sent")
    async with patient(), await Hub.open(url, serve=[chatting(ledger)]) as hub:
        session = await hub.get("s")
        await session.settled()
        await session.close()
        envelopes = await session.history()
    for kept in (one, other):
        told = await asyncio.to_thread(kept.until, "seen")
        assert told["seen"] == [[one.sequence, one.envelope_id] for one in envelopes]
        assert told["ended"]
        assert kept.until("ended")["ended"] == 0, kept.complaints()
    said = [one.text for one in envelopes if one.event_type == EV_TEXT]
    for who in ("a", "b"):
        assert [text for text in said if text.startswith(who)] == [
            f"{who}-{number}" for number in range(SENDS)
        ]
    assert len(said) == 2 * SENDS
    rounds = [one.event_data["round"] for one in envelopes if one.event_type == EV_PACKET]
    assert rounds and Counter(rounds).most_common(1)[0][1] == 1
    # A round that broke off, as its hub closed, has not been paid twice when it ran again.
    assert [(number, what) for number, what, _ in ledger.entries()] == [
        (number, "tea") for number in rounds
    ]
    assert [one.sequence for one in envelopes] == [*range(1, len(envelopes) + 1)]
    assert fold_all(SessionState.initial(session.record), envelopes) == session.state


async def test_what_is_sent_through_another_hub_is_heard_at_once(opened: Open) -> None:
    hubs = await opened(answering()), await opened(answering())
    session = await hubs[0].session("answering", id="s", ttl=None)
    async with patient():
        await session.send("user", "first")
        await session.settled()
        owning, looking_on = by_ownership(*hubs)
        elsewhere = await looking_on.get("s")
        for number in range(5):
            said = await elsewhere.send("user", f"hello {number}", admitted=True)
            assert said.text == f"hello {number}"
            assert (await elsewhere.settled()).status == "waiting_human"
    assert (
        owning.drivers.owned_session("s") is not None
        and looking_on.drivers.owned_session("s") is None
    )
    talk = [one.text for one in await session.history() if one.is_substantive]
    assert talk[2::2] == [f"hello {number}" for number in range(5)]
    assert len(talk) == 12


async def test_what_is_decided_set_and_closed_through_another_hub_is_done_by_the_owner(
    opened: Open,
) -> None:
    hubs = await opened(answering(asks=True)), await opened(answering(asks=True))
    session = await hubs[0].session("answering", id="s", ttl=None)
    async with patient():
        await session.send("user", "do it")
        assert (await session.settled()).status == "waiting_decision"
        owning, looking_on = by_ownership(*hubs)
        elsewhere = await looking_on.get("s")
        [asked] = elsewhere.state.interrupts
        await elsewhere.decide(asked, "yes")
        await elsewhere.settled()
        for late in (session, elsewhere):
            with pytest.raises(AlreadyDecided, match="user has answered 'yes'"):
                await late.decide(asked, "no")
        await elsewhere.set_context("tier", "gold")
        assert (await session.refresh()).context_vars == {"tier": "gold"}
        assert owning.drivers.owned_session("s") is not None
        await elsewhere.close("enough")
        assert (await session.settled()).pending_close_reason == "enough"
        with pytest.raises(SessionClosed):
            await elsewhere.send("user", "too late")
    [packet] = [one for one in await session.history() if one.event_type == EV_PACKET]
    assert packet.text == "answer: they say yes"


async def test_a_watch_on_another_hub_yields_everything_in_order(opened: Open) -> None:
    owning, looking_on = await opened(answering()), await opened(answering())
    session = await owning.session("answering", id="s", ttl=None)
    elsewhere = await looking_on.get("s")
    watching = asyncio.ensure_future(_all(elsewhere))
    async with patient():
        for number in range(20):
            through = session if number % 2 else elsewhere
            await through.send("user", str(number))
        await session.settled()
        await elsewhere.close()
        assert await watching == await session.history()


async def _all(session: Session) -> list[Envelope]:
    return [one async for one in session.watch()]


async def test_a_hub_that_closes_in_mid_round_hands_it_over_without_a_crash(
    opened: Open, tmp_path: Path
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    begun = asyncio.Event()

    def team(gate: asyncio.Event) -> Team:
        async def turn(messages: Any) -> str:
            begun.set()
            await gate.wait()
            return "done"

        clerk = Agent("clerk", model=ScriptedModel(turn), default_tools=False)
        return Team([clerk], TransitionGraph("clerk"), name="slow", expectations=())

    async with patient():
        hubs = [await opened(team(gate)) for gate in gates]
        session = await hubs[0].session("slow", id="s", ttl=None)
        elsewhere = await hubs[1].get("s")
        gates[1].set()
        await session.send("user", "go")
        await begun.wait()
        await hubs[0].aclose()
        # No clock moves: it is told of, and taken over at once.
        assert (await elsewhere.settled()).status == "closed"
    [packet] = [one for one in await elsewhere.history() if one.event_type == EV_PACKET]
    assert packet.event_data["attempt"] == 1


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_hub_that_was_frozen_past_its_lease_writes_nothing_more(
    one: Pen, url: str, tmp_path: Path, durability: str
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    async with patient(), frozen(one, url, ledger, durability, says=1) as (hub, wake):
        session = await hub.get("s")
        assert (await session.settled()).turn_count == 3
        before = await session.history()
        assert checkpoint_rows(url, "s") == 0
        wake()
        # It ends its tools, which pay nothing twice, and finds out that the round was another's.
        assert (await asyncio.to_thread(one.until, "writes"))["status"] == "waiting_human"
        assert (await asyncio.to_thread(one.until, "ended"))["ended"] == 0, one.complaints()
        assert await session.history() == before
        assert checkpoint_rows(url, "s") == 0
        assert [what for _, what, _ in ledger.entries()] == ["milk", "tea", "bread", "jam"]


async def test_what_a_hub_sends_that_was_frozen_past_its_lease_is_heard_by_the_new_owner(
    one: Pen, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    async with patient(), frozen(one, url, ledger, "round", says=2) as (hub, wake):
        session = await hub.get("s")
        await session.settled()
        before = await session.history()
        wake()
        assert (await asyncio.to_thread(one.until, "writes"))["status"] == "closed"
        assert (await asyncio.to_thread(one.until, "ended"))["ended"] == 0, one.complaints()
        envelopes = await session.history()
    assert envelopes[: len(before)] == before
    assert envelopes[len(before)].text == SAID[1]
    assert envelopes[-1].event_type == EV_SESSION_CLOSED
    assert await faults(Played(url, ledger.path, "s", "turns")) == []


@asynccontextmanager
async def frozen(
    kept: Pen, url: str, ledger: Ledger, durability: str, **order: Any
) -> AsyncIterator[tuple[Hub, Callable[[], None]]]:
    """Freeze a process in the middle of a round, and open a hub that may take it over."""
    gate = f"{ledger.path}-gate"
    os.mkfifo(gate)
    order |= {"url": url, "ledger": ledger.path, "session": "s", "kind": "turns"}
    kept.begin(**order, durability=durability, lease_s=1.0, gate=gate)
    await asyncio.to_thread(kept.until, "gate")
    kept.freeze()
    pipe = os.open(gate, os.O_RDWR)  # so that the gate opens; what is read ends when this does
    os.unlink(gate)

    def wake() -> None:
        kept.signal(signal.SIGCONT)
        os.close(pipe)

    team = team_of("turns", ledger, durability)
    async with await Hub.open(url, serve=[team]) as hub:
        yield hub, wake


async def test_the_sessions_of_a_dead_owner_are_taken_over_at_once(
    one: Pen, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    order = {"url": url, "ledger": ledger.path, "session": "s", "kind": "asked"}
    one.begin(**order, durability="round", lease_s=1e9)
    await asyncio.to_thread(one.until, "round")
    one.kill()
    # A hub whose clock stands still: neither does a lease run out, nor does it look again.
    async with (
        patient(),
        await Hub.open(url, serve=[team_of("asked", ledger)], clock=FakeClock(1_700_000_000)),
    ):
        log = open_log(url)
        await log.open()
        types: list[str] = []
        while EV_INTERRUPT not in types:
            types = [one.event_type for one in await log.read("s")]
        await log.close()
    assert Counter(types)[EV_PACKET] == 1
