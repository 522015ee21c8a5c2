"""Going back in a session: what is answered again, what stays, and what nobody sees any more."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langgraph.types import interrupt

from agentgraph import Agent, effect
from agentgraph.errors import SessionClosed, SessionError
from agentgraph.outcomes import Handoff
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
)
from agentgraph.sessions import (
    EV_AUDIT,
    EV_CANCELLED,
    EV_HANDOFF,
    EV_INTERRUPT,
    EV_PACKET,
    EV_REWOUND,
    EV_TEXT,
    Envelope,
    Expectation,
    FullTranscript,
    Hub,
    Session,
    Team,
    TeamResult,
    WindowedSummary,
    audit_of,
    current_session,
)
from agentgraph.testing import FakeClock, call
from tests.sessions.hub.test_cancel import Work, begun, desk, digging
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


def counting(name: str = "b", **fields: Any) -> Agent:
    """Return an agent that says something else each time."""
    return agent(name, *(f"{name} says {n}" for n in range(40)), **fields)


async def rewound(session: Session, to: int) -> Envelope:
    """Go back, and wait until nothing moves by itself."""
    async with asyncio.timeout(PATIENCE_S):
        await session.rewind(to)
    await settled(session)
    return (await of_type(session, EV_REWOUND))[-1]


async def said(session: Session, text: str) -> Envelope:
    return next(one for one in await session.history() if one.text == text)


async def test_an_answer_is_given_again_and_the_first_one_is_seen_by_nobody(log_url: str) -> None:
    one = counting()
    async with held(desk(one), url=log_url) as session:
        await after(session, "user", "first")
        await after(session, "user", "second")
        second = await said(session, "second")
        round = session.state.round
        envelope = await rewound(session, second.sequence)
        assert (envelope.event_data["to"], envelope.event_data["by"]) == (second.sequence, "user")
        (*_, packet) = await of_type(session, EV_PACKET)
        assert packet.text == "b says 2" and packet.event_data["round"] == round + 1
        assert "b says 0" in shown(one) and "b says 1" not in shown(one)
        assert session.state.turn_count == 3
        assert [e.sequence for e in await session.history()] == [*range(1, packet.sequence + 1)]
        assert [e async for e in _until(session, packet.sequence)] == await session.history()
        state = session.state
        assert state.live == ((1, second.sequence), (envelope.sequence, None))
        result = TeamResult.of(await session.history(), session.record, state)
        assert result.text == "b says 2"


async def _until(session: Session, sequence: int) -> Any:
    async for envelope in session.watch():
        yield envelope
        if envelope.sequence == sequence:
            return


async def test_a_text_is_edited_by_going_back_to_before_it() -> None:
    one = counting()
    async with held(desk(one)) as session:
        await after(session, "user", "first")
        await after(session, "user", "secnod")
        typo = await said(session, "secnod")
        await rewound(session, typo.sequence - 1)
        assert session.state.status == "waiting_human" and len(asked(one)) == 2
        await after(session, "user", "second")
        assert "second" in shown(one)
        assert "secnod" not in shown(one) and "b says 1" not in shown(one)


async def test_a_session_begins_again_with_another_first_text() -> None:
    one = counting()
    async with held(desk(one)) as session:
        await after(session, "user", "hello")
        await rewound(session, 1)
        assert session.state.round > 0 and session.can_send("user")
        await after(session, "user", "good evening")
        assert "good evening" in shown(one) and "hello" not in shown(one)
        assert [e.text for e in await of_type(session, EV_PACKET)] == ["b says 0", "b says 1"]


async def test_the_state_is_that_of_then_with_the_numbers_of_now() -> None:
    async with held(desk(counting())) as session:
        await session.set_context("plan", "gold")
        then = await after(session, "user", "first")
        await session.set_context("plan", "free")
        now = await after(session, "user", "second")
        await rewound(session, then.sequence)
        state = session.state
        assert state.context_vars == {"plan": "gold"} and state.said == then.said
        assert (state.turn_count, state.status) == (then.turn_count, then.status)
        assert state.sequence > now.sequence and state.round > now.round
        assert state.used == now.used


async def test_a_round_under_way_is_cancelled_first() -> None:
    work = Work()
    one = digging(work, "so")
    async with held(desk(one)) as session:
        await begun(session, work)
        text = await said(session, "dig, please")
        await rewound(session, text.sequence)
        assert work.ends == ["cancelled"]
        (cancelled,) = await of_type(session, EV_CANCELLED)
        assert cancelled.event_data["reason"] == "rewound"
        assert "interrupted" not in shown(one) and "a map" not in shown(one)
        assert [e.text for e in await of_type(session, EV_PACKET)] == ["so"]


async def test_what_was_asked_then_is_asked_again_and_the_first_decision_counts_no_more() -> None:
    def ask() -> str:
        """Ask."""
        return f"you said {interrupt('may I?')}"

    one = agent("b", call("ask"), "first", call("ask"), "second", tools=[ask])
    async with held(desk(one)) as session:
        state = await after(session, "user", "hello")
        (key,) = state.interrupts
        await session.decide(key, "yes")
        await settled(session)
        question = (await of_type(session, EV_INTERRUPT))[0]
        await rewound(session, question.sequence)
        (new_key,) = session.state.interrupts
        assert new_key != key and session.state.status == "waiting_decision"
        with pytest.raises(SessionError):
            await session.decide(key, "yes")
        await session.decide(new_key, "no")
        await settled(session)
        assert (await of_type(session, EV_PACKET))[-1].text == "second"


async def test_a_rewind_undoes_a_rewind() -> None:
    one = counting()
    async with held(desk(one)) as session:
        first = await after(session, "user", "first")
        second = await after(session, "user", "second")
        await rewound(session, first.sequence)
        await after(session, "user", "other")
        assert "second" not in shown(one)
        await rewound(session, second.sequence)
        await after(session, "user", "third")
        assert "second" in shown(one) and "b says 1" in shown(one)
        assert "other" not in shown(one) and "b says 2" not in shown(one)


async def test_effects_are_listed_and_stay_done() -> None:
    done: list[str] = []

    @effect(compensate=lambda: done.append("undone"))
    def pay() -> str:
        """Pay."""
        done.append(current_session().id)
        return "paid"

    one = agent("b", call("pay"), "so", call("pay"), "so", tools=[pay])
    async with held(desk(one)) as session:
        await after(session, "user", "hello")
        text = await said(session, "hello")
        envelope = await rewound(session, text.sequence)
        (first,) = envelope.event_data["effects"]
        assert first["tool"].endswith("pay") and first["state"] == "done"
        assert len(done) == 2  # in another round it is another payment
        assert {*session.state.effects} > {first["key"]}
        keys = {e.event_data["entry"]["key"] for e in await of_type(session, EV_AUDIT)}
        assert len(keys) == 2
        audit = audit_of(session.record, await session.history())
        assert (
            sum(one.kind == "effect" and one.data["state"] == "done" for one in audit.records) == 2
        )


async def test_spending_is_not_refunded() -> None:
    async with held(desk(counting())) as session:
        await after(session, "user", "hello")
        spent = audit_of(session.record, await session.history()).usage.total_tokens
        await rewound(session, 2)
        again = audit_of(session.record, await session.history()).usage.total_tokens
        assert again > spent
        assert session.state.used["b"]["total_tokens"] == again


async def test_an_identical_resend_stays_known() -> None:
    async with held(desk(counting())) as session:
        first = await session.send("user", "hello", idempotency_key="k")
        await settled(session)
        await rewound(session, 1)
        assert (await session.send("user", "hello", idempotency_key="k")).id == first.id
        await settled(session)
        assert len(await of_type(session, EV_PACKET)) == 1


async def test_a_handoff_and_its_phase_come_with_the_turn_that_has_made_it() -> None:
    def pass_on() -> Handoff:
        """Pass on."""
        return Handoff("c", "because", next_phase="handling")

    team = Team(
        [agent("b", call("pass_on"), "so", tools=[pass_on]), counting("c")],
        TransitionGraph("b", [Transition(FromSpeaker("user"), "b")], HumanTarget()),
    )
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert (state.phase, state.active_agent) == ("handling", "c")
        packet = (await of_type(session, EV_PACKET))[0]
        await rewound(session, packet.sequence)
        assert (session.state.phase, session.state.active_agent) == ("handling", "c")
        assert len(await of_type(session, EV_HANDOFF)) == 1
        assert [e.text for e in await of_type(session, EV_PACKET)][1:] == ["c says 0", "c says 1"]


async def test_time_limits_begin_anew() -> None:
    clock = FakeClock()
    expected = [Expectation("turn_within", 60.0, "auto_close"), Expectation("max_silence", 100.0)]
    work = Work()
    one = digging(work, "so")
    async with held(desk(one, expectations=expected), clock=clock) as session:
        await begun(session, work)
        clock.advance(50)
        work.begun.clear()
        one_text = await said(session, "dig, please")
        await rewound(session, one_text.sequence)
        clock.advance(50)
        state = await settled(session)
        assert not state.is_ended and state.violated == ()


async def test_a_closed_session_is_forked_instead_and_unknown_envelopes_are_refused() -> None:
    async with held(desk(counting()), participants=["guest"]) as session:
        with pytest.raises(SessionError, match="not open at 1"):
            await session.rewind(1)
        await session.join("guest")
        await after(session, "user", "hello")
        for unknown in (0, -1, 99, "3", True, None):
            with pytest.raises(SessionError, match="there is no envelope"):
                await session.rewind(unknown)  # type: ignore[arg-type]
        await session.close()
        with pytest.raises(SessionClosed, match=r"fork\(3\)"):
            await session.rewind(3)


async def test_what_arrived_before_a_rewind_is_abandoned_and_what_arrives_later_is_answered() -> (
    None
):
    one = counting()
    async with held(desk(one)) as session:
        first = await after(session, "user", "first")
        await session.send("user", "too late")
        await session.rewind(first.sequence)
        await after(session, "user", "in time")
        assert "too late" not in shown(one) and "in time" in shown(one)
        assert "too late" in [e.text for e in await of_type(session, EV_TEXT)]


async def test_participants_see_that_the_session_went_back_and_no_state() -> None:
    async with held(desk(counting())) as session:
        await after(session, "user", "hello")
        await rewound(session, 1)
        (envelope,) = [
            e for e in await session.history(reader="user") if e.event_type == EV_REWOUND
        ]
        assert dict(envelope.event_data) == {"to": 1, "by": "user"}
        watched = [e async for e in _readers(session, envelope.sequence)]
        assert watched[-1] == envelope


async def _readers(session: Session, sequence: int) -> Any:
    async for envelope in session.watch(reader="user"):
        yield envelope
        if envelope.sequence == sequence:
            return


async def test_a_parallel_round_goes_on_where_it_was() -> None:
    work = Work()
    quick = agent("q", "quick as ever")
    last = agent("last")
    fan_out = ParallelTarget(("b", "q"), join="last")
    rules = [Transition(FromSpeaker("a"), fan_out), Transition(FromSpeaker("user"), "a")]
    slow = digging(work, "slow but sure")
    team = Team([agent("a"), quick, slow, last], TransitionGraph("a", rules, HumanTarget()))
    async with held(team) as session:
        await begun(session, work)
        await until(lambda: session.state.spoken == ("q",))
        await rewound(session, session.state.sequence)
        packets = [e.sender_id for e in await of_type(session, EV_PACKET)]
        assert packets == ["a", "q", "b", "last"]
        # The order is that of the list, though the packets are of rounds with other numbers.
        prompt = shown(last)
        assert prompt.index("slow but sure") < prompt.index("quick as ever")


@pytest.mark.parametrize("view", [None, FullTranscript(), WindowedSummary(3)])
async def test_many_rewinds_leave_a_small_state_and_exact_views(log_url: str, view: Any) -> None:
    count = 20 if log_url != "memory" else 40
    one = agent("b")
    async with held(desk(one, view=view), url=log_url) as session:
        for number in range(count):
            await after(session, "user", f"keep {number}")
            state = session.state
            await after(session, "user", f"drop {number}")
            await rewound(session, state.sequence)
        assert len(session.state.live) <= 16
        assert len(json.dumps(session.state.to_dict()["live"])) < 500
        await after(session, "user", "last")
        prompt = shown(one)
        assert "drop" not in prompt and f"keep {count - 1}" in prompt
        if isinstance(view, FullTranscript):
            assert all(f"keep {number}\n" in prompt for number in range(count))
        else:
            shown_count = 3 if view is not None else 4
            total = 2 * count + 1 - shown_count
            assert f"{total} messages from" in prompt


async def test_a_summary_covers_the_live_branch_only() -> None:
    given: list[str] = []

    def summarize(before: str, envelopes: Any) -> str:
        given.extend(e.text for e in envelopes)
        return f"{before} {len(envelopes)}"

    one = agent("b")
    team = desk(one, view=WindowedSummary(2), summarize=summarize)
    async with held(team) as session:
        for number in range(4):
            await after(session, "user", f"keep {number}")
            sequence = session.state.sequence
            await after(session, "user", f"drop {number}")
            await rewound(session, sequence)
        given.clear()
        for number in range(4, 12):
            await after(session, "user", f"keep {number}")
        assert any("keep" in text for text in given)
        assert not any("drop" in text for text in given)


async def test_a_supervisors_remark_on_an_abandoned_branch_is_not_seen() -> None:
    gate = asyncio.Event()

    async def look() -> str:
        """Look."""
        gate.set()
        await asyncio.Event().wait()
        return "never"

    boss = agent("boss", call("look"), "I have seen the draft", tools=[look])
    one = counting()
    async with held(desk(one, supervisor=boss)) as session:
        await session.send("user", "draft")
        async with asyncio.timeout(PATIENCE_S):
            await gate.wait()
        await settled(session)
        await rewound(session, 1)
        await after(session, "user", "hello")
        assert "seen the draft" not in shown(one)


async def test_a_rewind_through_another_hub_is_carried_out_by_the_owner(tmp_path: Any) -> None:
    url, work = f"sqlite:///{tmp_path / 's.db'}", Work()
    one = digging(work, "so")
    async with (
        await Hub.open(url, serve=[desk(one)]) as hub,
        await Hub.open(url, serve=[desk(counting())]) as other,
    ):
        session = await hub.session("desk")
        await begun(session, work)
        there = await other.get(session.id)
        async with asyncio.timeout(PATIENCE_S):
            await there.rewind(2)
        await settled(session)
        assert (await of_type(there, EV_PACKET))[-1].text == "so"


async def test_a_fork_of_a_session_that_went_back_has_its_live_branch() -> None:
    one = counting()
    async with held(desk(one)) as session:
        first = await after(session, "user", "first")
        await after(session, "user", "drop")
        await rewound(session, first.sequence)
        await after(session, "user", "keep")
        fork = await session.fork(session.state.sequence)
        await after(fork, "user", "more")
        assert "keep" in shown(one) and "drop" not in shown(one)
