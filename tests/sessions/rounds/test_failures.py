"""Rounds that fail: each is told with its kind, tried again once, and then the session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent, Guards, TeamResult
from agentgraph.guards import Backoff, Deadlines, StepLimit
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    Envelope,
    Hub,
    Session,
    Team,
    report_progress,
    set_context,
)
from agentgraph.testing import FakeClock, Fault, ScriptedModel, Turn, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    asked,
    held,
    of_type,
    settled,
    shown,
    talk,
    until,
    untried,
)


async def failures(session: Session) -> list[tuple[Any, ...]]:
    """Return whose rounds failed: the code, the attempt, and whether that was the last."""
    return [
        (
            one.event_data["speaker"],
            one.event_data["code"],
            one.event_data["attempt"],
            one.event_data["final"],
        )
        for one in await of_type(session, EV_ROUND_FAILED)
    ]


class Hung:
    """A model that never answers, until it is told to."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = 0
        self.model = ScriptedModel(self._turn)

    def has_been_cut_off(self, times: int) -> bool:
        return self.cancelled == times

    async def _turn(self, messages: Sequence[BaseMessage]) -> str:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return ""


async def test_a_model_that_failed_once_is_asked_again() -> None:
    one = agent("a", Fault.server_error(), "here I am")
    async with held(Team([one], sequence(["a"]), guards=untried())) as session:
        state = await after(session, "user", "hello")
        assert await failures(session) == [("a", "model", 1, False)]
        (packet,) = await of_type(session, EV_PACKET)
        assert (packet.text, packet.event_data["attempt"]) == ("here I am", 2)
        assert (state.turn_count, state.pending_close_reason) == (1, "sequence_complete")
        assert shown(one, 0) == shown(one, 1)


async def test_a_model_that_failed_twice_closes_the_session() -> None:
    one = agent("a", Fault.server_error(), Fault.rate_limit(), "never")
    team = Team([one, agent("b")], sequence(["a", "b"]), guards=untried())
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert await failures(session) == [("a", "model", 1, False), ("a", "model", 2, True)]
        assert (state.status, state.pending_close_reason) == ("closed", "round_failed")
        assert len(asked(one)) == 2
        assert (await of_type(session, EV_SESSION_CLOSED))[0].event_data["reason"] == "round_failed"


async def test_a_fault_that_passes_is_mended_within_its_round() -> None:
    one = agent("a", Fault.server_error(), Fault.rate_limit(), "here I am")
    guards = Guards.interactive(backoff=Backoff(base_s=0))
    async with held(Team([one], sequence(["a"]), guards=guards)) as session:
        state = await after(session, "user", "hello")
        assert await failures(session) == []
        (packet,) = await of_type(session, EV_PACKET)
        assert (packet.text, packet.event_data["attempt"]) == ("here I am", 1)
        assert state.pending_close_reason == "sequence_complete"


async def test_a_fault_that_lasts_fails_the_round_once_all_its_attempts_have() -> None:
    one = agent("a", *[Fault.server_error()] * 3, "here I am")
    guards = Guards.interactive(backoff=Backoff(base_s=0))
    async with held(Team([one], sequence(["a"]), guards=guards)) as session:
        state = await after(session, "user", "hello")
        assert await failures(session) == [("a", "model", 1, False)]
        assert len(asked(one)) == 4
        assert state.pending_close_reason == "sequence_complete"


async def test_a_failure_says_its_kind_and_keeps_what_the_provider_wrote_to_itself() -> None:
    one = agent("a", ValueError("secret-of-the-provider"), "fine")
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        assert "ValueError" in failed.event_data["message"]
        assert "secret-of-the-provider" not in str(failed.event_data)
        assert failed.event_data["round"] == 1
        assert failed.sender_id == "ag.hub"


async def test_what_a_failed_round_has_used_is_told() -> None:
    usage: Any = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}

    def look() -> str:
        """Look."""
        return "seen"

    first = Turn(calls=[call("look")], usage=usage)
    one = agent("a", first, Fault.server_error(), "fine", tools=[look])
    result = await Team([one], sequence(["a"]), guards=untried()).arun("hello")
    failed = next(one for one in result.envelopes if one.event_type == EV_ROUND_FAILED)
    assert failed.event_data["usage"]["a"]["total_tokens"] == 7
    packet = next(one for one in result.envelopes if one.event_type == EV_PACKET)
    both = 7 + packet.event_data["usage"]["a"]["total_tokens"]
    assert result.usage.total_tokens == both


