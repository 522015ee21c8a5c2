"""Hazards that were met, each by its name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import (
    Agent,
    Always,
    FromSpeaker,
    Guards,
    Hub,
    HumanTarget,
    ParallelTarget,
    Team,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.errors import AlreadyDecided, RoundConflict, StorageError
from agentgraph.guards import Deadlines
from agentgraph.sessions import (
    EV_DECISION,
    EV_EXPECTATION_VIOLATED,
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    Expectation,
    SessionState,
    packet_envelope,
)
from agentgraph.sessions.hub.session import Receipt
from agentgraph.sessions.log import MemoryLog
from agentgraph.sessions.state.fold import fold
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import after, agent, dialogue, of_type, settled, talk


def says(name: str, text: str = "ok") -> Agent:
    return Agent(name, model=ScriptedModel(lambda messages: text))


def asking(name: str = "clerk") -> Agent:
    def pay() -> str:
        """Pay, if a human agrees."""
        return f"decided: {interrupt('pay?')}"

    def turn(messages: list[BaseMessage]) -> Any:
        return "done" if messages[-1].type == "tool" else call("pay")

    return Agent(name, model=ScriptedModel(turn), tools=[pay])


async def hanging(messages: list[BaseMessage]) -> str:
    await asyncio.get_running_loop().create_future()
    return ""


async def test_a_supervisor_does_not_answer_itself() -> None:
    model = ScriptedModel(lambda messages: "watch out")
    rules = TransitionGraph(
        "a", [Transition(FromSpeaker("a"), HumanTarget()), Transition(Always(), "a")]
    )
    team = Team([says("a")], rules, supervisor=Agent("boss", model=model))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "hello")
        async for envelope in session.watch():
            if envelope.sender_id == "boss":
                break
        await session.send("user", "again", admitted=True)
        await session.settled()
        interjections = [e for e in await session.history() if e.sender_id == "boss"]

        assert 1 <= len(interjections) <= 4
        assert len(model.requests) <= 4  # at most one for each thing that others said


async def test_forty_expectations_are_each_violated_once() -> None:
    team = Team([Agent("a", model=ScriptedModel(hanging))], sequence(["a"]), guards=None)
    with FakeClock().installed() as time:
        async with await Hub.open(serve=[team]) as hub:
            many = [Expectation("turn_within", 1 + i / 100, "audit") for i in range(40)]
            session = await hub.session(team, expectations=many)
            await session.send("user", "go", admitted=True)
            for _ in range(3):
                await time.asleep()
                time.advance(5)
                await session.set_context("beat", 1)
            found = [e for e in await session.history() if e.event_type == EV_EXPECTATION_VIOLATED]

            assert len(found) == 40
            assert len({e.event_data["key"] for e in found}) == 40


async def test_a_fork_of_the_deciding_envelope_is_closed() -> None:
    team = Team([says("a"), says("b")], sequence(["a", "b"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        state = await session.settled()
        fork = await session.fork(state.sequence - 1)

        assert (await asyncio.wait_for(fork.settled(), 5)).pending_close_reason == (
            "sequence_complete"
        )


async def test_a_close_that_was_given_up_is_brought_to_its_end(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def slow() -> str:
        """Take long, also to stop."""
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.wait({asyncio.ensure_future(hub_closing.wait())})
        return ""

    hub_closing = asyncio.Event()

    def turn(messages: list[BaseMessage]) -> Any:
        return "done" if hub_closing.is_set() else call("slow")

    team = Team([Agent("a", model=ScriptedModel(turn), tools=[slow])], sequence(["a"]))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    first = await Hub.open(url, serve=[team])
    session = await first.session(team, id="s")
    await session.send("user", "go")
    await began.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(first.aclose(), 0.05)
    hub_closing.set()
    await first.aclose()

    async with await Hub.open(url, serve=[team]) as second:
        state = await asyncio.wait_for((await second.get("s")).settled(), 10)
        assert state.pending_close_reason == "sequence_complete"


async def test_an_inner_session_ends_with_the_outer_one() -> None:
    inner = Team([Agent("x", model=ScriptedModel(hanging))], sequence(["x"]), name="inner")
    outer = Team([inner, says("z")], sequence(["inner", "z"]), name="outer")
    async with await Hub.open(serve=[outer]) as hub:
        session = await hub.session(outer)
        await session.send("user", "go", admitted=True)
        while len(summaries := await hub.log.sessions()) < 2 or summaries[1].status != "active":
            await asyncio.wait({asyncio.ensure_future(hub.log.next_due())})
        await session.close()
        orphan = await hub.get(summaries[1].session_id)

        assert (await asyncio.wait_for(orphan.settled(), 5)).status == "closed"


async def test_a_packet_without_the_floor_writes_the_context_all_the_same() -> None:
    team = Team([says("a")], sequence(["a"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", packet_envelope("go", context_set={"tier": "gold"}))
        state = await session.settled()

        assert state.context_vars == {"tier": "gold"}
        refolded = SessionState.initial(session.record)
        for envelope in await session.history():
            refolded = fold(refolded, envelope)
        assert refolded == state


async def test_what_is_handed_out_is_not_the_live_state() -> None:
    team = Team([says("a")], dialogue("a"))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team, context={"list": [1]})
        with pytest.raises(TypeError, match="cannot be changed"):
            session.state.context_vars["list"].append(99)
        await session.send("user", "go")

        assert (await session.settled()).context_vars == {"list": [1]}


async def test_a_graph_that_raises_our_own_errors_has_failed_its_round() -> None:
    async def node(state: MessagesState) -> MessagesState:
        raise StorageError("a store of its own")

    builder = StateGraph(MessagesState)
    builder.add_node("n", node)
    builder.add_edge(START, "n")
    result = await Team([builder.compile(name="foreign")], sequence(["foreign"])).arun("go")

    failed = [e.event_data for e in result.envelopes if e.event_type == EV_ROUND_FAILED]
    assert [one["code"] for one in failed] == ["storage", "storage"]
    assert result.close_reason == "round_failed"


async def test_a_tool_that_swallows_its_cancellation_does_not_hold_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentgraph.sessions.team.speaker._GRACE_S", 0.01)
    ended = asyncio.Event()

    async def stubborn() -> str:
        """Never give up."""
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        return ""

    agent = Agent("a", model=ScriptedModel(lambda m: call("stubborn")), tools=[stubborn])
    guards = Guards.interactive(deadlines=Deadlines(stage_s=1))
    with FakeClock().installed() as time:
        async with await Hub.open(
            serve=[team := Team([agent], sequence(["a"]), guards=guards)]
        ) as hub:
            session = await hub.session(team)
            await session.send("user", "go")
            while not session.state.is_ended:
                await time.asleep()
                time.advance(2)
                await session.set_context("beat", 1) if not session.state.is_ended else None
            failed = [e for e in await session.history() if e.event_type == EV_ROUND_FAILED]
            ended.set()

            assert {e.event_data["code"] for e in failed} == {"deadline"}
            assert session.state.pending_close_reason == "round_failed"


async def test_of_two_decisions_at_once_the_second_is_refused() -> None:
    team = Team([asking()], sequence(["clerk"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        [question] = (await session.settled()).interrupts
        outcomes = await asyncio.gather(
            session.decide(question, "yes"), session.decide(question, "no"), return_exceptions=True
        )

        assert [type(one) for one in outcomes] == [Receipt, AlreadyDecided]
        state = await session.settled()
        assert state.pending_close_reason == "sequence_complete"


async def test_the_same_decision_twice_is_one() -> None:
    team = Team([asking()], sequence(["clerk"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        [question] = (await session.settled()).interrupts
        await asyncio.gather(session.decide(question, "yes"), session.decide(question, "yes"))
        await session.settled()
        decided = [e for e in await session.history() if e.event_type == EV_DECISION]

        assert len(decided) == 1


async def test_a_fork_of_an_open_question_asks_anew_and_that_is_no_failure() -> None:
    team = Team([asking()], sequence(["clerk"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "go")
        [old] = (state := await session.settled()).interrupts
        fork = await session.fork(state.sequence)
        assert fork.state.interrupts == {}
        [new] = (await fork.settled()).interrupts
        await fork.decide(new, "yes")
        ended = await fork.settled()

        assert new != old
        assert ended.pending_close_reason == "sequence_complete"
        assert set(ended.failures.values()) <= {0}


async def test_who_has_left_says_no_more_and_nobody_is_waited_for() -> None:
    team = Team([says("a")], dialogue("a"), humans=["bob"])
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.join("bob")
        await session.leave("bob")
        with pytest.raises(Exception, match="takes no part"):
            await session.send("bob", "still here")
        await session.leave("a")

        assert (await session.settled()).pending_close_reason == "no_participants"


async def test_a_hub_forgets_the_sessions_that_have_ended() -> None:
    team = Team([says("a")], sequence(["a"]))
    async with await Hub.open(serve=[team]) as hub:
        heard: list[str] = []
        for _ in range(20):
            session = await hub.session(team)
            session.on("*", lambda envelope: heard.append(envelope.event_type))
            await session.send("user", "go")
            await session.settled()
        del session

        assert len(heard) == 20 * 4 - 20  # all but what opened them, before they listened
        assert len([*hub.drivers]) <= 1
        assert hub._handlers.session_ids == []


class Interrupted(MemoryLog):
    """A log that is cut off once from its session, when somebody's packet is in it."""

    def __init__(self, speaker: str) -> None:
        super().__init__()
        self._speaker: str | None = speaker

    async def append(
        self, session_id: str, envelopes: Any, head: int, state: Any, **given: Any
    ) -> None:
        await super().append(session_id, envelopes, head, state, **given)
        packets = [one.sender_id for one in envelopes if one.event_type == EV_PACKET]
        if self._speaker in packets:
            self._speaker = None
            raise RoundConflict("cut off")


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_what_was_asked_in_a_turn_that_is_committed_is_not_asked_again(
    durability: Any,
) -> None:
    def ask() -> str:
        """Ask."""
        return str(interrupt("may I?"))

    agents = [
        agent("a"),
        agent("b", call("ask"), "from b", call("ask"), "never", tools=[ask]),
        agent("c", "", "from c"),
        agent("d"),
    ]
    rules = TransitionGraph(
        "a",
        [
            Transition(FromSpeaker("a"), ParallelTarget(("b", "c"), "d")),
            Transition(FromSpeaker("d"), TerminateTarget("done")),
        ],
    )
    team = Team(agents, rules, name="team", durability=durability)
    hub = Hub(Interrupted("b"), InMemorySaver(), [team], 30.0)
    await hub.start(None)
    async with hub:
        session = await hub.session(team, id="s", ttl=None)
        state = await after(session, "user", "go")
        (asked,) = state.interrupts
        await session.decide(asked, "yes")
        state = await settled(session)
        assert (state.status, state.pending_close_reason) == ("closed", "done")
        assert sorted(await talk(session))[1:3] == [("b", "from b"), ("c", "from c")]
        assert len(await of_type(session, EV_INTERRUPT)) == 1
