"""Cancelling the round under way: what ends, what stays, and who speaks next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from langgraph.types import interrupt

from agentgraph import Agent, effect
from agentgraph.errors import ConfigurationError, RoutingWarning, SessionError
from agentgraph.routing import (
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_CANCELLED,
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_TASK_EXPIRED,
    Envelope,
    Hub,
    Session,
    Team,
    audit_of,
    current_session,
    report_progress,
    set_context,
    text_envelope,
)
from agentgraph.testing import call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    asked,
    held,
    of_type,
    settled,
    shown,
    until,
)


@dataclass
class Work:
    """A tool that takes for ever, and one that is done at once."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[str] = field(default_factory=list)

    def tools(self) -> list[Callable[..., Any]]:
        async def dig() -> str:
            """Dig."""
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ends.append("cancelled")
            return "never"

        def look() -> str:
            """Look."""
            return "a map"

        return [dig, look]


def digging(work: Work, *more: Any) -> Agent:
    return agent("b", call("look"), call("dig"), *(more or ["so"]), tools=work.tools())


def desk(*agents: Agent, **fields: Any) -> Team:
    """Return a team in which b answers the user."""
    rules = TransitionGraph("b", [Transition(FromSpeaker("user"), "b")], HumanTarget())
    return Team(agents, rules, **{"name": "desk", **fields})


async def begun(session: Session, work: Work, text: str = "dig, please") -> None:
    await session.send("user", text)
    async with asyncio.timeout(PATIENCE_S):
        await work.begun.wait()


async def cancelled(session: Session, reason: str = "cancelled") -> Envelope:
    """Cancel the round under way; return what the log has of it."""
    async with asyncio.timeout(PATIENCE_S):
        await session.cancel(reason)
    return (await of_type(session, EV_CANCELLED))[-1]


async def test_a_cancelled_round_leaves_what_is_known_of_it_and_the_floor_to_the_creator(
    log_url: str,
) -> None:
    work = Work()
    async with held(desk(digging(work)), url=log_url) as session:
        await begun(session, work)
        round = session.state.round
        envelope = await cancelled(session, "wrong place")
        assert work.ends == ["cancelled"]
        data = envelope.event_data
        assert (data["speakers"], data["round"], data["attempt"]) == (["b"], round, 1)
        assert (data["reason"], data["by"]) == ("wrong place", "user")
        calls = [one for step in data["steps"]["b"] for one in step["calls"]]
        assert [(one["tool"], one["status"]) for one in calls] == [
            ("look", "success"),
            ("dig", "error"),
        ]
        assert calls[0]["result"] == "a map" and "Outcome unknown" in calls[1]["result"]
        assert data["usage"]["b"]["total_tokens"] > 0
        state = session.state
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
        assert state.round == round + 1 and state.turn_count == 0 and not state.failures
        assert state.used["b"]["total_tokens"] == data["usage"]["b"]["total_tokens"]
        assert await of_type(session, EV_ROUND_FAILED, EV_PACKET) == []


async def test_the_interrupted_agent_goes_on_with_what_it_had_found_out() -> None:
    work = Work()
    one = digging(work, "I dig elsewhere.")
    async with held(desk(one)) as session:
        await begun(session, work)
        await cancelled(session)
        await after(session, "user", "elsewhere, please")
        prompt = shown(one)
        assert "a map" in prompt and "[I was interrupted]" in prompt
        assert "Outcome unknown" in prompt and "elsewhere, please" in prompt
        assert [e.event_data["round"] for e in await of_type(session, EV_PACKET)] == [3]


async def test_others_are_told_that_somebody_was_interrupted_and_nothing_that_he_had_found() -> (
    None
):
    work = Work()
    other = agent("c")
    rules = TransitionGraph("b", [Transition(FromSpeaker("user"), "c")], HumanTarget())
    async with held(Team([digging(work), other], rules)) as session:
        await begun(session, work)
        await cancelled(session)
        await after(session, "user", "c, what do you think?\n[b was interrupted]")
        assert "[b was interrupted]" in shown(other)
        assert "(b was interrupted)" in shown(other)  # what the user wrote is no notice
        assert "a map" not in shown(other)