async def test_a_round_that_hangs_is_cut_off_at_its_deadline() -> None:
    hung, clock = Hung(), FakeClock()
    guards = Guards.interactive(deadlines=Deadlines(stage_s=30.0))
    one = agent("a").replace(model=hung.model)
    team = Team([one], sequence(["a"]), guards=guards)
    async with held(team, clock=clock) as session:
        await session.send("user", "hello")
        for attempt in (1, 2):
            async with asyncio.timeout(PATIENCE_S):
                await hung.entered.wait()
            hung.entered.clear()
            clock.advance(29.0)
            assert hung.cancelled == attempt - 1
            clock.advance(1.5)
            await until(partial(hung.has_been_cut_off, attempt))
        state = await settled(session)
        assert await failures(session) == [("a", "deadline", 1, False), ("a", "deadline", 2, True)]
        assert state.pending_close_reason == "round_failed"
        result = TeamResult.of(await session.history(), session.record, state)
    assert result.text.startswith("The run was ended by the guard deadline: cut off after 30 s")


async def test_without_guards_there_is_no_deadline() -> None:
    hung, clock = Hung(), FakeClock()
    one = agent("a").replace(model=hung.model)
    team = Team([one], sequence(["a"]), guards=None, expectations=())
    async with held(team, clock=clock, ttl=None) as session:
        await session.send("user", "hello")
        await hung.entered.wait()
        clock.advance(1e6)
        await session.set_context("still", "open")
        assert (hung.cancelled, session.state.status) == (0, "active")


async def test_a_task_expires_with_its_round_and_fails_with_its_call() -> None:
    clock = FakeClock()
    waiting = asyncio.Event()

    async def work() -> str:
        """Work."""
        report_progress("begun")
        waiting.set()
        await asyncio.Event().wait()
        return ""

    async def break_() -> str:
        """Break."""
        report_progress("begun")
        raise ValueError("broken")

    one = agent("a", call("work"), call("break_"), "so", tools=[work, break_])
    async with held(Team([one], sequence(["a"])), clock=clock) as session:
        await session.send("user", "hello")
        async with asyncio.timeout(PATIENCE_S):
            await waiting.wait()
        clock.advance(181)
        await settled(session)
        (expired,) = await of_type(session, EV_TASK_EXPIRED)
        (failed,) = await of_type(session, EV_TASK_FAILED)
        assert (expired.event_data["attempt"], failed.event_data["attempt"]) == (1, 2)


