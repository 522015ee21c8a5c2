"""The supervisor: sees all that is said, beside the speakers, and is in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent, Guards, TeamResult
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Deadlines
from agentgraph.outcomes import Finish, Handoff
from agentgraph.phases import ConversationPipeline, PipelineStage
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph, sequence
from agentgraph.sessions import EV_HANDOFF, EV_PACKET, EV_ROUND_FAILED, Hub, Session, Team
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    asked,
    heard,
    held,
    of_type,
    settled,
    talk,
    until,
)

SILENT = call("stay_silent")


def watcher(turn: Callable[[Sequence[BaseMessage]], Any], **fields: Any) -> Agent:
    """Return a supervisor that looks at all that it is shown."""
    model = ScriptedModel(turn)
    return Agent("boss", "watches", model=model, default_tools=False, **fields)


def chat(*agents: Agent, supervisor: Agent, **fields: Any) -> Team:
    """Return a team whose first agent answers the user."""
    rules = TransitionGraph(
        agents[0].name, (Transition(FromSpeaker("user"), agents[0].name),), HumanTarget()
    )
    return Team(agents, rules, supervisor=supervisor, **fields)


async def looked(session: Session, boss: Agent, word: str) -> None:
    """Wait until the supervisor has been shown something."""
    await until(lambda: any(word in heard(r.messages) for r in asked(boss)))
    await settled(session)


async def test_it_sees_everything_and_can_stay_silent() -> None:
    boss = watcher(lambda messages: SILENT)
    async with held(chat(agent("a"), supervisor=boss)) as session:
        await session.send("user", "for nobody", audience=[])
        await after(session, "user", "hello")
        await looked(session, boss, "a speaks")
        everything = "\n".join(heard(r.messages) for r in asked(boss))
        assert "[user]: for nobody" in everything
        assert "[a]: a speaks" in everything
        assert all(name != "boss" for name, _ in await talk(session))
        assert set(asked(boss)[0].tools) == {"stay_silent", "handoff_conversation"}


async def test_what_it_says_is_an_interjection() -> None:
    def judge(messages: Sequence[BaseMessage]) -> Any:
        return "Mind the tone." if "a speaks" in heard(messages) else SILENT

    one = agent("a")
    boss = watcher(judge)
    async with held(chat(one, supervisor=boss)) as session:
        await after(session, "user", "hello")
        await until(lambda: "boss" in session.state.said)
        state = session.state
        assert (state.status, state.turn_count) == ("waiting_human", 1)
        assert ("boss", "Mind the tone.") in await talk(session)
        packet = next(e for e in await of_type(session, EV_PACKET) if e.sender_id == "boss")
        assert "decision" not in packet.event_data
        await after(session, "user", "go on")
        assert "[boss]: Mind the tone." in heard(asked(one)[-1].messages)


async def test_it_does_not_answer_its_own_words_for_ever() -> None:
    boss = watcher(lambda messages: "a remark" if "a speaks" in heard(messages) else SILENT)
    async with held(chat(agent("a"), supervisor=boss)) as session:
        await after(session, "user", "hello")
        await until(lambda: session.state.said.get("boss", 0) == 1)
        await settled(session)
        count = len(asked(boss))
        await after(session, "user", "more", audience=[])
        await settled(session)
        assert session.state.said["boss"] <= 3
        assert len(asked(boss)) <= count + 4


async def test_it_moves_the_floor() -> None:
    def judge(messages: Sequence[BaseMessage]) -> Any:
        if "a speaks" in heard(messages) and "b speaks" not in heard(messages):
            return call("handoff_conversation", target="b", reason="b knows", summary="tides")
        return SILENT

    other = agent("b")
    async with held(chat(agent("a"), other, supervisor=watcher(judge))) as session:
        await after(session, "user", "hello")
        await until(lambda: session.state.said.get("b"))
        state = await settled(session)
        assert [name for name, _ in await talk(session)] == ["user", "a", "boss", "b"]
        (told,) = await of_type(session, EV_HANDOFF)
        assert (told.event_data["from"], told.event_data["target"]) == ("boss", "b")
        assert "[Context from boss]: tides" in heard(asked(other)[-1].messages)
        assert state.status == "waiting_human"


async def test_the_summary_of_a_handoff_is_not_for_it() -> None:
    def give() -> Handoff:
        """Give it to b."""
        return Handoff("b", "b knows", "for b alone")

    other, boss = agent("b"), watcher(lambda messages: SILENT)
    team = chat(agent("a", call("give"), tools=[give]), other, supervisor=boss)
    async with held(team) as session:
        await after(session, "user", "hello")
        await until(lambda: any("handed over to b" in heard(r.messages) for r in asked(boss)))
        assert "[Context from a]: for b alone" in heard(asked(other)[0].messages)
        assert all("for b alone" not in heard(r.messages) for r in asked(boss))


async def test_it_moves_the_floor_to_a_human() -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    async def slow(messages: Sequence[BaseMessage]) -> str:
        entered.set()
        await opened.wait()
        return "b speaks"

    def judge(messages: Sequence[BaseMessage]) -> Any:
        if "a speaks" in heard(messages):
            return call("handoff_conversation", target="human", reason="angry", summary="")
        return SILENT

    team = Team(
        [agent("a"), agent("b").replace(model=ScriptedModel(slow)), agent("c")],
        sequence(["a", "b", "c"]),
        supervisor=watcher(judge),
    )
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "hello")
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        await until(lambda: hub.log.inbox(session.id))  # the supervisor's words
        opened.set()
        state = await settled(session)
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
        (told,) = await of_type(session, EV_HANDOFF)
        assert told.event_data["target"] == "human"


async def test_it_closes() -> None:
    def close() -> Finish:
        """Close it."""
        return Finish("This is over.", "stopped_by_boss")

    boss = watcher(
        lambda messages: call("close") if "a speaks" in heard(messages) else SILENT, tools=[close]
    )
    async with held(chat(agent("a"), supervisor=boss)) as session:
        await session.send("user", "hello")
        await until(lambda: session.state.is_ended)
        assert session.state.pending_close_reason == "stopped_by_boss"
        assert (await talk(session))[-1] == ("boss", "This is over.")
        result = TeamResult.of(await session.history(), session.record, session.state)
    assert result.text == "a speaks"


async def test_it_never_blocks_even_if_its_model_hangs() -> None:
    clock, entered = FakeClock(), asyncio.Event()

    async def hang(messages: Sequence[BaseMessage]) -> Any:
        entered.set()
        await asyncio.Event().wait()

    boss = watcher(hang)
    guards = Guards.interactive(deadlines=Deadlines(stage_s=30.0))
    async with held(chat(agent("a"), supervisor=boss, guards=guards), clock=clock) as session:
        for number in (1, 2, 3):
            state = await after(session, "user", f"word {number}")
            assert state.said["a"] == number
        await until(entered.is_set)
        assert len(asked(boss)) == 1
        clock.advance(31)
        await until(lambda: len(asked(boss)) == 2)
        assert "word 3" in heard(asked(boss)[-1].messages)
        await session.close()
        assert await of_type(session, EV_ROUND_FAILED) == []


async def test_it_never_blocks_even_if_its_model_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail(messages: Sequence[BaseMessage]) -> Any:
        return ValueError("broken")

    boss = watcher(fail)
    async with held(chat(agent("a"), supervisor=boss)) as session:
        state = await after(session, "user", "hello")
        await until(lambda: "the supervisor of" in caplog.text)
        assert (state.status, state.turn_count) == ("waiting_human", 1)
        assert await of_type(session, EV_ROUND_FAILED) == []


async def test_an_agent_of_the_team_can_be_its_supervisor_by_name() -> None:
    boss = watcher(lambda messages: SILENT)
    team = Team([agent("a"), boss], sequence(["a"]), supervisor="boss")
    assert team.names == ("a",)
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert state.participant_order == ("a",)
        assert state.pending_close_reason == "sequence_complete"


async def test_a_pipelines_supervisor_watches() -> None:
    boss = watcher(lambda messages: SILENT)
    pipeline = ConversationPipeline([PipelineStage("intake", "a")], supervisor_id="boss")
    async with held(Team([agent("a"), boss], pipeline)) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a"]
        assert state.pending_close_reason == "pipeline_complete"
        await until(lambda: True)


async def test_a_supervisor_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="none of the agents"):
        Team([agent("a")], sequence(["a"]), supervisor="zed")


async def test_the_supervisor_cannot_be_handed_the_conversation() -> None:
    boss = watcher(lambda messages: SILENT)
    one = agent("a", call("handoff_conversation", target="boss", reason="", summary=""), "so")
    team = Team([one, boss], sequence(["a"]), supervisor="boss", aliases={"me": "a"})
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "sequence_complete"
        told = [str(m.text) for m in asked(one)[-1].messages if m.type == "tool"]
        assert '"unknown_target"' in told[0]
