"""Loops of a team's agents: what the session's log has of them, and what follows."""

from __future__ import annotations

from typing import Any

from agentgraph import Agent, Team
from agentgraph.routing import FromSpeaker, Transition, TransitionGraph, sequence
from agentgraph.sessions import (
    EV_AUDIT,
    EV_DECISION,
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_TEXT,
    Envelope,
    Session,
)
from agentgraph.stream import GuardEvent
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import corrections, decided, for_ever, looping, solo, watched
from tests.sessions.talk import after, held, of_type, settled, talk

TOLD = "`look` was called 3 times"
ENDED = "The run was ended by the guard"


def other(name: str = "b") -> Agent:
    return solo(ScriptedModel(lambda _: f"{name} speaks"), name=name)


def two(first: Agent, **fields: Any) -> Team:
    return Team([first, other()], sequence(["a", "b"]), **fields)


def kinds(envelopes: list[Envelope]) -> list[str]:
    """Return what was appended after the input, decisions by what they say."""
    begun = [one.event_type for one in envelopes].index(EV_TEXT) + 1
    return [str(one.event_data.get("action") or one.event_type) for one in envelopes[begun:]]


async def the_question(session: Session) -> str:
    (asked,) = await of_type(session, EV_INTERRUPT)
    return str(asked.event_data["id"])


async def test_a_looping_speaker_closes_the_session_by_the_guard_s_name() -> None:
    model = looping()
    async with held(two(solo(model))) as session:
        state = await after(session, "user", "go")
        assert (state.status, state.pending_close_reason) == ("closed", "loop_detector")
        told = kinds(await session.history())
        assert told == ["correct", "abort", EV_ROUND_FAILED, EV_SESSION_CLOSED]
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        data = failed.event_data
        assert (data["speaker"], data["code"], data["message"]) == ("a", "guard", "loop_detector")
        assert (data["attempt"], data["final"]) == (1, True)  # it would only loop again
    assert (len(model.requests), corrections(model, TOLD)) == (7, [3])


async def test_the_result_of_a_team_says_which_guard_closed_it_and_why() -> None:
    result = await two(solo(looping())).arun("go")
    assert (result.close_reason, result.state.status) == ("loop_detector", "closed")
    assert result.text.startswith(f"{ENDED} loop_detector: `look` was called 7 times with the same")


async def test_the_result_of_a_team_with_a_team_inside_says_why_the_guard_closed_it() -> None:
    inner = Team([solo(looping())], sequence(["a"]), name="inner")
    result = await Team([inner], sequence(["inner"])).arun("go")
    assert result.text.startswith(f"{ENDED} loop_detector: `look` was called 7 times with the same")


async def test_what_was_said_before_a_guard_closed_the_team_is_its_text() -> None:
    result = await Team([other(), solo(looping())], sequence(["b", "a"])).arun("go")
    assert (result.close_reason, result.text) == ("loop_detector", "b speaks")


async def test_a_result_whose_guard_another_agent_goes_on_after_has_that_agents_text() -> None:
    result = await two(solo(looping()), failure_target="b").arun("go")
    assert (result.close_reason, result.text) == ("sequence_complete", "b speaks")


async def test_decisions_stand_in_the_log_before_they_take_effect() -> None:
    seen: list[list[str]] = []

    async def turn(messages: Any) -> Any:
        seen.append([str(one.event_data["action"]) for one in await of_type(session, EV_AUDIT)])
        return call("look", what="it")

    async with held(two(solo(ScriptedModel(turn)))) as session:
        await after(session, "user", "go")
    assert seen == [*[[]] * 3, *[["correct"]] * 4]


async def test_the_stream_of_a_session_tells_decisions_with_their_round() -> None:
    told = [one async for one in two(solo(looping())).astream("go")]
    assert decided(told) == [("a", "loop_detector", "correct"), ("a", "loop_detector", "abort")]
    guards = [one for one in told if isinstance(one, GuardEvent)]
    assert {(one.round, one.attempt) for one in guards} == {(1, 1)}


async def test_another_goes_on_after_a_loop_where_the_team_names_one() -> None:
    async with held(two(solo(looping()), failure_target="b")) as session:
        state = await after(session, "user", "go")
        assert await talk(session) == [("user", "go"), ("b", "b speaks")]
        assert state.pending_close_reason == "sequence_complete"


async def test_a_human_goes_on_after_a_loop_where_the_team_names_them() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 7, "I have it."])
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")])
    async with held(Team([solo(model)], rules, failure_target="human")) as session:
        state = await after(session, "user", "go")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
        await after(session, "user", "do something else")
        assert ("a", "I have it.") in await talk(session)


async def test_a_loop_below_a_speaker_closes_the_session_too() -> None:
    model = looping()
    boss = ScriptedModel([call("transfer_to_sub")])
    lead = Agent("a", model=boss, agents=[solo(model, name="sub")], handoff="delegate")
    async with held(two(lead)) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "loop_detector"
        audits = await of_type(session, EV_AUDIT)
        assert [one.event_data["agent"] for one in audits] == ["a/sub", "a/sub"]
    assert corrections(model, TOLD) == [3]


async def test_the_window_of_one_speaker_is_not_filled_by_another() -> None:
    """Each of five speakers looks the same up, and none of them twice."""
    names = ["a", "b", "c", "d", "e"]
    agents = [solo(for_ever(call("look", what="it"), "Seen."), name=name) for name in names]
    async with held(Team(agents, sequence(names))) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "sequence_complete"
        assert await of_type(session, EV_AUDIT) == []


async def test_a_regulated_team_asks_a_human_who_lets_it_go_on() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 7, "I have it."])
    async with held(two(solo(model), guards=watched(tier="regulated"))) as session:
        state = await after(session, "user", "go")
        assert state.status == "waiting_decision"
        assert kinds(await session.history()) == ["correct", "escalate", EV_INTERRUPT]
        await session.decide(await the_question(session), "approve")
        state = await settled(session)
        assert await talk(session) == [("user", "go"), ("a", "I have it."), ("b", "b speaks")]
        assert state.pending_close_reason == "sequence_complete"


async def test_a_regulated_team_asks_a_human_who_ends_it() -> None:
    model = looping()
    async with held(two(solo(model), guards=watched(tier="regulated"))) as session:
        await after(session, "user", "go")
        await session.decide(await the_question(session), "reject")
        state = await settled(session)
        assert (state.status, state.pending_close_reason) == ("closed", "loop_detector")
        assert len(await of_type(session, EV_DECISION)) == 1
        assert await of_type(session, EV_PACKET) == []
    assert len(model.requests) == 7
