"""Humans in a session: invited, waited for, given the floor, and asked for decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph.errors import AlreadyDecided, ConfigurationError, SessionError
from agentgraph.outcomes import Handoff
from agentgraph.phases import ConversationPipeline, ConversationRouter, PipelineStage
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    RevertToInitiatorTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_DECISION,
    EV_EXPECTATION_VIOLATED,
    EV_HANDOFF,
    EV_INTERRUPT,
    EV_PACKET,
    EV_SESSION_CLOSED,
    EV_SESSION_INVITE,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_INVITE_REJECT,
    EV_SESSION_OPENED,
    Expectation,
    Hub,
    Session,
    Team,
    set_context,
)
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    asked,
    dialogue,
    held,
    of_type,
    settled,
    shown,
    talk,
    until,
)


def chat(target: Any = None) -> TransitionGraph:
    """Return rules by which an agent answers whatever its human says."""
    rules = (Transition(FromSpeaker("user"), "bot"),)
    return TransitionGraph("bot", rules, target or HumanTarget())


async def status_of(session: Session) -> str:
    return (await session.refresh()).status


def over(**fields: Any) -> Any:
    return call("handoff_conversation", **{"reason": "", "summary": "", **fields})


def desk(*turns: Any) -> Team:
    """Return a pipeline of two, the first of which may ask a human."""
    stages = [PipelineStage("intake", "t", "handling"), PipelineStage("handling", "h")]
    return Team([agent("t", *turns), agent("h")], ConversationPipeline(stages))


async def test_where_rules_name_a_human_the_session_waits_for_that_human() -> None:
    async with held(Team([agent("bot")], chat())) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
        assert session.can_send("user")
        assert not session.can_send("bot")
        assert not state.is_runnable
        state = await after(session, "user", "more")
        assert (state.turn_count, state.status) == (3, "waiting_human")


async def test_the_initiator_can_be_reverted_to() -> None:
    async with held(Team([agent("bot")], chat(RevertToInitiatorTarget()))) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")


async def test_a_named_human_is_waited_for_and_their_words_are_a_turn() -> None:
    rules = TransitionGraph(
        "bot",
        (
            Transition(FromSpeaker("bot"), HumanTarget("ann")),
            Transition(FromSpeaker("ann"), TerminateTarget("ann_decided")),
        ),
    )
    async with held(Team([agent("bot")], rules, humans=["ann"])) as session:
        await session.join("ann")
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "ann")
        state = await after(session, "user", "I may not decide")
        assert (state.status, state.turn_count) == ("waiting_human", 1)
        state = await after(session, "ann", "I may")
        assert (state.pending_close_reason, state.turn_count) == ("ann_decided", 2)


async def test_a_handoff_to_a_human_stops_all_agents_until_the_human_speaks() -> None:
    team = desk(over(target="human", reason="angry", summary="wants a refund"), "back to you")
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
        (told,) = await of_type(session, EV_HANDOFF)
        assert told.event_data["target"] == "human"
        assert told.event_data["summary"] == "wants a refund"
        assert state.conversation.active_agent_id is None
        assert [name for name, _ in await talk(session)] == ["user", "t"]
        state = await after(session, "user", "I want a refund")
        assert [name for name, _ in await talk(session)] == ["user", "t", "user", "t", "h"]
        assert state.pending_close_reason == "pipeline_complete"


async def test_a_human_who_lets_go_gives_the_floor_to_whoever_had_it() -> None:
    team = desk(over(target="human"), "I have it again")
    async with held(team) as session:
        await after(session, "user", "hello")
        await session.release()
        state = await settled(session)
        assert await talk(session) == [
            ("user", "hello"),
            ("t", ""),
            ("t", "I have it again"),
            ("h", "h speaks"),
        ]
        assert state.pending_close_reason == "pipeline_complete"


async def test_a_human_can_let_go_to_an_agent_of_their_choice() -> None:
    team = desk(over(target="human"))
    async with held(team) as session:
        await after(session, "user", "hello")
        await session.release("h")
        state = await settled(session)
        assert [name for name, _ in await talk(session)][:3] == ["user", "t", "h"]
        assert state.conversation.active_agent_id == "h"


async def test_only_what_a_human_has_can_be_let_go() -> None:
    async with held(desk(over(target="human"), "x")) as session:
        with pytest.raises(SessionError) as caught:
            await session.release()
        assert caught.value.code == "not_waiting"
        await after(session, "user", "hello")
        with pytest.raises(SessionError) as caught:
            await session.release("zed")
        assert caught.value.code == "unknown_agent"
        assert session.state.status == "waiting_human"


async def test_it_cannot_be_let_go_to_an_agent_who_has_left() -> None:
    async with held(desk(over(target="human"), "x")) as session:
        await after(session, "user", "hello")
        await session.leave("h")
        with pytest.raises(SessionError) as caught:
            await session.release("h")
        assert caught.value.code == "unknown_agent"


async def test_after_a_humans_answer_whoever_asked_goes_on_where_no_rule_says_otherwise() -> None:
    def ask_human() -> Handoff:
        """Ask a human."""
        return Handoff("human", "unsure", "")

    one = agent("a", call("ask_human"), "thanks", tools=[ask_human])
    async with held(Team([one, agent("b")], sequence(["a", "b"]))) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human"
        state = await after(session, "user", "do it")
        assert [name for name, _ in await talk(session)] == ["user", "a", "user", "a", "b"]
        assert "[user]: do it" in shown(one)
        assert state.pending_close_reason == "sequence_complete"


async def test_a_human_of_the_team_can_be_handed_the_conversation_by_name() -> None:
    def ask_ann() -> Handoff:
        """Ask ann."""
        return Handoff("ann", "she knows", "about tides")

    one = agent("a", call("ask_ann"), "thanks", tools=[ask_ann])
    async with held(Team([one], sequence(["a"]), humans=["ann"])) as session:
        await session.join("ann")
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "ann")
        state = await after(session, "ann", "do it")
        assert [name for name, _ in await talk(session)] == ["user", "a", "ann", "a"]
        (told,) = await of_type(session, EV_HANDOFF)
        assert told.event_data["target"] == "ann"
        assert state.conversation.active_agent_id is None


async def test_the_handoff_tool_shows_the_humans_too() -> None:
    stages = [PipelineStage("intake", "t")]
    one = agent("t")
    team = Team([one], ConversationPipeline(stages), humans=["ann"])
    async with held(team) as session:
        await session.join("ann")
        await after(session, "user", "hello")
        spec: Any = asked(one)[0].specs[0]
        target = spec["function"]["parameters"]["properties"]["target"]
        assert target["enum"] == ["ann", "human"]


async def test_a_human_of_the_team_is_invited_and_the_session_waits_for_the_answer() -> None:
    one = agent("bot")
    async with held(Team([one], chat(), humans=["ann"])) as session:
        assert session.state.status == "pending"
        assert not session.can_send("user")
        (invite,) = await of_type(session, EV_SESSION_INVITE)
        assert invite.audience == ("ann",)
        assert invite.event_data["invitee"] == "ann"
        state = await after(session, "user", "hello")  # it waits in the inbox
        assert (state.status, asked(one)) == ("pending", [])
        await session.join("ann")
        state = await settled(session)
        assert (state.status, state.turn_count) == ("waiting_human", 1)
        kinds = [one.event_type for one in await session.history()][:3]
        assert kinds == [EV_SESSION_INVITE, EV_SESSION_INVITE_ACK, EV_SESSION_OPENED]


async def test_all_who_are_invited_must_accept() -> None:
    team = Team([agent("bot")], chat(), humans=["ann"])
    async with held(team, participants=["bob"]) as session:
        await session.join("ann")
        await session.join("ann")  # a second time is nothing
        assert await status_of(session) == "pending"
        await session.join("bob")
        assert await status_of(session) == "active"
        assert session.state.acks == ("ann", "bob")
        assert set(session.state.participant_order) == {"bot", "ann", "bob"}


async def test_required_acks_are_enough() -> None:
    team = Team([agent("bot")], chat(), humans=["ann", "bob", "eve"])
    async with held(team, required_acks=2) as session:
        await session.join("eve")
        assert await status_of(session) == "pending"
        await session.join("bob")
        assert await status_of(session) == "active"
        await session.join("ann")  # who comes late is no harm
        assert len(await of_type(session, EV_SESSION_OPENED)) == 1


async def test_more_required_acks_than_there_are_invited_open_with_all_of_them() -> None:
    async with held(Team([agent("bot")], chat(), humans=["ann"]), required_acks=5) as session:
        await session.join("ann")
        assert session.state.status == "active"


async def test_who_declines_ends_the_session() -> None:
    async with held(Team([agent("bot")], chat(), humans=["ann", "bob"])) as session:
        await session.join("ann")
        await session.reject("bob")
        state = await settled(session)
        assert (state.status, state.pending_close_reason) == ("closed", "invite_rejected")
        (rejected,) = await of_type(session, EV_SESSION_INVITE_REJECT)
        assert rejected.sender_id == "bob"


async def test_an_invitation_that_nobody_answers_times_out() -> None:
    clock = FakeClock()
    team = Team([agent("bot")], chat(), humans=["ann"])
    async with held(team, clock=clock, invite_timeout="5m") as session:
        await session.send("user", "hello")
        clock.advance(299)
        await settled(session)
        assert session.state.status == "pending"
        clock.advance(2)
        await until(lambda: session.state.is_ended)
        assert session.state.pending_close_reason == "invite_timeout"
        # What had been accepted stands before the end.
        assert [one.event_type for one in await session.history()][-1] == EV_SESSION_CLOSED
        assert ("user", "hello") in await talk(session)


async def test_only_the_invited_answer() -> None:
    async with held(Team([agent("bot")], chat(), humans=["ann"])) as session:
        for answer in (session.join, session.reject):
            with pytest.raises(SessionError) as caught:
                await answer("eve")
            assert caught.value.code == "stranger"
        assert session.state.status == "pending"


async def test_a_creator_who_is_one_of_the_humans_need_not_be_invited() -> None:
    async with held(Team([agent("bot")], chat(), humans=["user"])) as session:
        assert session.state.status == "active"
        assert await of_type(session, EV_SESSION_INVITE) == []
        assert (await after(session, "user", "hello")).status == "waiting_human"


async def test_a_human_who_leaves_while_waited_for_has_failed_their_turn() -> None:
    rules = TransitionGraph("bot", (Transition(FromSpeaker("bot"), HumanTarget("ann")),), "bot")
    async with held(Team([agent("bot")], rules, humans=["ann"])) as session:
        await session.join("ann")
        await after(session, "user", "hello")
        await session.leave("ann")
        state = await settled(session)
        assert state.pending_close_reason == "round_failed"


async def test_a_human_may_take_their_time_unless_they_are_named() -> None:
    clock = FakeClock()
    lax = Expectation("turn_within", 60, "auto_close")
    async with held(Team([agent("bot")], chat(), expectations=[lax]), clock=clock) as session:
        await after(session, "user", "hello")
        clock.advance(3600)
        await settled(session)
        assert session.state.status == "waiting_human"
    strict = Expectation("turn_within", 60, "auto_close", ("user",))
    async with held(Team([agent("bot")], chat(), expectations=[strict]), clock=clock) as session:
        await after(session, "user", "hello")
        clock.advance(61)
        await until(lambda: session.state.is_ended)
        assert session.state.pending_close_reason == "expectation_violated:turn_within"
        (violated,) = await of_type(session, EV_EXPECTATION_VIOLATED)
        assert violated.event_data["violators"] == ["user"]


def ask(what: str) -> str:
    """Ask a human for a decision."""
    return f"decided: {interrupt({'question': what})}"


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_tool_asks_a_human_and_goes_on_with_the_decision(durability: Any) -> None:
    done: list[str] = []

    def before() -> str:
        """Do something first."""
        done.append("before")
        return "done"

    one = agent("a", call("before"), call("ask", what="may I?"), "I may", tools=[ask, before])
    async with held(Team([one], sequence(["a"]), durability=durability)) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.is_runnable) == ("waiting_decision", False)
        (question,) = await of_type(session, EV_INTERRUPT)
        assert question.event_data["payload"] == {"question": "may I?"}
        assert await of_type(session, EV_PACKET) == []
        await session.decide(question.event_data["id"], {"approved": True})
        state = await settled(session)
        (decision,) = await of_type(session, EV_DECISION)
        assert decision.sender_id == "user"
        assert decision.event_data["decision"] == {"approved": True}
        assert (await talk(session))[-1] == ("a", "I may")
        assert done == ["before"]
        assert (state.turn_count, state.interrupts) == (1, {})


async def test_what_is_said_while_a_decision_is_pending_waits_in_the_inbox() -> None:
    one = agent("a", call("ask", what="?"), "so", tools=[ask])
    other = agent("b")
    async with held(Team([one, other], sequence(["a", "b"]))) as session:
        await after(session, "user", "hello")
        state = await after(session, "user", "are you there?")
        assert state.status == "waiting_decision"
        assert len(await talk(session)) == 1
        (question,) = await of_type(session, EV_INTERRUPT)
        await session.decide(question.event_data["id"], "yes")
        await settled(session)
        assert [name for name, _ in await talk(session)] == ["user", "a", "user", "b"]
        assert "are you there?" not in shown(one)
        assert "are you there?" in shown(other)


async def test_a_decision_is_made_once_and_only_on_what_was_asked() -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    async def slow(messages: Sequence[BaseMessage]) -> Any:
        if messages[-1].type != "tool":
            return call("ask", what="?")
        entered.set()
        await opened.wait()
        return "so"

    one = agent("a", tools=[ask]).replace(model=ScriptedModel(slow))
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        with pytest.raises(SessionError) as caught:
            await session.decide("nothing", "yes")
        assert caught.value.code == "unknown_interrupt"
        (question,) = await of_type(session, EV_INTERRUPT)
        key = question.event_data["id"]
        await session.decide(key, "yes")
        (decision,) = await of_type(session, EV_DECISION)
        with pytest.raises(AlreadyDecided, match="user has answered 'yes' at 20") as late:
            await session.decide(key, "no")
        assert isinstance(late.value, SessionError) and late.value.code == "already_decided"
        assert (late.value.interrupt_id, late.value.decision) == (key, "yes")
        assert late.value.decided_at == datetime.fromisoformat(decision.created_at)
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        opened.set()
        await settled(session)
        with pytest.raises(AlreadyDecided):
            await session.decide(key, "yes")
        assert len(await of_type(session, EV_DECISION)) == 1
        assert any("decided: yes" in str(m.text) for m in asked(one)[-1].messages)


async def test_two_calls_of_one_message_ask_and_both_are_answered() -> None:
    calls = [call("ask", what="one"), call("ask", what="two")]
    one = agent("a", calls, "so", tools=[ask])
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        asked_ = {
            e.event_data["payload"]["question"]: e.event_data["id"]
            for e in await of_type(session, EV_INTERRUPT)
        }
        assert set(asked_) == {"one", "two"}
        await session.decide(asked_["two"], "second")
        assert (await settled(session)).status == "waiting_decision"
        await session.decide(asked_["one"], "first")
        state = await settled(session)
        told = [str(m.text) for m in asked(one)[-1].messages if m.type == "tool"]
        assert told == ["decided: first", "decided: second"]
        assert state.pending_close_reason == "sequence_complete"


async def test_one_round_asks_twice_one_after_the_other() -> None:
    one = agent("a", call("ask", what="one"), call("ask", what="two"), "so", tools=[ask])
    async with held(Team([one], sequence(["a"]))) as session:
        await session.send("user", "hello")
        for what in ("one", "two"):
            state = await settled(session)
            assert state.status == "waiting_decision"
            question = (await of_type(session, EV_INTERRUPT))[-1].event_data
            assert question["payload"] == {"question": what}
            await session.decide(question["id"], f"yes to {what}")
        await settled(session)
        told = [str(m.text) for m in asked(one)[-1].messages if m.type == "tool"]
        assert told == ["decided: yes to one", "decided: yes to two"]


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_one_call_asks_twice(durability: Any) -> None:
    def ask_twice() -> str:
        """Ask twice."""
        return f"{interrupt('the first')}, {interrupt('the second')}"

    one = agent("a", call("ask_twice"), "so", tools=[ask_twice])
    async with held(Team([one], sequence(["a"]), durability=durability)) as session:
        await after(session, "user", "hello")
        for what in ("the first", "the second"):
            state = await settled(session)
            assert state.status == "waiting_decision"
            question = (await of_type(session, EV_INTERRUPT))[-1].event_data
            assert question["payload"] == what
            await session.decide(question["id"], f"yes to {what}")
        state = await settled(session)
        told = [str(m.text) for m in asked(one)[-1].messages if m.type == "tool"]
        assert told == ["yes to the first, yes to the second"]
        assert state.pending_close_reason == "sequence_complete"


async def test_what_was_written_before_a_question_is_kept_over_it() -> None:
    def put() -> str:
        """Put."""
        set_context("k", 1)
        return "put"

    one = agent("a", call("put"), call("ask", what="?"), "so", tools=[ask, put])
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        (question,) = await of_type(session, EV_INTERRUPT)
        await session.decide(question.event_data["id"], "yes")
        assert dict((await settled(session)).context_vars) == {"k": 1}


async def test_a_sub_agent_asks_through_its_participant() -> None:
    below = agent("below", call("ask", what="?"), "I was told", tools=[ask])
    top = agent("a", call("transfer_to_below"), agents=[below])
    async with held(Team([top], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        (question,) = await of_type(session, EV_INTERRUPT)
        assert question.event_data["speaker"] == "a"
        await session.decide(question.event_data["id"], "yes")
        await settled(session)
        assert (await talk(session))[-1] == ("a", "I was told")


async def test_a_session_that_waits_for_a_decision_can_be_closed() -> None:
    one = agent("a", call("ask", what="?"), "so", tools=[ask])
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        await session.send("user", "never mind")
        await session.close("cancelled")
        assert session.state.pending_close_reason == "cancelled"
        assert session.state.interrupts == {}
        assert (await talk(session))[-1] == ("user", "never mind")


async def test_whoever_leaves_with_a_question_open_is_followed_by_the_failure_target() -> None:
    one = agent("a", call("ask", what="?"), "so", tools=[ask])
    team = Team([one, agent("b")], sequence(["a"]), failure_target="b")
    async with held(team) as session:
        await after(session, "user", "hello")
        (question,) = await of_type(session, EV_INTERRUPT)
        await session.leave("a")
        state = await settled(session)
        assert [name for name, _ in await talk(session)] == ["user", "b"]
        assert state.pending_close_reason == "sequence_complete"
        with pytest.raises(SessionError):
            await session.decide(question.event_data["id"], "yes")


async def test_a_whole_conversation_with_a_human_on_sqlite(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    one = agent(
        "t", call("ask", what="?"), over(target="human", summary="s"), "t again", tools=[ask]
    )
    stages = [PipelineStage("intake", "t", "handling"), PipelineStage("handling", "h")]
    team = Team([one, agent("h")], ConversationPipeline(stages))
    async with held(team, url=url) as session:
        assert (await after(session, "user", "hello")).status == "waiting_decision"
        (question,) = await of_type(session, EV_INTERRUPT)
        await session.decide(question.event_data["id"], "yes")
        assert (await settled(session)).status == "waiting_human"
        state = await after(session, "user", "my answer")
        assert [name for name, _ in await talk(session)] == ["user", "t", "user", "t", "h"]
        assert state.pending_close_reason == "pipeline_complete"


async def test_a_question_outlives_its_hub(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    done: list[str] = []

    def before() -> str:
        """Do something first."""
        done.append("before")
        return "done"

    one = agent("a", call("before"), call("ask", what="?"), "so", tools=[ask, before])
    team = Team([one], sequence(["a"]))
    async with held(team, url=url, id="s") as session:
        await after(session, "user", "hello")
    async with await Hub.open(url, serve=[team]) as hub:
        again = await hub.get("s")
        state = await settled(again)
        assert state.status == "waiting_decision"
        await after(again, "user", "while paused")
        (question,) = await of_type(again, EV_INTERRUPT)
        await again.decide(question.event_data["id"], "yes")
        state = await settled(again)
        assert state.pending_close_reason == "sequence_complete"
        assert done == ["before"]
        assert [text for _, text in await talk(again)] == ["hello", "so", "while paused"]


async def test_a_human_of_another_name_may_decide() -> None:
    one = agent("a", call("ask", what="?"), "so", tools=[ask])
    async with held(Team([one], sequence(["a"]), humans=["ann"])) as session:
        await session.join("ann")
        await after(session, "user", "hello")
        (question,) = await of_type(session, EV_INTERRUPT)
        await session.decide(question.event_data["id"], "yes", sender="ann")
        await settled(session)
        (decision,) = await of_type(session, EV_DECISION)
        assert decision.sender_id == "ann"


# A customer who talks with agents and staff.


async def front_desk(session: Session) -> None:
    await session.join("ann")
    state = await after(session, "customer", "I want to talk to a person")
    assert (state.status, state.expected_next_speaker) == ("waiting_human", "ann")


def staffed(*turns: Any) -> Team:
    router = ConversationRouter(default_agent_id="bot")
    return Team([agent("bot", *turns)], router, humans=["ann"])


async def test_human_means_the_staff_where_the_creator_is_a_customer() -> None:
    async with held(staffed(over(target="human"), "back"), creator="customer") as session:
        await front_desk(session)
        state = await after(session, "customer", "hello? anybody?")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "ann")
        assert [name for name, _ in await talk(session)] == ["customer", "bot", "customer"]
        await after(session, "ann", "I am here")
        assert [name for name, _ in await talk(session)][-2:] == ["ann", "bot"]
        handed = (await of_type(session, EV_PACKET))[0]
        told = await session.explain(handed.sequence)
        assert told.explanation is not None and "waits for ann" in str(told)


async def test_staff_can_release_a_customer_to_the_agent() -> None:
    async with held(staffed(over(target="human"), "back"), creator="customer") as session:
        await front_desk(session)
        await session.release("bot")
        await settled(session)
        assert (await talk(session))[-1] == ("bot", "back")


async def test_without_staff_human_means_the_creator() -> None:
    async with held(staffed(over(target="human"), "so"), required_acks=1) as session:
        await session.join("ann")
        await session.leave("ann")
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")


# Invitations of which not all need an answer.


def invited(*names: str) -> Team:
    return Team([agent("bot")], dialogue("bot"), humans=names)


async def test_who_never_accepted_may_not_speak_until_they_do() -> None:
    async with held(invited("ann", "bob"), required_acks=1) as session:
        with pytest.raises(ConfigurationError, match=r"'bob' has not accepted .* join\('bob'\)"):
            await session.send("bob", "early")
        await session.join("ann")
        assert await status_of(session) == "active"
        for attempt in (session.send("bob", "hi"), session.set_context("k", 1, sender="bob")):
            with pytest.raises(ConfigurationError, match="'bob' has not accepted"):
                await attempt
        await session.join("bob")
        await session.send("bob", "late, but here", admitted=True)
        assert session.state.acks == ("ann", "bob")


async def test_a_rejection_closes_only_what_too_few_others_can_accept() -> None:
    async with held(invited("ann", "bob", "cay"), required_acks=2) as session:
        await session.reject("bob")
        assert await status_of(session) == "pending"
        await session.join("ann")
        await session.join("cay")
        assert await status_of(session) == "active"
        assert "bob" not in session.state.participant_order
    async with held(invited("ann", "bob", "cay"), required_acks=2) as session:
        await session.reject("bob")
        await session.reject("ann")
        assert session.state.pending_close_reason == "invite_rejected"


async def test_who_declines_an_open_session_takes_no_part() -> None:
    async with held(invited("ann", "bob"), required_acks=1) as session:
        await session.join("ann")
        await session.reject("bob")
        assert await status_of(session) == "active"
        assert "bob" not in session.state.participant_order
