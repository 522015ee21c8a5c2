"""Sessions that go on in another hub: what waited still waits, and what was begun is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langgraph.types import interrupt

from agentgraph import Agent, Team
from agentgraph.errors import Quarantined
from agentgraph.routing import (
    Always,
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionGraph,
    default_registry,
    register_condition,
)
from agentgraph.sessions import (
    EV_PACKET,
    EV_ROUND_FAILED,
    Envelope,
    Hub,
    Session,
    SessionState,
    open_log,
)
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.crashing import REASON, Ledger, team_of
from tests.sessions.kills import Pen, pen

PATIENCE_S = 30
KILLED = 9

OpenHub = Callable[..., AbstractAsyncContextManager[Hub]]


@pytest.fixture(scope="module")
def kept() -> Iterator[Pen]:
    with pen() as kept:
        yield kept


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the test's own, that outlives its hubs."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sessions.db'}"
    return str(request.getfixturevalue("postgres").url)


async def settled(session: Session) -> SessionState:
    async with asyncio.timeout(PATIENCE_S):
        return await session.settled()


def asking(*, times: int = 1) -> Team:
    """Return somebody who asks before each answer."""

    def ask() -> str:
        """Ask a human."""
        return ", ".join(str(interrupt(f"may I? ({n})")) for n in range(times))

    def turn(messages: Any) -> Any:
        return call("ask") if messages[-1].type == "human" else f"you said {messages[-1].text}"

    clerk = Agent("clerk", model=ScriptedModel(turn), tools=[ask], default_tools=False)
    rules = [Transition(FromSpeaker("clerk"), HumanTarget()), Transition(Always(), "clerk")]
    return Team([clerk], TransitionGraph("clerk", rules), name="asking", expectations=())


async def talk(session: Session) -> list[str]:
    return [one.text for one in await session.history() if one.is_substantive]


async def test_a_question_outlives_its_hub_and_what_is_said_meanwhile_waits(url: str) -> None:
    async with await Hub.open(url, serve=[asking()]) as hub:
        session = await hub.session("asking", id="s", ttl=None)
        await session.send("user", "do it")
        assert (await settled(session)).status == "waiting_decision"
    async with await Hub.open(url, serve=[asking()]) as hub:
        session = await hub.get("s")
        await session.send("user", "well?")
        assert (await settled(session)).status == "waiting_decision"
        assert await talk(session) == ["do it"]
    async with await Hub.open(url, serve=[asking()]) as hub:
        session = await hub.get("s")
        [asked] = session.state.interrupts
        await session.decide(asked, "yes")
        # What had waited is the next input, about which it asks again.
        assert (await settled(session)).status == "waiting_decision"
        assert await talk(session) == ["do it", "you said yes", "well?"]
        [asked] = session.state.interrupts
        await session.decide(asked, "no")
        assert (await settled(session)).status == "waiting_human"
        assert (await talk(session))[-1] == "you said no"
    await nothing_is_left(url)


async def test_a_question_is_decided_by_a_hub_that_cannot_run_the_session(url: str) -> None:
    async with await Hub.open(url, serve=[asking()]) as hub:
        session = await hub.session("asking", id="s", ttl=None)
        await session.send("user", "do it")
        [asked] = (await settled(session)).interrupts
    owning, other = await Hub.open(url, serve=[asking()]), await Hub.open(url, serve=[asking()])
    async with owning, other:
        here, there = await owning.get("s"), await other.get("s")
        await there.send("user", "well?")
        await there.decide(asked, "yes")
        assert (await settled(here)).status == "waiting_decision"
        assert await talk(here) == ["do it", "you said yes", "well?"]
        # Both see the same, whoever of them drives it.
        assert (await there.refresh()) == (await here.refresh())


async def test_a_tool_that_asks_twice_is_answered_over_restarts(url: str) -> None:
    async with await Hub.open(url, serve=[asking(times=2)]) as hub:
        session = await hub.session("asking", id="s", ttl=None)
        await session.send("user", "do it")
        await settled(session)
    for decision in ("yes", "no"):
        async with await Hub.open(url, serve=[asking(times=2)]) as hub:
            session = await hub.get("s")
            open_ = [k for k, one in session.state.interrupts.items() if "decision" not in one]
            assert len(open_) == 1, session.state.interrupts
            await session.decide(open_[0], decision)
            await settled(session)
    async with await Hub.open(url, serve=[asking(times=2)]) as hub:
        assert (await talk(await hub.get("s")))[-1] == "you said yes, no"


# Those that cannot run.


def slow(gate: asyncio.Event, *, name: str = "slow", condition: Any = None) -> Team:
    """Return two who speak once each, the first at the gate."""

    async def turn(messages: Any) -> str:
        await gate.wait()
        return "first"

    agents = [
        Agent("one", model=ScriptedModel(turn), default_tools=False),
        Agent("two", model=ScriptedModel(lambda messages: "second"), default_tools=False),
    ]
    rules = [Transition(condition or FromSpeaker("one"), "two")]
    return Team(agents, TransitionGraph("one", rules), name=name, expectations=())


async def begun(url: str, team: Team) -> None:
    """Begin a session whose first round is broken off."""
    async with await Hub.open(url, serve=[team]) as hub:
        session = await hub.session(team, id="s", ttl=None)
        await session.send("user", "go", admitted=True)


def through() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


async def test_a_session_whose_team_is_not_registered_is_readable_and_waits_for_it(
    url: str,
) -> None:
    await begun(url, slow(asyncio.Event()))
    async with await Hub.open(url) as hub:
        session = await hub.get("s")
        assert await talk(session) == ["go"]
        with pytest.raises(Quarantined, match=r"'slow'.*give it to Hub\.open"):
            await settled(session)
        assert session.quarantine is not None and "'slow'" in str(session.quarantine)
        with pytest.raises(Quarantined, match="'slow'"):
            await session.send("user", "are you there?")
        hub.register(slow(through()))
        assert (await settled(session)).status == "closed"
        assert await talk(session) == ["go", "first", "second"]


async def test_a_resting_session_whose_team_is_registered_later_can_be_sent_to(url: str) -> None:
    async with await Hub.open(url, serve=[asking()]) as hub:
        await hub.session("asking", id="s", ttl=None)
    async with await Hub.open(url, clock=FakeClock()) as hub:
        session = await hub.get("s")
        with pytest.raises(Quarantined):
            await settled(session)
        hub.register(asking())
        await session.send("user", "go")
        assert (await settled(session)).status == "waiting_decision"


async def test_a_session_that_lacks_an_agent_names_it_and_goes_on_once_it_is_back(
    url: str,
) -> None:
    await begun(url, slow(asyncio.Event()))
    alone = Agent("one", model=ScriptedModel(["hello"]), default_tools=False)
    async with await Hub.open(
        url, serve=[Team([alone], TransitionGraph("one"), name="slow")]
    ) as hub:
        session = await hub.get("s")
        with pytest.raises(Quarantined, match=r"'two'.*give the team back its agents"):
            await settled(session)
        assert await talk(session) == ["go"]
    async with await Hub.open(url, serve=[slow(through())]) as hub:
        session = await hub.get("s")
        assert (await settled(session)).status == "closed"
        assert await talk(session) == ["go", "first", "second"]


class Whenever:
    """A condition of somebody's own."""

    name: ClassVar[str] = "whenever"

    def evaluate(self, state: Any, envelope: Any) -> bool:
        return bool(envelope.sender_id == "one")


