"""What has to happen in time, and what comes of it where it does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import ConfigurationError, SessionClosed
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
    round_robin,
)
from agentgraph.sessions import (
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    Envelope,
    Expectation,
    Hub,
    Session,
    Team,
)
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    dialogue,
    hub_of,
    of_type,
    settled,
    until,
)

NAMES = ("turn_within", "reply_within", "max_silence", "acks_within")


@dataclass
class Stage:
    """A session whose agent can be kept from answering, and its clock."""

    session: Session
    clock: FakeClock
    slow: Slow

    async def later(self, seconds: float) -> None:
        """Let time pass, and wait until the hub has seen to what came due."""
        self.clock.advance(seconds)
        async with asyncio.timeout(PATIENCE_S):
            try:
                # A look at the session takes in a note, then it sees to the clock: the second note
                # is taken in by the next look.
                await self.session.set_context("now", self.clock.wall())
                await self.session.set_context("then", self.clock.wall())
            except SessionClosed:
                await self.session.settled()

    async def say(self, text: str) -> None:
        """Say something to the agent, which then has the floor."""
        asked = self.slow.asked
        await self.session.send("user", text)
        await until(lambda: self.slow.asked > asked)

    async def violations(self) -> list[dict[str, Any]]:
        found = await of_type(self.session, EV_EXPECTATION_VIOLATED)
        return [dict(one.event_data) for one in found]

    async def names(self) -> list[tuple[str, str]]:
        return [(one["name"], one["on_violation"]) for one in await self.violations()]


class Slow:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = 0

    async def __call__(self, _: Any) -> str:
        self.asked += 1
        await self.may.wait()
        return "at last"


@asynccontextmanager
async def stage(
    *expected: Any, team: Team | None = None, guards: Any = None, **fields: Any
) -> AsyncIterator[Stage]:
    clock, slow = FakeClock(), Slow()
    if team is None:
        one = Agent("a", model=ScriptedModel(slow), default_tools=False, guards=None)
        rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
        kept: dict[str, Any] = {} if expected == ("default",) else {"expectations": expected}
        team = Team([one], rules, name="desk", guards=guards, **kept)
    async with await Hub.open(serve=[team], clock=clock) as hub:
        yield Stage(await hub.session(team, **{"ttl": None, **fields}), clock, slow)
        slow.may.set()


async def test_by_default_a_turn_is_warned_of_after_120_s_and_ends_the_session_after_600() -> None:
    async with stage("default") as one:
        await one.say("hello")
        await one.later(119.9)
        assert await one.names() == []
        await one.later(0.1)
        assert await one.names() == [("turn_within", "warn")]
        await one.later(479.9)
        assert await one.names() == [("turn_within", "warn")]
        await one.later(0.1)
        assert await one.names() == [("turn_within", "warn"), ("turn_within", "auto_close")]
        state = one.session.state
        assert state.status == "closed"
        assert state.pending_close_reason == "expectation_violated:turn_within"
        assert (await one.violations())[0]["violators"] == ["a"]


async def test_the_hub_sees_to_it_by_itself_when_its_time_comes() -> None:
    async with stage(Expectation("turn_within", 30.0, "auto_close")) as one:
        await one.session.send("user", "hello")
        watching = one.session.watch()
        async with asyncio.timeout(PATIENCE_S):
            while one.slow.asked == 0:
                await anext(watching)
                await asyncio.wait({asyncio.ensure_future(one.clock.asleep())})
                if one.session.state.round:
                    break
            one.clock.advance(31)
            seen = [envelope.event_type async for envelope in watching]
        assert seen[-2:] == [EV_EXPECTATION_VIOLATED, EV_SESSION_CLOSED]


async def test_each_violation_is_told_once_and_the_next_turn_has_its_own() -> None:
    async with stage(Expectation("turn_within", 10.0, "warn")) as one:
        await one.say("hello")
        for _ in range(5):
            await one.later(10)
        assert len(await one.violations()) == 1
        one.slow.may.set()
        await settled(one.session)
        one.slow.may.clear()
        await one.say("again")
        await one.later(9.9)
        assert len(await one.violations()) == 1
        await one.later(0.1)
        found = await one.violations()
        assert len(found) == 2 and found[0]["key"] != found[1]["key"]


async def test_a_turn_in_time_violates_nothing() -> None:
    async with stage(Expectation("turn_within", 10.0, "auto_close")) as one:
        await one.say("hello")
        await one.later(9)
        one.slow.may.set()
        await settled(one.session)
        await one.later(10_000)
        assert await one.violations() == []
        assert one.session.state.status == "waiting_human"


async def test_a_human_may_take_their_time_unless_they_are_named() -> None:
    patient = Expectation("turn_within", 10.0, "warn")
    named = Expectation("turn_within", 10.0, "notify", applies_to=("user",))
    async with stage(patient, named) as one:
        one.slow.may.set()
        await after(one.session, "user", "hello")
        await one.later(11)
        found = await one.violations()
        assert [(v["on_violation"], v["violators"]) for v in found] == [("notify", ["user"])]


async def test_an_expectation_of_somebody_else_is_none_of_this_agent() -> None:
    team_of_two = Team(
        [agent("a"), agent("b")],
        round_robin(["a", "b"], max_turns=1),
        expectations=[Expectation("turn_within", 10.0, "warn", applies_to=("b",))],
        guards=None,
    )
    async with stage(team=team_of_two) as one:
        await after(one.session, "user", "hello")
        await one.later(100)
        assert await one.violations() == []


async def test_what_was_said_has_to_be_answered_by_somebody_else_in_time() -> None:
    async with stage(Expectation("reply_within", 10.0, "warn")) as one:
        await one.later(100)
        assert await one.violations() == []
        await one.say("hello")
        await one.later(6)
        await one.session.send("user", "hello?")  # asked again, and waiting all the same
        await one.later(4)
        assert await one.names() == [("reply_within", "warn")]
        await one.later(100)
        assert len(await one.violations()) == 1
        one.slow.may.set()
        await settled(one.session)


async def test_only_the_replies_to_those_who_are_named_are_expected() -> None:
    async with stage(Expectation("reply_within", 10.0, "warn", applies_to=("user",))) as one:
        one.slow.may.set()
        await after(one.session, "user", "hello")
        await one.later(100)  # what the agent said waits for the user, who may take their time
        assert await one.violations() == []


async def test_silence_counts_from_the_last_word_and_from_the_opening() -> None:
    async with stage(Expectation("max_silence", 10.0, "warn")) as one:
        await one.later(10)
        assert await one.names() == [("max_silence", "warn")]
        one.slow.may.set()
        await after(one.session, "user", "hello")
        await one.later(9)
        assert len(await one.violations()) == 1
        await one.later(1)
        assert len(await one.violations()) == 2


async def test_the_invited_have_to_answer_in_time() -> None:
    async with stage(
        Expectation("acks_within", 10.0, "warn"), participants=["eve", "kim"], invite_timeout=None
    ) as one:
        await one.session.join("kim")
        await one.later(10)
        found = await one.violations()
        assert [(v["name"], v["violators"]) for v in found] == [("acks_within", ["eve"])]
        await one.session.join("eve")
        await one.later(100)
        assert len(await one.violations()) == 1
        assert one.session.state.status == "active"


async def _violate(one: Stage, name: str) -> None:
    if name != "acks_within":
        await one.say("hello")
    await one.later(10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("handler", ["audit", "warn", "notify", "auto_close"])
async def test_every_expectation_has_every_handler(
    name: Any, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    more: dict[str, Any] = (
        {"participants": ["eve"], "invite_timeout": None} if name == "acks_within" else {}
    )
    caplog.set_level(logging.WARNING, "agentgraph")
    async with stage(Expectation(name, 10.0, handler), **more) as one:
        await _violate(one, name)
        found = await of_type(one.session, EV_EXPECTATION_VIOLATED)
        assert [(v.event_data["name"], v.event_data["on_violation"]) for v in found] == [
            (name, handler)
        ]
        # Told to everybody, or only written down.
        assert (found[0].audience is None) == (handler in ("notify", "auto_close"))
        logged = [r for r in caplog.records if name in r.getMessage()]
        assert len(logged) == (handler == "warn")
        if handler == "auto_close":
            closed = (await one.session.history())[-1]
            assert closed.event_type == EV_SESSION_CLOSED
            assert closed.event_data["reason"] == f"expectation_violated:{name}"
        else:
            assert not one.session.state.is_ended


async def test_all_speakers_of_a_round_are_expected_until_each_has_spoken() -> None:
    slow = Slow()
    late = Agent("b", model=ScriptedModel(slow), default_tools=False, guards=None)
    rules = TransitionGraph(
        "a",
        [
            Transition(FromSpeaker("a"), ParallelTarget(("a", "b"), "user")),
            Transition(FromSpeaker("user"), "a"),
        ],
        HumanTarget(),
    )
    team = Team(
        [agent("a"), late], rules, guards=None, expectations=[Expectation("turn_within", 10.0)]
    )
    async with stage(team=team) as one:
        await one.session.send("user", "hello")
        async with asyncio.timeout(PATIENCE_S):
            async for envelope in one.session.watch():
                if envelope.event_type == EV_PACKET and one.session.state.due == ("b",):
                    break
        await one.later(10)
        assert [v["violators"] for v in await one.violations()] == [["b"]]
        slow.may.set()
        await settled(one.session)


# A human decides meanwhile.


async def test_the_time_in_which_a_human_decides_counts_for_no_turn() -> None:
    @tool
    def ask() -> str:
        """Ask."""
        return str(interrupt("may I?"))

    turns: Iterator[Any] = iter([call("ask"), RuntimeError("down"), "done"])
    one_agent = Agent(
        "a",
        model=ScriptedModel(lambda _: next(turns)),
        tools=[ask],
        default_tools=False,
        guards=None,
    )
    rules = dialogue("a")
    team = Team(
        [one_agent],
        rules,
        guards=None,
        expectations=[Expectation("turn_within", 10.0, "auto_close")],
    )
    async with stage(team=team) as one:
        await one.session.send("user", "hello")
        state = await settled(one.session)
        assert state.status == "waiting_decision"
        await one.later(10_000)
        (asked,) = one.session.state.interrupts
        await one.session.decide(asked, "yes")
        state = await settled(one.session)
        assert await one.violations() == []
        assert len(await of_type(one.session, EV_ROUND_FAILED)) == 1
        assert state.status != "closed"


# What cannot be expected.


async def test_unknown_names_are_refused_at_open_all_at_once() -> None:
    async with await Hub.open() as hub:
        rules = dialogue("a")
        team = Team([agent("a")], rules, name="desk")
        with pytest.raises(ConfigurationError) as refused:
            await hub.session(
                team,
                expectations=[
                    {"name": "turn_withn", "seconds": 5},
                    {"name": "turn_within", "seconds": 5, "on_violation": "explode"},
                    {"name": "turn_within", "seconds": -5},
                    {"name": "turn_within", "seconds": 5, "applies_to": ["mallory"]},
                    {"name": "turn_within", "seconds": 5, "applies_to": "a"},
                    {"nam": "turn_within"},
                ],
            )
        told = refused.value.faults
        assert len(told) == 6
        for one in ("turn_withn", "explode", "-5", "mallory", "applies_to='a'", "nam"):
            assert any(one in fault for fault in told), one
        assert await hub.sessions() == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5", None, True])
def test_seconds_that_are_none_are_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="seconds"):
        Expectation("turn_within", seconds)


def test_a_team_with_an_unknown_expectation_is_not_built() -> None:
    rules = dialogue("a")
    with pytest.raises(ConfigurationError, match="turn_withn"):
        Team([agent("a")], rules, expectations=[{"name": "turn_withn", "seconds": 5}])
    with pytest.raises(ConfigurationError, match="mallory"):
        Team(
            [agent("a")], rules, expectations=[Expectation("turn_within", 5, "warn", ("mallory",))]
        )


# The session as a whole.


async def test_after_its_ttl_a_session_expires_and_then_is_closed() -> None:
    async with stage(ttl="30s") as one:
        one.slow.may.set()
        await after(one.session, "user", "hello")
        await one.later(29.9)
        assert not one.session.state.is_ended
        one.clock.advance(0.1)
        state = await settled(one.session)
        assert (state.status, state.pending_close_reason) == ("expired", "ttl_expired")
        last = (await one.session.history())[-2:]
        assert [e.event_type for e in last] == [EV_SESSION_EXPIRED, EV_SESSION_CLOSED]
        assert last[1].event_data["reason"] == "ttl_expired"
        with pytest.raises(SessionClosed):
            await one.session.send("user", "late")


async def test_a_session_expires_while_a_round_runs_and_the_round_is_broken_off() -> None:
    async with stage(ttl=30) as one:
        await one.say("hello")
        one.clock.advance(30)
        state = await settled(one.session)
        assert state.status == "expired"
        assert await of_type(one.session, EV_PACKET) == []


@pytest.mark.parametrize("ttl", [None, 0])
async def test_without_a_ttl_a_session_lasts(ttl: Any) -> None:
    async with stage(ttl=ttl) as one:
        await one.later(10**8)
        assert one.session.state.status == "active"


async def test_an_invitation_that_nobody_answers_times_out() -> None:
    async with stage(participants=["eve"], invite_timeout="30s") as one:
        await one.later(29)
        assert one.session.state.status == "pending"
        one.clock.advance(1)
        state = await settled(one.session)
        assert (state.status, state.pending_close_reason) == ("closed", "invite_timeout")


async def test_an_invitation_answered_in_time_does_not_time_out() -> None:
    async with stage(participants=["eve"], invite_timeout="30s") as one:
        await one.session.join("eve")
        await one.later(10_000)
        assert one.session.state.status == "active"


async def test_a_session_that_came_due_while_no_hub_was_there_is_seen_to_by_the_next(
    tmp_path: Any,
) -> None:
    url, clock = f"sqlite:///{tmp_path}/s.db", FakeClock()
    team = Team([agent("a")], dialogue("a"), name="desk")
    async with await Hub.open(url, serve=[team], clock=clock) as hub:
        first = await hub.session(team, ttl="30s")
    clock.advance(60)
    async with await Hub.open(url, serve=[team], clock=clock) as hub:
        session = await hub.get(first.id)
        assert (await settled(session)).pending_close_reason == "ttl_expired"


async def test_what_a_fork_shares_with_its_past_is_not_expected_of_it() -> None:
    team = Team(
        [agent("a")],
        dialogue("a"),
        name="desk",
        expectations=[
            Expectation("turn_within", 10.0, "auto_close"),
            Expectation("max_silence", 10.0, "auto_close"),
            Expectation("reply_within", 10.0, "auto_close"),
        ],
    )
    async with stage(team=team, expectations=()) as one:
        await after(one.session, "user", "hello")
        hub = hub_of(one.session)
        other = await hub.session(team, ttl="1h")
        await after(other, "user", "hello")
        one.clock.advance(1_000)
        fork = await other.fork(2)
        await one.later(1_000)
        assert not fork.state.is_ended and fork.state.sequence == 2
        state = await settled(fork)
        assert state.status == "waiting_human"
        said: list[Envelope] = await fork.history()
        assert [e.sender_id for e in said if e.is_substantive] == ["user", "a"]