async def test_a_sequence_goes_on_with_the_speaker_that_was_interrupted() -> None:
    work = Work()
    names = ["a", "b", "c"]
    team = Team([agent("a"), digging(work, "done"), agent("c")], sequence(names))
    async with held(team) as session:
        await begun(session, work)
        await cancelled(session)
        state = await after(session, "user", "go on")
        packets = await of_type(session, EV_PACKET)
        assert [one.sender_id for one in packets] == names
        assert state.pending_close_reason == "sequence_complete"


async def test_a_release_gives_the_floor_back_to_the_speaker_that_was_interrupted() -> None:
    work = Work()
    team = Team([agent("a"), digging(work, "done")], sequence(["a", "b"]))
    async with held(team) as session:
        await begun(session, work)
        await cancelled(session)
        await session.release()
        await settled(session)
        assert [one.sender_id for one in await of_type(session, EV_PACKET)] == ["a", "b"]


async def test_of_parallel_speakers_those_that_have_spoken_stay() -> None:
    work = Work()

    def note() -> str:
        """Note."""
        set_context("noted", True)
        return "noted"

    quick = agent("q", call("note"), "quick as ever", "again", tools=[note])
    last = agent("last")
    fan_out = ParallelTarget(("q", "b"), join="last")
    rarely = Transition(FromSpeaker("user") & ContextEquals("anew", True), "a")
    rules = TransitionGraph("a", [rarely, Transition(FromSpeaker("a"), fan_out)], HumanTarget())
    with pytest.warns(RoutingWarning, match="only under conditions"):
        team = Team([agent("a"), quick, digging(work, "done"), last], rules)
    async with held(team) as session:
        await begun(session, work)
        await until(lambda: session.state.spoken == ("q",))
        envelope = await cancelled(session)
        assert envelope.event_data["speakers"] == ["b"]
        assert session.state.context_vars == {"noted": True}
        state = await after(session, "user", "go on")
        speakers = [one.sender_id for one in await of_type(session, EV_PACKET)]
        assert speakers[:2] == ["a", "q"] and sorted(speakers[2:4]) == ["b", "q"]
        assert speakers[4:] == ["last"] and state.status == "waiting_human"
        assert "quick as ever" in shown(last)


async def test_open_questions_are_withdrawn_and_a_later_decision_is_refused(log_url: str) -> None:
    def ask() -> str:
        """Ask."""
        return f"you said {interrupt('may I?')}"

    def look() -> str:
        """Look."""
        return "a map"

    one = agent("b", call("look"), call("ask"), "so", tools=[ask, look])
    async with held(desk(one), url=log_url) as session:
        state = await after(session, "user", "hello")
        (key,) = state.interrupts
        data = (await cancelled(session)).event_data
        calls = [one["tool"] for step in data["steps"]["b"] for one in step["calls"]]
        assert calls == ["look", "ask"]
        assert (session.state.interrupts, session.state.status) == ({}, "waiting_human")
        with pytest.raises(SessionError, match="nothing waits for a decision") as refused:
            await session.decide(key, "yes")
        assert refused.value.code == "unknown_interrupt"
        await after(session, "user", "never mind")
        assert "a map" in shown(one)
        asked_usage = (await of_type(session, EV_INTERRUPT))[0].event_data["usage"]
        assert asked_usage["b"]["total_tokens"] > 0 and not data["usage"]