async def test_a_session_whose_condition_is_not_registered_names_it_and_goes_on_once_it_is(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_registry(), "_conditions", dict(default_registry().conditions))
    await begun(url, slow(asyncio.Event(), condition=Whenever()))
    # The same agents, under other rules by now; a stored session keeps those it was begun with.
    async with await Hub.open(url, serve=[slow(through())]) as hub:
        session = await hub.get("s")
        with pytest.raises(Quarantined, match="whenever"):
            await settled(session)
        assert await talk(session) == ["go"]
        register_condition(Whenever)
        while not (await session.refresh()).is_ended:
            await hub.log.next_due()  # it is looked at again by itself
        assert await talk(session) == ["go", "first", "second"]


# Those that kill.


async def nothing_is_left(url: str, session: str = "s") -> None:
    log = open_log(url)
    await log.open()
    assert await log.inbox(session) == []
    assert session not in await log.unfinished_sessions(0.0)
    await log.close()


def die(kept: Pen, url: str, ledger: Ledger, kind: str, **order: Any) -> dict[str, Any]:
    """Have a process play the session; return how it ended."""
    order = {"durability": "round", "poison": True, **order}
    kept.begin(url=url, ledger=ledger.path, session="s", kind=kind, **order)
    return kept.until("ended", "writes")


