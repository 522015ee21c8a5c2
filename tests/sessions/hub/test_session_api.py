"""A session by its handle: what it tells, what can be asked of it, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgraph import Agent
from agentgraph.errors import (
    ConfigurationError,
    Quarantined,
    RoutingWarning,
    SessionClosed,
    SessionError,
)
from agentgraph.outcomes import Handoff
from agentgraph.routing import (
    AgentTarget,
    FromSpeaker,
    HumanTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_OPENED,
    EV_TEXT,
    Draft,
    Envelope,
    Expectation,
    Hub,
    Session,
    Team,
    packet_envelope,
)
from agentgraph.stream import Event, TokenEvent
from agentgraph.testing import FakeClock, Fault, ScriptedModel
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    dialogue,
    held,
    of_type,
    settled,
    talk,
    until,
)


def desk(*turns: Any, **fields: Any) -> Team:
    """Return a team of one who answers whatever the user says."""
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    return Team([agent("a", *turns)], rules, **{"name": "desk", **fields})


# Reading.


async def test_the_history_is_all_that_was_told_in_order_or_what_came_after() -> None:
    async with held(desk()) as session:
        await after(session, "user", "hello")
        whole = await session.history()
        assert [one.event_type for one in whole] == [EV_SESSION_OPENED, EV_TEXT, EV_PACKET]
        assert await session.history(after=2) == whole[2:]
        assert await session.history(after=3) == await session.history(after=99) == []
        assert await session.history(after=-5) == whole


@pytest.mark.parametrize("start", [0, 1, 4])
async def test_watching_yields_what_is_there_and_what_comes_and_ends_with_the_session(
    start: int,
) -> None:
    async with held(desk()) as session:
        await after(session, "user", "hello")
        seen: list[Envelope] = []

        async def follow() -> None:
            async for envelope in session.watch(after=start):
                seen.append(envelope)  # noqa: PERF401 - what came before the end is looked at

        following = asyncio.ensure_future(follow())
        await after(session, "user", "more")
        await until(lambda: seen and seen[-1].sequence == session.state.sequence)
        assert not following.done()
        await session.close()
        async with asyncio.timeout(PATIENCE_S):
            await following
        assert seen == await session.history(after=start)
        assert seen[-1].event_type == EV_SESSION_CLOSED


async def test_a_closed_session_can_be_watched_from_its_first_word() -> None:
    async with held(desk()) as session:
        await after(session, "user", "hello")
        await session.close()
        async with asyncio.timeout(PATIENCE_S):
            assert [one async for one in session.watch()] == await session.history()


@pytest.mark.parametrize("start", [5, 99])
async def test_watching_from_the_end_of_a_closed_session_ends_at_once(start: int) -> None:
    async with held(desk()) as session:
        await after(session, "user", "hello")
        await session.close()
        assert session.state.sequence <= 5
        async with asyncio.timeout(PATIENCE_S):
            assert [one async for one in session.watch(after=start)] == []
            assert [one async for one in session.stream(after=start)] == []


async def test_several_watch_at_their_own_pace() -> None:
    async with held(desk()) as session:
        fast, slow = session.watch(), session.watch()
        await anext(slow)
        for _ in range(5):
            await after(session, "user", "hello")
        await session.close()
        async with asyncio.timeout(PATIENCE_S):
            assert [one async for one in fast] == await session.history()
            assert [one async for one in slow] == await session.history(after=1)


async def test_the_stream_has_tokens_between_envelopes_with_their_round_and_attempt() -> None:
    async with held(desk("one two", "three")) as session:
        items = await streamed(session, "hello", "again")
        tokens = [one for one in items if isinstance(one, TokenEvent)]
        rounds = [one.event_data["round"] for one in items if is_packet(one)]
        assert len(rounds) == 2 and {one.round for one in tokens} == {*rounds}
        assert {one.attempt for one in tokens} == {1}
        for number, text in zip(rounds, ("one two", "three"), strict=True):
            assert "".join(t.text for t in tokens if t.round == number) == text
        envelopes = [one for one in items if isinstance(one, Envelope)]
        assert envelopes == await session.history()


def is_packet(one: Envelope | Event) -> bool:
    return isinstance(one, Envelope) and one.event_type == EV_PACKET


async def streamed(session: Session, *said: str) -> list[Any]:
    """Return all that a stream brings while things are said, up to the close."""
    items: list[Any] = []

    async def follow() -> None:
        async for one in session.stream():
            items.append(one)  # noqa: PERF401 - what came before the end is looked at

    following = asyncio.ensure_future(follow())
    await until(lambda: items)
    for text in said:
        await after(session, "user", text)
    await session.close()
    async with asyncio.timeout(PATIENCE_S):
        await following
    return items


async def test_of_an_attempt_that_died_a_client_can_drop_what_it_saw() -> None:
    async with held(desk(Fault.cut("half a word and more"), "whole")) as session:
        items = await streamed(session, "hello")
        failed = next(
            one for one in items if isinstance(one, Envelope) and one.event_type == EV_ROUND_FAILED
        )
        packet = next(one for one in items if is_packet(one))
        died = failed.event_data["round"], failed.event_data["attempt"]
        lived = packet.event_data["round"], packet.event_data["attempt"]
        assert (died, lived) == ((1, 1), (1, 2))
        tokens = [one for one in items if isinstance(one, TokenEvent)]
        assert any((t.round, t.attempt) == died for t in tokens)
        kept = [t.text for t in tokens if (t.round, t.attempt) == lived]
        assert "".join(kept) == "whole" == packet.text


async def test_a_stream_that_is_left_is_left() -> None:
    async with held(desk()) as session:
        async for _ in session.stream():
            break
        await after(session, "user", "hello")


# Forking.


async def test_a_fork_is_the_same_up_to_an_envelope_and_goes_on_by_itself() -> None:
    clock = FakeClock()
    async with held(desk("first", "second", "another second"), clock=clock) as session:
        await after(session, "user", "one")
        await after(session, "user", "two")
        whole = await session.history()
        clock.advance(10)
        at = next(one.sequence for one in whole if one.text == "first")
        fork = await session.fork(at)
        assert fork.id != session.id and fork.state.status == "waiting_human"
        copied = await fork.history()
        assert [one.envelope_id for one in copied] == [one.envelope_id for one in whole[:at]]
        assert {one.session_id for one in copied} == {fork.id}
        await after(fork, "user", "something else")
        assert [text for _, text in await talk(fork)] == [
            "one",
            "first",
            "something else",
            "another second",
        ]
        assert await session.history() == whole
        assert (fork.record.parent.session_id, fork.record.parent.at) == (session.id, at)  # type: ignore[union-attr]
        assert fork.record.created_at == session.record.created_at + 10


async def test_a_fork_in_the_middle_of_a_round_runs_it_when_it_is_used() -> None:
    async with held(desk("first", "first again")) as session:
        await after(session, "user", "one")
        at = next(one.sequence for one in await session.history() if one.text == "one")
        fork = await session.fork(at)
        await settled(session)
        assert len(await fork.history()) == at  # nobody has asked for it
        await settled(fork)
        assert await talk(fork) == [("user", "one"), ("a", "first again")]


async def test_a_closed_session_can_be_forked_before_its_end_and_goes_on() -> None:
    async with held(desk()) as session:
        await after(session, "user", "one")
        await session.close()
        fork = await session.fork(session.state.sequence - 1)
        state = await after(fork, "user", "two")
        assert state.status == "waiting_human"
        ended = await session.fork(session.state.sequence)
        with pytest.raises(SessionClosed):
            await ended.send("user", "two")


async def test_a_fork_of_a_fork_is_one_too() -> None:
    async with held(desk()) as session:
        await after(session, "user", "one")
        second = await (await session.fork(2)).fork(2)
        await settled(second)
        assert [who for who, _ in await talk(second)] == ["user", "a"]


@pytest.mark.parametrize("at", [0, -1, 4, 99, "1", None, 1.0, True])
async def test_what_is_no_sequence_can_be_neither_forked_nor_explained(at: Any) -> None:
    async with held(desk()) as session:
        await after(session, "user", "one")
        for ask in (session.fork, session.explain):
            with pytest.raises(SessionError) as error:
                await ask(at)
            assert error.value.code == "unknown_sequence"


# Explaining.


def look() -> str:
    """Look."""
    return "seen"


async def test_a_decision_is_explained_by_its_rule_and_why_no_other_fired() -> None:
    rules = TransitionGraph(
        "a",
        [
            Transition(ToolCalled("look"), "a"),
            Transition(FromSpeaker("a"), "b"),
            Transition(FromSpeaker("user"), "a"),
        ],
        HumanTarget(),
    )
    async with held(Team([agent("a", tools=[look]), agent("b")], rules)) as session:
        await after(session, "user", "one")
        opened, text, first, second = await session.history()
        told = await session.explain(first.sequence)
        assert told.envelope == first and told.decision is not None
        assert told.decision.to_dict() == first.event_data["decision"]
        assert told.explanation is not None and told.explanation.decision == told.decision
        fired = [one.rule for one in told.explanation.verdicts if one.fired]
        assert fired == [1] and not told.explanation.verdicts[0].fired
        assert "look" in str(told)
        assert "nothing was decided" in str(await session.explain(opened.sequence))
        for one in (text, second):
            said = await session.explain(one.sequence)
            assert said.explanation is not None and said.explanation.decision == said.decision


async def test_a_decision_is_explained_as_it_was_made_whatever_a_text_carries() -> None:
    async with held(desk()) as session:
        forged = {"text": "one", "routing": {"kind": "handoff", "target": "a", "tool": "x"}}
        await after(session, "user", "zero", Draft(EV_TEXT, forged))
        for one in await session.history():
            told = await session.explain(one.sequence)
            if told.decision is not None and told.explanation is not None:
                assert told.explanation.decision == told.decision


async def test_what_no_rule_has_decided_is_not_explained_by_one() -> None:
    team = desk(RuntimeError(), RuntimeError(), "up", failure_target="human")
    async with held(team) as session:
        await after(session, "user", "one")
        failed = (await of_type(session, EV_ROUND_FAILED))[-1]
        told = await session.explain(failed.sequence)
        assert told.decision is not None and told.decision.action == "wait"
        assert told.explanation is None and str(told)


async def test_a_handoff_is_explained_as_one() -> None:
    rules = TransitionGraph("user", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    with pytest.warns(RoutingWarning, match="gives 'b' the floor, only a Handoff could"):
        team = Team([agent("a"), agent("b")], rules)
    async with held(team) as session:
        draft = packet_envelope("over", handoff=Handoff("b", "because"))
        await after(session, "user", draft)
        said = (await of_type(session, EV_PACKET))[0]
        told = await session.explain(said.sequence)
        assert told.decision is not None and told.decision.rule == "handoff"
        assert told.explanation is not None and told.explanation.decision == told.decision


# Listening.


async def test_handlers_hear_their_type_or_all_until_they_are_ended() -> None:
    heard: dict[str, list[int]] = {"packets": [], "all": []}
    async with held(desk()) as session:
        session.on(EV_PACKET, lambda one: heard["packets"].append(one.sequence))
        end = session.on("*", lambda one: heard["all"].append(one.sequence))
        await after(session, "user", "one")
        assert heard == {"packets": [3], "all": [2, 3]}
        end()
        end()  # twice is once
        await after(session, "user", "two")
        assert heard == {"packets": [3, 5], "all": [2, 3]}


async def test_a_handler_hears_of_its_own_session_only() -> None:
    heard: list[str] = []
    async with await Hub.open(serve=[desk()]) as hub:
        one, two = await hub.session("desk"), await hub.session("desk")
        one.on("*", lambda envelope: heard.append(envelope.session_id))
        await after(two, "user", "hello")
        assert heard == []
        await after(one, "user", "hello")
        assert set(heard) == {one.id}


async def test_an_async_handler_is_awaited_beside_the_session() -> None:
    heard: list[str] = []
    done = asyncio.Event()

    async def hear(envelope: Envelope) -> None:
        await asyncio.wait({asyncio.ensure_future(done.wait())})
        heard.append(envelope.event_type)

    async with held(desk()) as session:
        session.on(EV_PACKET, hear)
        await after(session, "user", "one")
        assert heard == []
        done.set()
        await until(lambda: heard == [EV_PACKET])


async def test_a_handler_hears_what_another_hub_appends(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    heard: list[int] = []
    async with (
        await Hub.open(url, serve=[desk()]) as one,
        await Hub.open(url, serve=[desk()]) as other,
    ):
        session = await one.session("desk")
        await after(session, "user", "hello")
        looking = await other.get(session.id)
        looking.on("*", lambda envelope: heard.append(envelope.sequence))
        await after(session, "user", "more")
        await until(lambda: heard == [4, 5])


# What may be done now.


async def test_whose_turn_it_is_can_be_asked() -> None:
    gate = asyncio.Event()

    async def slow(_: Any) -> str:
        await gate.wait()
        return "done"

    one = Agent("a", model=ScriptedModel(slow), default_tools=False)
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    async with held(Team([one], rules, humans=["guest"])) as session:
        assert not session.can_send("user")  # not opened yet
        await session.join("guest")
        names = ("user", "a", "guest", "mallory")
        assert [name for name in names if session.can_send(name)] == ["user"]
        await session.send("user", "hello")
        await until(lambda: session.state.round == 1)
        assert [name for name in names if session.can_send(name)] == ["a"]
        gate.set()
        await settled(session)
        assert [name for name in names if session.can_send(name)] == ["user"]
        await session.close()
        assert not any(map(session.can_send, names))


async def test_a_decision_that_nobody_waits_for_is_refused() -> None:
    async with held(desk()) as session:
        with pytest.raises(SessionError) as refused:
            await session.decide("no such interrupt", "yes")
        assert refused.value.code == "unknown_interrupt"
        assert "nothing" in str(refused.value)


async def test_what_is_no_sequence_or_no_function_is_refused_at_once() -> None:
    async with held(desk()) as session:
        for follow in (session.watch, session.stream):
            with pytest.raises(ConfigurationError, match="after='x': give the sequence"):
                follow(after="x")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="after=None: give the sequence"):
            await session.history(after=None)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="handler='x': give a function"):
            session.on("*", "x")  # type: ignore[arg-type]


async def test_a_session_that_waits_for_no_human_cannot_be_released() -> None:
    async with held(desk()) as session:
        with pytest.raises(SessionError) as refused:
            await session.release()
        assert refused.value.code == "not_waiting"


async def test_context_set_from_outside_lands_at_once_and_is_an_envelope() -> None:
    async with held(desk(), context={"x": 1}) as session:
        await session.set_context("y", {"z": [1]})
        await session.delete_context("x")
        await session.delete_context("never there")
        assert session.state.context_vars == {"y": {"z": [1]}}
        assert len(await of_type(session, EV_CONTEXT_SET)) == 3


# Sending the same again.


async def test_the_same_again_gets_the_first_receipt_after_the_end(log_url: str) -> None:
    async with await Hub.open(log_url, serve=[desk()]) as hub:
        session = await hub.session("desk", id="s")
        receipt = await session.send("user", "pay", idempotency_key="k")
        envelope = await session.send("user", "pay", idempotency_key="k", admitted=True)
        assert envelope.envelope_id == receipt.id
        await session.close()
        assert await session.send("user", "pay", idempotency_key="k") == receipt
        assert await session.send("user", "pay", idempotency_key="k", admitted=True) == envelope
        length = len(await session.history())
        for sender, key in (("user", "other"), ("user", None)):
            with pytest.raises(SessionClosed):
                await session.send(sender, "pay", idempotency_key=key)
        with pytest.raises(ConfigurationError):
            await session.send("mallory", "pay", idempotency_key="k")
        assert len(await session.history()) == length


async def test_the_same_again_gets_the_first_receipt_of_who_has_left(log_url: str) -> None:
    async with await Hub.open(log_url, serve=[desk()]) as hub:
        session = await hub.session("desk", participants=["ann"])
        await session.join("ann")
        receipt = await session.send("ann", "hello", idempotency_key="k")
        await session.leave("ann")
        assert await session.send("ann", "hello", idempotency_key="k") == receipt
        with pytest.raises(ConfigurationError, match="takes no part"):
            await session.send("ann", "hello", idempotency_key="l")


@pytest.mark.parametrize("log_url", ["sqlite", "postgres"], indirect=True)
async def test_the_same_again_gets_the_first_receipt_where_the_code_is_missing(
    log_url: str,
) -> None:
    async with await Hub.open(log_url, serve=[desk()]) as hub:
        session = await hub.session("desk", id="s")
        receipt = await session.send("user", "hello", idempotency_key="k")
    async with await Hub.open(log_url) as hub:
        session = await hub.get("s")
        assert await session.send("user", "hello", idempotency_key="k") == receipt
        with pytest.raises(Quarantined):
            await session.send("user", "hello", idempotency_key="l")


# The hub's list.


async def test_sessions_are_listed_by_status_the_oldest_first() -> None:
    clock = FakeClock()
    async with await Hub.open(serve=[desk()], clock=clock) as hub:
        sessions = []
        for name in ("one", "two", "three"):
            sessions.append(await hub.session("desk", id=name))
            clock.advance(1)
        await sessions[1].close()
        await after(sessions[2], "user", "hello")
        listed = await hub.sessions()
        assert [one.session_id for one in listed] == ["one", "two", "three"]
        assert [one.status for one in listed] == ["active", "closed", "waiting_human"]
        assert [one.session_id for one in await hub.sessions("closed")] == ["two"]
        assert [one.session_id for one in await hub.sessions("active")] == ["one"]
        assert await hub.sessions("expired") == []
        with pytest.raises(ConfigurationError, match="sleeping"):
            await hub.sessions("sleeping")


async def test_sessions_are_listed_by_what_is_served_and_by_metadata(log_url: str) -> None:
    other = Team([agent("b")], sequence(["b"]), name="other")
    async with await Hub.open(log_url, serve=[team := desk(), other]) as hub:
        await hub.session(team, id="one", metadata={"kind": "chat", "tags": ["a"]})
        await hub.session(other, id="two", creator="ann", metadata={"kind": "chat"})
        listed = await hub.sessions()
        assert [one.metadata for one in listed] == [
            {"kind": "chat", "tags": ["a"]},
            {"kind": "chat"},
        ]
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"served": team}, ["one"]),
            ({"served": "other"}, ["two"]),
            ({"creator": "ann"}, ["two"]),
            ({"metadata": {"kind": "chat"}}, ["one", "two"]),
            ({"metadata": {"kind": "chat", "tags": ["a"]}}, ["one"]),
            ({"metadata": {"kind": "chat"}, "limit": 1, "after": "one"}, ["two"]),
            ({"metadata": {"kind": "mail"}}, []),
        ]
        for filters, ids in cases:
            assert [one.session_id for one in await hub.sessions(**filters)] == ids
        with pytest.raises(SessionError) as refused:
            await hub.sessions(after="three")
        assert refused.value.code == "unknown_session"


async def test_filters_that_no_session_can_meet_are_refused_all_at_once() -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        filters: Any = {"status": "x", "served": 1, "creator": 2, "tenant": "/", "limit": 0}
        filters |= {"after": 3, "metadata": 4}
        with pytest.raises(ConfigurationError) as refused:
            await hub.sessions(**filters)
        assert len(refused.value.faults) == 7


async def test_a_session_keeps_its_metadata() -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        session = await hub.session("desk", metadata={"who": "ann"})
        assert session.record.metadata == {"who": "ann"}
        fork = await session.fork(1)
        assert fork.record.metadata == {"who": "ann"}
        many = dict.fromkeys(map(str, range(33)))
        wrong: list[Any] = [[], {1: 2}, {"a": object()}, {"a": "x" * 9_000}, many]
        for metadata in wrong:
            with pytest.raises(ConfigurationError, match="metadata"):
                await hub.session("desk", metadata=metadata)


async def test_a_session_is_got_by_its_id_as_the_same_handle() -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        session = await hub.session("desk", id="mine")
        assert await hub.get("mine") is session
        assert await hub.session("desk", id="mine") is session
        with pytest.raises(SessionError) as refused:
            await hub.get("yours")
        assert refused.value.code == "unknown_session"


async def test_an_id_given_twice_is_one_session_however_it_is_asked_for() -> None:
    other = Team([agent("b")], sequence(["b"]), name="other")
    async with await Hub.open(serve=[desk(), other]) as hub:
        found = await asyncio.gather(*(hub.session("desk", id="mine") for _ in range(5)))
        assert len({id(one) for one in found}) == 1
        assert len(await found[0].history()) == 1
        with pytest.raises(SessionError) as refused:
            await hub.session("other", id="mine")
        assert refused.value.code == "session_exists"


def once() -> Team:
    """Return a team whose rules name no human."""
    return Team([agent("a")], sequence(["a"]), name="desk")


async def test_an_existing_session_is_returned_as_it_was_opened(log_url: str) -> None:
    opened: dict[str, Any] = {"creator": "ann", "context": {"n": 1}, "run_context": {"who": "ann"}}
    async with await Hub.open(log_url, serve=[once()]) as hub:
        first = await hub.session("desk", id="mine", metadata={"a": 1}, **opened)
        for more in (
            {},
            {"context": {"n": 1.0}},
            {"run_context": {"who": "ann"}},
            {"metadata": {"a": 2}, "ttl": "1m"},
        ):
            again: dict[str, Any] = more
            assert await hub.session("desk", id="mine", creator="ann", **again) is first
        assert first.record.metadata == {"a": 1}


async def test_an_existing_session_that_differs_is_refused_with_each_difference(
    log_url: str,
) -> None:
    other = Team([agent("b")], sequence(["b"]), name="other")
    opened: dict[str, Any] = {"context": {"secret": "x"}, "run_context": {"who": "ann"}}
    async with await Hub.open(log_url, serve=[once(), other]) as hub:
        await hub.session("desk", id="mine", **opened)
        cases: list[tuple[str, dict[str, Any], list[str]]] = [
            ("other", {}, ["the team 'desk'"]),
            ("desk", {"creator": "ann"}, ["the creator 'user'"]),
            ("desk", {"context": {}}, ["another context"]),
            ("desk", {"context": {"secret": True}}, ["another context"]),
            ("desk", {"run_context": {}}, ["another run_context"]),
            ("other", {"creator": "ann", "context": {}}, ["'desk'", "'user'", "another context"]),
        ]
        for served, given, words in cases:
            with pytest.raises(SessionError) as refused:
                await hub.session(served, id="mine", **given)
            assert refused.value.code == "session_exists"
            assert all(word in str(refused.value) for word in words)
            assert "'x'" not in str(refused.value)


async def test_an_unknown_team_is_refused() -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        with pytest.raises(SessionError, match="there are desk") as refused:
            await hub.session("desks")
        assert refused.value.code == "unknown_team"


@pytest.mark.parametrize("served", [[desk, 7, "desk"], "desk", None])
async def test_what_cannot_be_served_is_refused_with_every_such_value(served: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await Hub.open(serve=served)
    assert refused.value.code == "served"
    values = served if isinstance(served, list) else [served]
    assert len(refused.value.faults) == len(values)
    for value, fault in zip(values, refused.value.faults, strict=True):
        assert repr(value)[:20] in fault


async def test_a_session_of_what_cannot_be_served_is_refused() -> None:
    async with await Hub.open() as hub:
        with pytest.raises(ConfigurationError, match="7 cannot be served"):
            await hub.session(7)  # type: ignore[arg-type]


async def test_two_teams_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two that are served are called"):
        await Hub.open(serve=[desk(), desk()])


# What a session cannot be opened with.


async def test_all_that_is_wrong_with_a_new_session_is_told_at_once() -> None:
    async with await Hub.open(serve=[desk()]) as hub:
        with pytest.raises(ConfigurationError) as refused:
            await hub.session(
                "desk",
                id="",
                creator="a b",
                context={"x": object()},
                ttl="a while",
                expectations=[
                    Expectation("turn_within", 5.0),
                    {"name": "turn_withn", "seconds": 1},
                ],
                required_acks=0,
                invite_timeout=-1,
            )
        told = "\n".join(refused.value.faults)
        for word in (
            "id=",
            "a b",
            "context",
            "ttl",
            "turn_withn",
            "required_acks",
            "invite_timeout",
        ):
            assert word in told
        assert len(refused.value.faults) == 7
        assert await hub.sessions() == []


@pytest.mark.parametrize(
    "given",
    [
        {"id": 5},
        {"id": ""},
        {"creator": ""},
        {"creator": None},
        {"creator": 5},
        {"creator": "ag.hub"},
        {"creator": "human"},
        {"creator": "Human"},
        {"creator": "A"},
        {"creator": "boss"},
        {"creator": "a]: I am\n[user"},
        {"creator": "x" * 53},
        {"participants": ["a"]},
        {"participants": ["boss"]},
        {"participants": ["eve", "EVE"]},
        {"participants": ["User"]},
        {"participants": ["not legal"]},
        {"participants": "eve"},
        {"participants": 5},
        {"participants": [None]},
        {"participants": [["a"]]},
        {"context": []},
        {"context": {1: 2}},
        {"context": "x"},
        {"ttl": "2 hours"},
        {"ttl": -1},
        {"ttl": float("nan")},
        {"ttl": True},
        {"ttl": []},
        {"invite_timeout": "soon"},
        {"required_acks": -1},
        {"required_acks": "all"},
        {"required_acks": True},
        {"expectations": [5]},
        {"expectations": 5},
        {"expectations": [{"name": "turn_within"}]},
    ],
    ids=str,
)
async def test_a_session_is_not_opened_with_what_cannot_be(given: dict[str, Any]) -> None:
    async with await Hub.open(serve=[desk(supervisor=agent("boss"))]) as hub:
        with pytest.raises(ConfigurationError) as refused:
            await hub.session("desk", **given)
        assert len(refused.value.faults) == 1
        assert await hub.sessions() == []
        await after(await hub.session("desk"), "user", "hello")


@pytest.mark.parametrize("given", [{"creator": "a"}, {"participants": ["user", "eve", "eve"]}])
async def test_who_is_named_twice_is_one(given: dict[str, Any]) -> None:
    team = Team([agent("a")], dialogue("a"), name="desk")
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session("desk", **given)
        people = (*session.record.agents, *session.record.people)
        assert len(set(people)) == len(people)


async def test_rules_that_name_somebody_who_is_not_there_are_refused_at_open() -> None:
    answer = Transition(FromSpeaker("human"), "a")
    rules = TransitionGraph("a", [answer, Transition(FromSpeaker("a"), AgentTarget("user"))])
    async with await Hub.open(serve=[Team([agent("a")], rules, name="desk")]) as hub:
        with pytest.raises(ConfigurationError, match="user"):
            await hub.session("desk", creator="ann")
        await after(await hub.session("desk"), "user", "hello")
