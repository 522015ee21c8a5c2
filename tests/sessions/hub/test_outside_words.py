"""What callers outside of a session's rounds may send, and what a tool asks of its session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgraph.errors import ConfigurationError, SessionClosed, SessionError
from agentgraph.routing import (
    FromSpeaker,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    Draft,
    Team,
    current_session,
    packet_envelope,
    set_context,
    text_envelope,
)
from agentgraph.testing import call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    dialogue,
    held,
    hub_of,
    of_type,
    shown,
    talk,
)

FORTY_KB = "x" * 40_000


async def close_it() -> str:
    """Close the session."""
    await current_session().close("enough")
    return "closing"


async def test_a_tool_that_closes_the_session_keeps_the_packet_of_its_round() -> None:
    one = agent("a", call("close_it"), "that was all", tools=[close_it])
    async with held(Team([one, agent("b")], sequence(["a", "b"]))) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "enough"
        assert await talk(session) == [("user", "go"), ("a", "that was all")]
        last = [envelope.event_type for envelope in await session.history()][-2:]
        assert last == [EV_PACKET, EV_SESSION_CLOSED]


async def test_a_tool_that_closes_the_session_waits_for_parallel_speakers_too() -> None:
    one = agent("b", call("close_it"), "closed", tools=[close_it])
    fan = Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], TerminateTarget("joined")))
    team = Team([agent("a"), one, agent("c")], TransitionGraph("a", [fan]))
    async with held(team) as session:
        await after(session, "user", "go")
        assert sorted(name for name, _ in await talk(session)) == ["a", "b", "c", "user"]


async def test_a_closing_round_that_fails_closes_the_session_all_the_same() -> None:
    one = agent("a", call("close_it"), "", tools=[close_it])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "enough"
        assert len(await of_type(session, EV_ROUND_FAILED)) == 1


async def test_whoever_sets_a_context_variable_is_named() -> None:
    team = Team([agent("a")], dialogue("a"), humans=["ann"])
    async with held(team) as session:
        await session.join("ann")
        await session.set_context("tier", "gold", sender="ann")
        await session.set_context("by", "creator")
        await session.delete_context("by", sender="ann")
        senders = [envelope.sender_id for envelope in await of_type(session, EV_CONTEXT_SET)]
        assert senders == ["ann", "user", "ann"]
        assert dict(session.state.context_vars) == {"tier": "gold"}
        with pytest.raises(ConfigurationError, match="'eve' takes no part"):
            await session.set_context("tier", "none", sender="eve")


async def test_an_answer_to_an_envelope_that_is_not_there_is_refused() -> None:
    async with held(Team([agent("a")], dialogue("a"))) as session:
        with pytest.raises(ConfigurationError, match="no such envelope") as caught:
            await session.send("user", "as I said", causation_id="nonsense")
        assert caught.value.code == "draft"
        receipt = await session.send("user", "hello")
        await session.send("user", "and", causation_id=receipt.id)  # admitted, or in the inbox
        await session.settled()
        with pytest.raises(ConfigurationError, match="no such envelope"):
            await session.send("user", text_envelope("of another", causation_id="nonsense"))
        texts = [text for name, text in await talk(session) if name == "user"]
        assert texts == ["hello", "and"]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_envelope_that_one_may_not_see_is_like_one_that_is_not_there(waits: bool) -> None:
    team = Team([agent("a")], dialogue("a"), humans=["ann", "eve", "bob"])
    async with held(team) as session:
        for name in ("ann", "eve") if waits else ("ann", "eve", "bob"):
            await session.join(name)
        secret = await session.send("ann", "a secret", audience=["ann", "user"])
        entries = await hub_of(session).log.inbox(session.key)
        assert bool(entries) is waits  # until all have joined
        for id in (secret.id, "nonsense"):
            with pytest.raises(ConfigurationError) as refused:
                await session.send("eve", "I know", causation_id=id)
            text = f"causation_id={id!r}: the session has no such envelope"
            assert (*refused.value.faults, refused.value.code) == (text, "draft")
            with pytest.raises(SessionError) as unknown:
                async with asyncio.timeout(PATIENCE_S):
                    await session.answer(id, reader="eve")
            assert unknown.value.code == "unknown_run"
        for name in ("ann", "user"):
            await session.send(name, "indeed", causation_id=secret.id)


@pytest.mark.parametrize(
    "data",
    [{"foo": 1}, {"set": {"a": 1}, "foo": 1}, {"set": [1]}, {"delete": "a"}],
)
async def test_a_context_change_of_another_form_is_refused(data: dict[str, Any]) -> None:
    async with held(Team([agent("a")], dialogue("a"))) as session:
        with pytest.raises(ConfigurationError, match=r"event_data: .*'(foo|set|delete)'"):
            await session.send("user", Draft(EV_CONTEXT_SET, data))


@pytest.mark.parametrize(
    "event_type",
    ["ag.session.closed", "AG.session.closed", "Ag.Session.Closed", "AG.MSG.TEXT", "ag.own"],
)
async def test_a_lifecycle_type_is_refused_in_any_case_of_letters(event_type: str) -> None:
    async with held(Team([agent("a")], dialogue("a"))) as session:
        with pytest.raises(ConfigurationError, match="said by sessions alone") as caught:
            await session.send("user", Draft(event_type, {"reason": "forged"}))
        assert caught.value.code == "reserved_type"
        await session.send("user", Draft("agency.session.closed", {}), admitted=True)


async def test_the_context_has_a_limit_in_all() -> None:
    async with held(Team([agent("a")], dialogue("a"))) as session:
        for number in range(6):
            await session.set_context(f"k{number}", FORTY_KB)
        with pytest.raises(ConfigurationError, match="256000 are allowed in all") as caught:
            await session.set_context("k6", FORTY_KB)
        assert caught.value.code == "payload"
        packet = packet_envelope("more", context_set={"k6": FORTY_KB})
        with pytest.raises(ConfigurationError, match="256000 are allowed in all"):
            await session.send("user", packet)
        await session.delete_context("k0")
        await session.set_context("k6", FORTY_KB)
        assert sorted(session.state.context_vars) == [f"k{number}" for number in range(1, 7)]


async def test_a_tool_is_told_that_the_context_is_full() -> None:
    def put() -> str:
        """Put."""
        set_context("more", FORTY_KB)
        return "put"

    one = agent("a", call("put"), "so be it", tools=[put])
    async with held(Team([one], sequence(["a"])), context={"k": FORTY_KB * 6}) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "sequence_complete"
        assert "256000 are allowed in all" in shown(one)
        assert sorted(state.context_vars) == ["k"]


async def test_a_round_that_would_overfill_the_context_fails() -> None:
    def put(key: str) -> str:
        """Put."""
        set_context(key, FORTY_KB * 3)
        return "put"

    turn: list[Any] = [[call("put", key="x"), call("put", key="y")], "so"]
    one = agent("a", *turn, *turn, tools=[put])
    async with held(Team([one], sequence(["a"])), context={"k": FORTY_KB}) as session:
        state = await after(session, "user", "go")
        assert state.pending_close_reason == "round_failed"
        failures = [envelope.event_data for envelope in await of_type(session, EV_ROUND_FAILED)]
        assert {failure["code"] for failure in failures} == {"payload"}


async def test_a_session_that_a_tool_has_closed_takes_no_more() -> None:
    one = agent("a", call("close_it"), "that was all", tools=[close_it])
    async with held(Team([one], dialogue("a"))) as session:
        await after(session, "user", "go")
        with pytest.raises(SessionClosed):
            await session.send("user", "more")