async def failed(url: str) -> tuple[SessionState, list[Envelope]]:
    log = open_log(url)
    await log.open()
    stored = await log.load("s")
    assert stored is not None and stored.state is not None
    found = [one for one in await log.read("s") if one.event_type == EV_ROUND_FAILED]
    await log.close()
    return stored.state, found


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_round_that_kills_its_process_each_time_is_given_up(
    kept: Pen, url: str, tmp_path: Path, durability: str
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    for _ in range(5):
        assert die(kept, url, ledger, "turns", durability=durability)["ended"] == KILLED
    assert die(kept, url, ledger, "turns", durability=durability)["status"] == "closed"
    kept.until("ended")
    state, [told] = await failed(url)
    assert state.pending_close_reason == "round_failed"
    assert (told.event_data["code"], told.event_data["speaker"]) == ("crashed", "alice")
    await nothing_is_left(url)


async def test_a_decision_whose_round_kills_its_process_each_time_is_given_up(
    kept: Pen, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    assert die(kept, url, ledger, "asked", poison=False)["status"] == "waiting_decision"
    kept.until("ended")
    deaths = 0
    while (told := die(kept, url, ledger, "asked")).get("ended") == KILLED:
        deaths += 1
    assert (told["status"], deaths) == ("closed", 5)
    kept.until("ended")
    state, [failure] = await failed(url)
    assert state.pending_close_reason == "round_failed"
    assert (failure.event_data["code"], failure.event_data["speaker"]) == ("crashed", "bob")


async def test_a_round_that_was_handed_over_first_is_given_up_too(
    kept: Pen, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    gate = asyncio.Event()
    held = team_of("turns", ledger)
    for _ in range(7):  # to hand it over counts as nothing, however often
        async with await Hub.open(url, serve=[_waiting(held, gate)]) as hub:
            session = await hub.session("turns", id="s", ttl=None)
            await session.send("user", "pay, please", idempotency_key="said-0", admitted=True)
            await _is_at(gate)
    deaths = 0
    while (told := die(kept, url, ledger, "turns")).get("ended") == KILLED:
        deaths += 1
    assert (told["status"], deaths) == ("closed", 5)
    kept.until("ended")
    assert (await failed(url))[0].pending_close_reason == "round_failed"


def _waiting(team: CompiledTeam, gate: asyncio.Event) -> CompiledTeam:
    """Return a team whose agents tell that they have begun, and go no further."""

    async def turn(messages: Any) -> str:
        gate.set()
        await asyncio.Event().wait()
        return "never"

    agents = [Agent(name, model=ScriptedModel(turn)) for name in team.names]
    return Team(agents, team.rules, name=team.name, expectations=())


async def _is_at(gate: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await gate.wait()
    gate.clear()


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_what_was_unfinished_at_a_kill_goes_on_without_being_asked(
    kept: Pen, url: str, tmp_path: Path, durability: str
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    order = {"url": url, "ledger": ledger.path, "session": "s", "kind": "turns"}
    kept.begin(**order, durability=durability)
    for _ in range(4):  # in the second lap, after which it closes
        await asyncio.to_thread(kept.until, "round")
    kept.kill()
    team = team_of("turns", ledger, durability)
    async with asyncio.timeout(PATIENCE_S), await Hub.open(url, serve=[team]) as hub:
        while (await hub.sessions())[0].status != "closed":
            pass
    state, failures = await failed(url)
    assert (state.pending_close_reason, failures) == (REASON, [])


async def test_what_another_attempt_comes_to_tells_which_it_was(
    kept: Pen, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    for _ in range(2):
        assert die(kept, url, ledger, "turns")["ended"] == KILLED
    die(kept, url, ledger, "turns", poison=False)
    kept.until("ended")
    log = open_log(url)
    await log.open()
    packets = [one for one in await log.read("s") if one.event_type == EV_PACKET]
    await log.close()
    assert [one.event_data["attempt"] for one in packets] == [3, 1, 1, 1, 1, 1]