async def test_what_a_question_had_come_to_is_known_after_a_restart(tmp_path: Any) -> None:
    def ask() -> str:
        """Ask."""
        return f"you said {interrupt('may I?')}"

    def look() -> str:
        """Look."""
        return "a map"

    url = f"sqlite:///{tmp_path / 's.db'}"
    for durability in ("round", "step"):
        one = agent("b", call("look"), call("ask"), "so", tools=[ask, look])
        team = desk(one, durability=durability)
        async with await Hub.open(url, serve=[team]) as hub:
            session = await hub.session(team, id=durability)
            await after(session, "user", "hello")
        async with await Hub.open(url, serve=[team]) as hub:
            session = await hub.get(durability)
            data = (await cancelled(session)).event_data
            calls = [one for step in data["steps"]["b"] for one in step["calls"]]
            assert [(one["tool"], one["result"][:15]) for one in calls] == [
                ("look", "a map"),
                ("ask", "Outcome unknown"),
            ]


async def test_a_cancel_through_another_hub_reaches_the_running_tool(tmp_path: Any) -> None:
    url, work = f"sqlite:///{tmp_path / 's.db'}", Work()
    team, other_team = desk(digging(work)), desk(digging(Work()))
    async with (
        await Hub.open(url, serve=[team]) as hub,
        await Hub.open(url, serve=[other_team]) as other,
    ):
        session = await hub.session(team)
        await begun(session, work)
        there = await other.get(session.id)
        await cancelled(there)
        assert work.ends == ["cancelled"]
        assert (await session.refresh()).status == "waiting_human"


async def test_a_cancel_that_nobody_has_carried_out_is_carried_out_by_the_next_hub(
    tmp_path: Any,
) -> None:
    url, work, second = f"sqlite:///{tmp_path / 's.db'}", Work(), Work()
    team = desk(digging(work))
    async with await Hub.open(url, serve=[team]) as hub:
        session = await hub.session(team, id="s")
        await begun(session, work)
        for driver in hub.drivers:
            await driver.stop()  # as if its process had died
        with suppress(TimeoutError):
            await asyncio.wait_for(session.cancel(), 0.1)
    team = desk(digging(second))
    async with await Hub.open(url, serve=[team]) as hub:
        session = await hub.get("s")
        assert (await settled(session)).status == "waiting_human"
        assert len(await of_type(session, EV_CANCELLED)) == 1
        assert not second.begun.is_set() and asked(team.agents[0]) == []  # type: ignore[arg-type]


async def test_nothing_under_way_is_nothing_to_cancel(log_url: str) -> None:
    async with held(desk(agent("b")), url=log_url) as session:
        await session.cancel()
        await after(session, "user", "hello")
        before = await session.history()
        await session.cancel()
        assert await session.history() == before
        await session.close()
        await session.cancel()
        assert (await of_type(session, EV_CANCELLED)) == []
        with pytest.raises(ConfigurationError, match="give a string"):
            await session.cancel(3)  # type: ignore[arg-type]


async def test_a_message_that_was_sent_before_is_not_answered_and_one_sent_later_is() -> None:
    one = agent("b")
    async with held(desk(one)) as session:
        hub = session._hub
        await session.send("user", "first")
        await session.cancel()
        assert asked(one) == []
        await after(session, "user", "second")
        assert len(asked(one)) == 1
        assert hub is session._hub
        said = [e.text for e in await session.history() if e.sender_id == "user"]
        assert said == ["first", "second"]
        assert "[I was interrupted]" in shown(one)


async def test_a_long_reason_is_clipped_and_the_cancel_can_be_explained() -> None:
    work = Work()
    async with held(desk(digging(work))) as session:
        await begun(session, work)
        envelope = await cancelled(session, "x" * 250_000)
        assert len(envelope.event_data["reason"]) < 3_000
        explanation = await session.explain(envelope.sequence)
        assert explanation.decision is not None and explanation.explanation is None
        assert explanation.decision.speakers == ("user",)


async def test_a_tool_may_cancel_its_own_round() -> None:
    async def stop() -> str:
        """Stop."""
        await current_session().cancel("enough")
        await asyncio.Event().wait()
        return "never"

    async with held(desk(agent("b", call("stop"), "so", tools=[stop]))) as session:
        await session.send("user", "hello")
        state = await settled(session)
        assert state.status == "waiting_human"
        assert (await of_type(session, EV_CANCELLED))[0].event_data["reason"] == "enough"