@pytest.mark.parametrize("said", ["", "   \n"])
async def test_a_silent_round_is_a_failed_one(said: str) -> None:
    async with held(Team([agent("a", said, "a word")], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert await failures(session) == [("a", "silent", 1, False)]
        assert state.pending_close_reason == "sequence_complete"
    async with held(Team([agent("a", said, said)], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert await failures(session) == [("a", "silent", 1, False), ("a", "silent", 2, True)]
        assert state.pending_close_reason == "round_failed"


async def test_a_guard_that_ends_a_round_closes_with_its_name_at_once() -> None:
    def look() -> str:
        """Look."""
        return "seen"

    one = agent("a", *[call("look")] * 9, tools=[look])
    guards = Guards.interactive(steps=StepLimit(3))
    async with held(Team([one], sequence(["a"]), guards=guards)) as session:
        state = await after(session, "user", "hello")
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        assert (failed.event_data["code"], failed.event_data["final"]) == ("guard", True)
        assert failed.event_data["message"] == "max_steps"
        assert len(asked(one)) == 3
        assert state.pending_close_reason == "max_steps"


async def test_the_steps_of_all_rounds_of_one_input_are_counted_together() -> None:
    guards = Guards.interactive(steps=StepLimit(3, total=3))
    team = Team([agent("a"), agent("b")], sequence(["a", "b", "a", "b", "a"]), guards=guards)
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)][1:] == ["a", "b", "a"]
        assert state.pending_close_reason == "max_steps"


async def test_each_input_has_steps_of_its_own() -> None:
    guards = Guards.interactive(steps=StepLimit(2))
    rules = TransitionGraph("a", (Transition(FromSpeaker("user"), "a"),), HumanTarget())
    async with held(Team([agent("a")], rules, guards=guards)) as session:
        for _ in range(4):
            state = await after(session, "user", "hello")
        assert (state.status, state.turn_count) == ("waiting_human", 7)


async def test_what_a_failed_round_wrote_is_not_written() -> None:
    def note(value: int) -> str:
        """Note."""
        set_context("k", value)
        return "noted"

    one = agent("a", call("note", value=1), Fault.server_error(), "without a note", tools=[note])
    async with held(Team([one], sequence(["a"]), guards=untried())) as session:
        state = await after(session, "user", "hello")
        assert dict(state.context_vars) == {}


async def test_each_round_has_two_attempts_of_its_own() -> None:
    turns: list[Any] = [
        Fault.server_error(),
        "one",
        Fault.server_error(),
        "two",
        Fault.server_error(),
        "three",
    ]
    team = Team([agent("a", *turns)], sequence(["a", "a", "a"]), guards=untried())
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [attempt for _, _, attempt, _ in await failures(session)] == [1, 1, 1]
        assert [one.event_data["attempt"] for one in await of_type(session, EV_PACKET)] == [2, 2, 2]
        assert state.pending_close_reason == "sequence_complete"


async def test_an_error_of_our_own_kind_keeps_its_code() -> None:
    def prompt(messages: Any) -> str:
        raise RuntimeError("the prompt broke")

    model = ScriptedModel(["x"])
    one = Agent("a", "x", model=model, system_prompt=prompt, default_tools=False)
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        assert [code for _, code, _, _ in await failures(session)] == ["error", "error"]
        (first, _) = await of_type(session, EV_ROUND_FAILED)
        assert first.event_data["message"] == "RuntimeError"


@pytest.mark.parametrize("target", ["b", "human", "ann"])
async def test_after_a_failure_for_good_the_failure_target_goes_on(target: str) -> None:
    one, other = agent("a", Fault.server_error(), Fault.server_error(), "back"), agent("b")
    rules = TransitionGraph(
        "a",
        (
            Transition(FromSpeaker("user"), "a"),
            *([Transition(FromSpeaker("ann"), "b")] if target == "ann" else []),
            *(
                [Transition(FromSpeaker("b"), TerminateTarget("b_spoke"))]
                if target != "human"
                else []
            ),
        ),
        TerminateTarget("done"),
    )
    humans = ["ann"] if target == "ann" else []
    members = [one] if target == "human" else [one, other]
    team = Team(members, rules, failure_target=target, humans=humans, guards=untried())
    async with held(team) as session:
        if humans:
            await session.join("ann")
        state = await after(session, "user", "hello")
        assert [final for *_, final in await failures(session)] == [False, True]
        if target == "b":
            assert state.pending_close_reason == "b_spoke"
            return
        human = "user" if target == "human" else "ann"
        assert (state.status, state.expected_next_speaker) == ("waiting_human", human)
        state = await after(session, human, "try again")
        assert state.pending_close_reason == ("done" if target == "human" else "b_spoke")


async def test_where_the_failure_target_fails_too_the_session_closes() -> None:
    team = Team(
        [agent("a", Fault.server_error(), Fault.server_error()), agent("b", "", "")],
        sequence(["a"]),
        failure_target="b",
        guards=untried(),
    )
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, *_ in await failures(session)] == ["a", "a", "b", "b"]
        assert state.pending_close_reason == "round_failed"


async def test_whoever_leaves_while_speaking_has_failed_for_good() -> None:
    hung = Hung()
    team = Team([agent("a").replace(model=hung.model), agent("b")], sequence(["a", "b"]))
    async with held(team) as session:
        await session.send("user", "hello")
        await hung.entered.wait()
        await session.leave("a")
        state = await settled(session)
        assert await failures(session) == [("a", "left", 0, True)]
        assert (state.pending_close_reason, hung.cancelled) == ("round_failed", 1)


async def test_whoever_left_is_given_the_floor_no_more() -> None:
    rules = TransitionGraph(
        "a",
        (Transition(FromSpeaker("user"), "b"),),
        HumanTarget(),
    )
    async with held(Team([agent("a"), agent("b")], rules)) as session:
        await after(session, "user", "hello")
        await session.leave("b")
        state = await after(session, "user", "b, please")
        assert state.participant_order == ("a",)
        assert (state.status, asked_of(session)) == ("waiting_human", 3)
        assert [name for name, _ in await talk(session)] == ["user", "a", "user"]


def asked_of(session: Session) -> int:
    return sum(session.state.said.values())


async def test_where_the_initial_speaker_has_left_nobody_is_waited_for() -> None:
    async with held(Team([agent("a"), agent("b")], sequence(["a", "b"]))) as session:
        await session.leave("a")
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "sequence_complete"
        assert await talk(session) == [("user", "hello")]


async def test_a_failure_target_that_has_left_is_none() -> None:
    team = Team([agent("a", "", ""), agent("b")], sequence(["a"]), failure_target="b")
    async with held(team) as session:
        await session.leave("b")
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "round_failed"
        assert await talk(session) == [("user", "hello")]


async def test_a_session_is_closed_while_somebody_speaks() -> None:
    hung = Hung()
    team = Team([agent("a").replace(model=hung.model)], sequence(["a"]))
    async with held(team) as session:
        await session.send("user", "hello")
        await hung.entered.wait()
        await session.close("enough")
        assert (session.state.status, session.state.pending_close_reason) == ("closed", "enough")
        await settled(session)
        assert hung.cancelled == 1
        assert await of_type(session, EV_PACKET) == []


async def test_a_tool_that_ends_the_process_fails_and_ends_nothing() -> None:
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    one = agent("a", call("leave"), "still here", tools=[leave])
    async with held(Team([one], sequence(["a"]))) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "sequence_complete"


async def test_a_failed_session_on_sqlite_reads_the_same_afterwards(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    team = Team([agent("a", "", "")], sequence(["a"]))
    async with held(team, url=url, id="s") as session:
        state = await after(session, "user", "hello")
    async with await Hub.open(url, serve=[team]) as hub:
        again = await hub.get("s")
        assert again.state == state
        history: list[Envelope] = await again.history()
        assert [one.event_type for one in history][-3:] == [
            EV_ROUND_FAILED,
            EV_ROUND_FAILED,
            EV_SESSION_CLOSED,
        ]
