"""What comes in askew: it is refused, clipped or told in a type, and the session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import Agent, Handoff, Team
from agentgraph.errors import AgentGraphError, ConfigurationError, RoutingWarning
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_HANDOFF,
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_TEXT,
    Draft,
    Envelope,
    Session,
    packet_envelope,
    text_envelope,
)
from agentgraph.sessions.drivers.subscribers import Handlers
from agentgraph.sessions.log import InboxEntry
from agentgraph.sessions.rounds.round import Round, current_round
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    dialogue,
    held,
    hub_of,
    of_type,
    settled,
    until,
)

ODD = [
    {"context_updates": [1]},
    {"context_updates": {"set": {"sly": True}, "delete": []}},
    {"usage": {"a": {"input_tokens": "many"}}},
    {"usage": 7, "hops": 1_000_000},
    {"active": {"a": "b"}},
    {"routing": {"kind": "finish", "reason": "mine"}},
]


def answering(agent_name: str, tool: Any) -> Agent:
    """Return an agent that uses a tool, and then says what it was answered."""

    def turn(messages: Sequence[BaseMessage]) -> Any:
        last = messages[-1]
        return f"got {last.text}" if last.type == "tool" else call(tool.__name__)

    return Agent(agent_name, model=ScriptedModel(turn), tools=[tool], default_tools=False)


@pytest.mark.parametrize("sender", ["user", "a"])
@pytest.mark.parametrize("extra", ODD, ids=str)
async def test_a_text_is_words_alone_whatever_else_it_carries(
    extra: dict[str, Any], sender: str
) -> None:
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    async with held(Team([agent("a")], rules)) as session:
        used = (await after(session, "user", "go")).used
        # Twice: what the first would leave behind must not break the second either.
        odd = Draft(EV_TEXT, {"text": "hello", **extra})
        counted = Draft(EV_TEXT, {"text": "hello", "usage": {"a": {"input_tokens": 1}}})
        state = await after(session, sender, odd, counted)
        assert (state.context_vars, state.hops, state.active) == ({}, 0, {})
        assert sender == "user" or state.used == used
        assert not await of_type(session, EV_CONTEXT_SET)
        state = await after(session, "user", "go on")
        assert (state.status, state.last_speaker_id) == ("waiting_human", "a")


async def test_a_human_among_several_speakers_finishes_nothing_by_a_text() -> None:
    rules = TransitionGraph(
        "a", [Transition(FromSpeaker("a"), ParallelTarget(["ann", "bob"], "join"))]
    )
    team = Team([agent("a"), agent("join")], rules, humans=["ann", "bob"])
    async with held(team) as session:
        await session.join("ann")
        await session.join("bob")
        await after(session, "user", "go")
        sly = Draft(EV_TEXT, {"text": "me too", "routing": {"kind": "finish", "reason": "mine"}})
        await after(session, "ann", sly)
        state = await after(session, "bob", "me too")
        assert (state.last_speaker_id, state.pending_close_reason) == ("join", "terminated")


async def test_what_a_model_nests_without_end_is_clipped_and_its_tool_runs_once() -> None:
    runs: list[str] = []

    def dig(hole: Any) -> str:
        """Dig."""
        runs.append("dug")
        return "dug"

    hole: dict[str, Any] = {}
    for _ in range(60):
        hole = {"a": hole}
    deep = AIMessage("", tool_calls=[{"name": "dig", "args": {"hole": hole}, "id": "1"}])
    digger = agent("digger", deep, "done", tools=[dig])
    async with held(Team([digger], sequence(["digger"]))) as session:
        state = await after(session, "user", "dig")
        assert (state.pending_close_reason, runs) == ("sequence_complete", ["dug"])
        (packet,) = await of_type(session, EV_PACKET)
        (step,) = packet.event_data["steps"]
        assert list(step["calls"][0]["args"]) == ["clipped"]


async def test_an_error_that_says_too_much_is_told_in_part() -> None:
    def shout(state: MessagesState) -> None:
        raise AgentGraphError("loud" * 500_000)

    graph = StateGraph(MessagesState)
    graph.add_node("shout", shout)
    graph.set_entry_point("shout")
    team = Team([graph.compile(name="a")], sequence(["a"]))
    async with held(team) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "round_failed"
        failed = await of_type(session, EV_ROUND_FAILED)
        assert [one.event_data["final"] for one in failed] == [False, True]
        assert all(one.event_data["message"].startswith("loudloud") for one in failed)
        assert all(len(one.event_data["message"]) < 3_000 for one in failed)


def _nested() -> Any:
    value: list[Any] = []
    for _ in range(200):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("payload", "shown"),
    [(_nested(), ["clipped"]), (b"\xff\xfe", "__4=")],
    ids=["deep", "bytes"],
)
async def test_a_question_that_no_envelope_holds_is_asked_in_part_or_as_text(
    payload: Any, shown: Any
) -> None:
    def ask() -> str:
        """Ask."""
        return str(interrupt(payload))

    async with held(Team([answering("a", ask)], sequence(["a"]))) as session:
        state = await after(session, "user", "go")
        assert state.status == "waiting_decision"
        (asked,) = await of_type(session, EV_INTERRUPT)
        question = asked.event_data["payload"]
        assert (question if isinstance(question, str) else list(question)) == shown
        await session.decide(asked.event_data["id"], "yes")
        assert (await settled(session)).pending_close_reason == "sequence_complete"


async def test_a_question_that_no_checkpoint_holds_fails_its_round_at_once() -> None:
    def ask() -> str:
        """Ask."""
        return str(interrupt(object()))

    # The clock stands still: nothing is waited for.
    async with held(Team([answering("a", ask)], sequence(["a"])), clock=FakeClock()) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "round_failed"
        failed = await of_type(session, EV_ROUND_FAILED)
        assert [one.event_data["code"] for one in failed] == ["payload", "payload"]


async def test_a_supervisor_does_not_reopen_what_a_word_before_has_closed() -> None:
    over = Transition(FromSpeaker("user"), TerminateTarget("over"))
    rules = TransitionGraph("a", [over], HumanTarget())

    boss = Agent("boss", model=ScriptedModel(lambda messages: call("stay_silent")))
    team = Team([agent("a"), agent("b")], rules, supervisor=boss)
    async with held(team) as session:
        await after(session, "user", "go")
        hub = session._hub
        # Both wait when the session looks into its inbox.
        await hub.log.enqueue(session.id, InboxEntry("last-word", "user", text_envelope("bye")))
        late = packet_envelope("Wait!", handoff=Handoff("b", "not yet"))
        await hub.log.enqueue(session.id, InboxEntry("too-late", "boss", late))
        hub.drivers.wake(session.id)
        state = await settled(session)
        assert (state.status, state.pending_close_reason) == ("closed", "over")
        said = [one for one in await session.history() if one.is_substantive]
        assert [one.sender_id for one in said] == ["user", "a", "user", "boss"]
        assert "decision" not in said[-1].event_data


async def test_what_is_handed_over_in_private_is_told_to_both_and_nobody_else() -> None:
    rules = TransitionGraph("a", [Transition(FromSpeaker("a"), HumanTarget())], "a")
    with pytest.warns(RoutingWarning, match="gives 'b' the floor, only a Handoff could"):
        team = Team([agent("a"), agent("b")], rules)
    async with held(team) as session:
        await after(session, "user", "go")
        handed = Handoff("b", "a secret", "and all about it")
        private = packet_envelope("b, go on", handoff=handed, audience=["b"])
        await after(session, "user", private)
        (told,) = await of_type(session, EV_HANDOFF)
        assert sorted(told.audience or ()) == ["b", "user"]


async def test_context_beside_a_private_word_is_refused() -> None:
    async with held(Team([agent("a")], dialogue("a"))) as session:
        await session.send("user", "go")
        await settled(session)
        private = packet_envelope("aside", context_set={"pin": 4711}, audience=["user"])
        with pytest.raises(ConfigurationError, match="all participants may see context variables"):
            await session.send("a", private)
        assert session.state.context_vars == {}
        assert await of_type(session, EV_CONTEXT_SET) == []


async def test_whoever_waits_far_ahead_sees_the_session_end() -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:

        async def followed(after: int) -> list[Envelope]:
            return [one async for one in session.watch(after=after)]

        beyond = asyncio.ensure_future(followed(1_000))
        ahead = asyncio.ensure_future(followed(2))
        await after(session, "user", "go")
        async with asyncio.timeout(PATIENCE_S):
            assert await beyond == []
            assert [one.sequence for one in await ahead] == [3, 4]


async def test_nobody_waits_for_an_invited_who_has_left() -> None:
    team = Team([agent("bot")], sequence(["bot"]), humans=["ann", "bob", "eve"])
    async with held(team) as session:
        await session.join("ann")
        await session.leave("bob")
        before = await settled(session)
        await session.join("eve")
        opened = await settled(session)
        assert (before.status, opened.status) == ("pending", "active")


async def test_the_last_whose_answer_is_missing_leaves_and_the_session_opens() -> None:
    team = Team([agent("bot")], sequence(["bot"]), humans=["ann", "bob"])
    async with held(team) as session:
        await session.join("ann")
        await session.leave("bob")
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "sequence_complete"


async def test_a_run_of_one_call_does_not_wait_for_the_invited() -> None:
    rules = TransitionGraph("a", [Transition(FromSpeaker("a"), "ann")], "a")
    team = Team([agent("a")], rules, humans=["ann"])
    result = await team.arun("go")
    assert (result.text, result.state.status) == ("a speaks", "waiting_human")
    assert result.state.expected_next_speaker == "ann"
    assert "a speaks" in [one.text async for one in team.astream("go") if isinstance(one, Envelope)]


async def test_a_turn_that_is_committed_again_does_nothing() -> None:
    rounds: list[Round] = []

    def note() -> str:
        """Note."""
        rounds.append(cast("Round", current_round()))
        return "noted"

    team = Team([answering("a", note)], dialogue("a"))
    async with held(team) as session:
        await after(session, "user", "go")
        before = await session.history()
        (packet,) = await of_type(session, EV_PACKET)
        (round,) = rounds
        data = {key: value for key, value in packet.event_data.items() if key != "decision"}
        await round.commit(data, ())
        await round.fail("error", "too late", {})
        assert await session.history() == before


async def test_who_looks_again_sees_what_the_store_has_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with held(Team([agent("a")], dialogue("a"))) as session:
        await after(session, "user", "go")
        hub, gate, stored = session._hub, asyncio.Event(), asyncio.Event()
        append = hub.log.append

        async def slow(*args: Any, **fields: Any) -> None:
            await append(*args, **fields)
            stored.set()
            await gate.wait()

        monkeypatch.setattr(hub.log, "append", slow)
        setting = asyncio.ensure_future(session.set_context("tier", "gold"))
        await stored.wait()
        looking = asyncio.ensure_future(session.refresh())
        asyncio.get_running_loop().call_later(0.01, gate.set)
        assert (await looking).context_vars == {"tier": "gold"}
        await setting


async def test_a_handler_hears_once_what_is_told_twice() -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        await after(session, "user", "go")
        told = await session.history()
    heard: list[int] = []
    handlers = Handlers(asyncio.ensure_future)
    handlers.add(session.id, "*", lambda envelope: heard.append(envelope.sequence), after=1)
    for told_now in (told[:3], told[:2], told):
        handlers.notify(session.id, told_now)
    assert heard == [2, 3, 4]


# Teams in teams: what serves a turn ends with it.


def asking() -> Team:
    """Return a team in a team, of one who always asks a human."""

    def ask() -> str:
        """Ask."""
        return str(interrupt("may I?"))

    inner = Team([answering("i", ask)], sequence(["i"]), name="inner")
    return Team([inner], sequence(["inner"]), name="mid")


async def left_open(session: Session) -> list[str]:
    """Return the sessions that are open beside one."""
    known = await hub_of(session).log.sessions()
    return [one.session_id for one in known if one.status not in ("closed", "expired")]


async def test_the_innermost_session_ends_with_the_outermost() -> None:
    team = Team([asking()], sequence(["mid"]), name="outer")
    async with held(team) as session:
        assert (await after(session, "user", "go")).status == "waiting_decision"
        assert len(await left_open(session)) == 3
        await session.close()
        await until(lambda: _all_ended(session))


async def test_what_serves_somebody_who_has_left_ends() -> None:
    rules = dialogue("mid")
    team = Team([asking(), agent("b")], rules, name="outer", failure_target="human")
    async with held(team) as session:
        assert (await after(session, "user", "go")).status == "waiting_decision"
        await session.leave("mid")
        await settled(session)
        await until(lambda: _only_open(session))


async def _all_ended(session: Session) -> bool:
    return not await left_open(session)


async def _only_open(session: Session) -> bool:
    return await left_open(session) == [session.id]