async def test_a_cancelled_private_round_stays_private() -> None:
    work = Work()
    other = agent("c")
    rules = TransitionGraph("b", [Transition(FromSpeaker("user"), "c")], HumanTarget())
    team = Team([digging(work), other], rules, humans=["guest"])
    async with held(team) as session:
        await session.join("guest")
        await session.send("user", text_envelope("dig", audience=["b"]))
        async with asyncio.timeout(PATIENCE_S):
            await work.begun.wait()
        envelope = await cancelled(session)
        assert set(envelope.audience or ()) == {"user", "b"}
        assert envelope not in await session.history(reader="guest")
        await after(session, "user", text_envelope("c, hello", audience=None))
        assert "interrupted" not in shown(other)


async def test_effects_stay_and_the_audit_lists_them() -> None:
    work, done = Work(), []

    @effect(compensate=lambda: done.append("undone"))
    def pay() -> str:
        """Pay."""
        done.append("paid")
        return "paid"

    one = agent("b", call("pay"), call("dig"), "so", tools=[pay, *work.tools()])
    async with held(desk(one)) as session:
        await begun(session, work)
        await cancelled(session)
        assert done == ["paid"]
        audit = audit_of(session.record, await session.history())
        kinds = [(one.kind, one.data.get("state")) for one in audit.records if one.kind == "effect"]
        assert kinds[-1] == ("effect", "done")
        assert audit.usage.total_tokens > 0
        (human,) = [one for one in audit.records if one.kind == "human"]
        assert human.data["reviewer"] == "user"


async def test_tasks_of_a_cancelled_round_end_with_it() -> None:
    work = Work()
    begun_tools = work.tools()

    async def long() -> str:
        """Take long."""
        report_progress("half of it")
        return str(await begun_tools[0]())

    async with held(desk(agent("b", call("long"), "so", tools=[long]))) as session:
        await begun(session, work)
        await cancelled(session)
        assert len(await of_type(session, EV_TASK_EXPIRED)) == 1


async def test_the_inner_session_of_a_cancelled_round_ends_and_its_usage_counts() -> None:
    work = Work()
    inner = Team([agent("first"), digging(work)], sequence(["first", "b"]), name="inner")
    rules = TransitionGraph("inner", [Transition(FromSpeaker("user"), "inner")], HumanTarget())
    async with held(Team([inner], rules, name="outer")) as session:
        await begun(session, work)
        (inner_id,) = session._hub.drivers.owned_session(session.id).inner_ids  # type: ignore[union-attr]
        data = (await cancelled(session)).event_data
        assert {*data["usage"]} == {"inner/first", "inner/b"}

        async def has_ended() -> bool:
            stored = await session._hub.log.load(inner_id)
            return bool(stored and stored.state and stored.state.is_ended)

        await until(has_ended)


async def test_what_a_delegate_had_done_answers_the_call_that_it_serves() -> None:
    work = Work()
    worker = agent("worker", call("look"), call("dig"), "so", tools=work.tools())
    ask = call("transfer_to_worker", reason="dig", summary="")
    one = agent("b", ask, "so", agents=[worker], handoff="delegate")
    async with held(desk(one)) as session:
        await begun(session, work)
        data = (await cancelled(session)).event_data
        (step,) = data["steps"]["b"]
        assert "Outcome unknown" in step["calls"][0]["result"]
        assert "- look: a map" in step["calls"][0]["result"]
        assert {*data["usage"]} == {"b", "b/worker"}


async def test_the_budgets_and_the_round_keys_of_a_cancelled_round_are_not_used_again() -> None:
    work, keys = Work(), []

    def mark() -> str:
        """Mark."""
        keys.append(current_session().state.round)
        return "marked"

    one = agent("b", call("mark"), call("dig"), call("mark"), "so", tools=[mark, *work.tools()])
    async with held(desk(one)) as session:
        await begun(session, work)
        await cancelled(session)
        await after(session, "user", "again")
        assert len(set(keys)) == 2 and keys == sorted(keys)
