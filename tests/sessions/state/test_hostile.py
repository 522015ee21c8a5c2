"""What nobody should do to a session, and what comes of it: a typed outcome, and it still works."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from agentgraph import Agent, effect
from agentgraph.errors import (
    AgentGraphError,
    ConfigurationError,
    InsideRound,
    SessionClosed,
    SessionError,
)
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph, sequence
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_OPENED,
    EV_TEXT,
    Draft,
    Envelope,
    Hub,
    Session,
    Team,
    current_session,
    packet_envelope,
    set_context,
    text_envelope,
)
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    ample,
    asked,
    held,
    hub_of,
    of_type,
    settled,
    talk,
    until,
)


def back(first: str) -> TransitionGraph:
    """Return rules by which one answers whatever the creator says."""
    return TransitionGraph(first, [Transition(FromSpeaker("user"), first)], HumanTarget())


def answering(*agents: Agent, **fields: Any) -> Team:
    """Return a team whose first agent answers the creator, each time."""
    agents = agents or (agent("a"),)
    return Team(agents, back(agents[0].name), **{"name": "desk", **fields})


async def still_works(session: Session) -> None:
    """Say one thing more: it is answered, and the log has no gap."""
    state = await after(session, "user", "still there?")
    assert state.status == "waiting_human"
    log = await session.history()
    said = [one for one in log if one.is_substantive]
    assert said[-2].text == "still there?" and said[-1].event_type == EV_PACKET
    assert [one.sequence for one in log] == list(range(1, len(log) + 1))


def using(*tools: Any) -> Agent:
    """Return an agent whose model calls its first tool in the first turn, and then only speaks."""
    turns = iter([call(tools[0].name)])
    return agent_of(lambda _: next(turns, "a speaks"), *tools)


def agent_of(turn: Callable[[Any], Any], *tools: Any) -> Agent:
    return Agent("a", model=ScriptedModel(turn), tools=tools, default_tools=False)


# The clock.


async def test_with_a_frozen_clock_a_session_goes_on() -> None:
    async with held(answering(), clock=FakeClock()) as session:
        for _ in range(3):
            await still_works(session)
        assert len({one.created_at for one in await session.history()}) == 1


async def test_a_clock_set_back_does_not_set_back_the_log() -> None:
    clock = FakeClock()
    async with held(answering(), clock=clock, ttl=None) as session:
        await still_works(session)
        clock.set_wall(1_000.0)
        await still_works(session)
        clock.set_wall(1_800_000_000.0)
        await session.set_context("x", 1)
        clock.set_wall(5.0)
        await still_works(session)
        instants = [one.created_at for one in await session.history()]
    assert instants == sorted(instants)


# Many envelopes.


async def test_a_turn_reads_and_stores_at_10_000_envelopes_what_it_does_at_10() -> None:
    early, late = await _costs(10), await _costs(10_000)
    assert late.read == early.read
    assert late.stored <= early.stored + 100  # longer numbers
    assert late.calls <= 1.1 * early.calls


class _Cost:
    read = stored = calls = 0


async def _costs(count: int) -> _Cost:
    import json
    import sys

    cost = _Cost()
    async with await Hub.open(clock=FakeClock()) as hub:
        team = answering()
        session = await hub.session(team)
        await still_works(session)
        for start in range(0, count, 1_000):
            drafts = [
                Draft("my.event", {"n": n}) if n % 2 else text_envelope(f"word {n}")
                for n in range(start, min(start + 1_000, count))
            ]
            for draft in drafts[:-1]:
                await hub.log.enqueue(session.id, _waiting("user", draft))
            await after(session, "user", drafts[-1])
        await still_works(session)
        assert session.state.sequence >= count

        read, tail = hub.log.read, hub.log.tail

        async def counted_read(*args: Any, **more: Any) -> list[Envelope]:
            found = await read(*args, **more)
            cost.read += len(found)
            return found

        async def counted_tail(*args: Any, **more: Any) -> list[Envelope]:
            found = await tail(*args, **more)
            cost.read += len(found)
            return found

        hub.log.read, hub.log.tail = counted_read, counted_tail  # type: ignore[method-assign]

        def count_call(frame: Any, event: str, argument: Any) -> None:
            cost.calls += event == "call"

        await session.send("user", "and now?")
        sys.setprofile(count_call)
        try:
            await settled(session)
        finally:
            sys.setprofile(None)
        cost.stored = len(json.dumps(session.state.to_dict()))
        hub.log.read, hub.log.tail = read, tail  # type: ignore[method-assign]
    return cost


def _waiting(sender: str, draft: Draft) -> Any:
    from agentgraph.clock import new_id
    from agentgraph.sessions.log import InboxEntry

    return InboxEntry(new_id(), sender, draft)


# Listeners.


async def test_listeners_that_never_read_hold_nobody_up() -> None:
    async with held(answering()) as session:
        watching, streaming = session.watch(), session.stream()
        await anext(watching)
        await anext(streaming)
        for _ in range(80):
            await still_works(session)
        await session.close()
        rest = [one async for one in watching]
        assert rest[-1].event_type == EV_SESSION_CLOSED
        assert [one.sequence for one in rest] == list(range(2, session.state.sequence + 1))
        await streaming.aclose()


async def test_a_handler_that_raises_stops_neither_the_session_nor_other_handlers() -> None:
    heard: list[int] = []

    def broken(_: Envelope) -> None:
        raise RuntimeError("no")

    async def broken_later(_: Envelope) -> None:
        raise RuntimeError("no")

    async with held(answering()) as session:
        session.on("*", broken)
        session.on("*", broken_later)
        session.on("*", lambda envelope: heard.append(envelope.sequence))
        await still_works(session)
        assert heard == [one.sequence for one in await session.history(after=1)]


async def test_a_handler_that_never_ends_holds_nobody_up() -> None:
    begun = asyncio.Event()

    async def hangs(_: Envelope) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with held(answering()) as session:
        session.on("*", hangs)
        await still_works(session)
        assert begun.is_set()


async def test_a_handler_may_send_and_wait_for_what_comes_of_it() -> None:
    answered: list[str] = []
    async with held(answering()) as session:

        async def answer(packet: Envelope) -> None:
            if len(answered) < 3:
                answered.append(packet.text)
                found = await session.send("user", f"more {len(answered)}", admitted=True)
                assert found.sequence > packet.sequence
                await session.settled()

        session.on(EV_PACKET, answer)
        await session.send("user", "begin")
        await until(lambda: session.state.turn_count == 7)
        said = [text for who, text in await talk(session) if who == "user"]
        assert said == ["begin", "more 1", "more 2", "more 3"]


# Strangers, and nobody.


async def test_an_audience_of_nobody_is_seen_by_nobody_and_the_session_goes_on() -> None:
    first = agent("a")
    async with held(answering(first)) as session:
        await after(session, "user", "psst", audience=[])
        assert "psst" not in str(first.model.requests[0].messages)  # type: ignore[union-attr]
        assert (await talk(session))[0] == ("user", "psst")
        await still_works(session)


STRANGERS: list[Any] = ["mallory", "", "ag.hub", "human", "A", None, 5, ("a",), [], {}]


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_can_neither_send_nor_be_addressed(stranger: Any) -> None:
    async with held(answering()) as session:
        with pytest.raises(ConfigurationError, match="takes no part") as refused:
            await session.send(stranger, "let me in")
        assert refused.value.code == "draft"
        if stranger != "human":
            with pytest.raises(ConfigurationError):
                await session.send("user", "hello", audience=[stranger])
        assert len(await session.history()) == 1
        await still_works(session)


async def test_a_stranger_cannot_join_leave_decide_or_be_given_the_floor() -> None:
    async with held(answering()) as session:
        for asked in (
            session.join("mallory"),
            session.reject("mallory"),
            session.leave("mallory"),
            session.release("mallory"),
            session.decide("no such thing", "yes"),
        ):
            with pytest.raises(SessionError):
                await asked
        await still_works(session)


async def test_a_stranger_as_target_fails_the_round_or_closes_and_is_typed() -> None:
    @tool
    def go() -> Handoff:
        """Go."""
        return Handoff("mallory", "because")

    async with held(answering(using(go))) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human"
        assert "mallory" not in str(state.to_dict())
        await still_works(session)


async def test_a_packet_from_outside_with_a_stranger_as_target_moves_nothing() -> None:
    async with held(answering(humans=("guest",))) as session:
        await session.join("guest")
        state = await after(session, "guest", packet_envelope("hi", handoff=Handoff("mallory")))
        assert state.round == 0
        state = await after(session, "user", packet_envelope("hi", handoff=Handoff("mallory")))
        assert state.status == "waiting_human"
        await still_works(session)


# Payloads.


class _Odd:
    def __repr__(self) -> str:
        raise RuntimeError("unspeakable")


def _deep(depth: int = 200) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


REFUSED: dict[str, Any] = {
    "nan": math.nan,
    "infinity": -math.inf,
    "huge text": "x" * 300_000,
    "huge in bytes": "\U0001f600" * 30_000,
    "huge number": 10**5_000,
    "deep": _deep(),
    "very deep": _deep(100_000),
    "cyclic": _cyclic(),
    "number as key": {1: "x"},
    "none as key": {None: "x"},
    "bytes": b"x",
    "set": {1},
    "object": _Odd(),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_payload_that_json_lacks_is_refused_wherever_it_comes_in(name: str) -> None:
    value = REFUSED[name]
    async with held(answering()) as session:
        with pytest.raises(ConfigurationError):
            await session.send("user", Draft("my.event", {"x": value}))
        with pytest.raises(ConfigurationError):
            await session.send("user", "hello", metadata={"x": value})
        with pytest.raises(ConfigurationError):
            await session.set_context("x", value)
        with pytest.raises(ConfigurationError):
            await hub_of(session).session("desk", context={"x": value})
        with pytest.raises(ConfigurationError):
            await session.send("user", packet_envelope("x", context_set={"x": value}))
        assert len(await session.history()) == 1
        await still_works(session)


@pytest.mark.parametrize("data", [None, [], "text", 5, b"{}"])
async def test_event_data_that_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(ConfigurationError):
        Draft("my.event", data)


AWKWARD = [
    "nul \0",
    "half \ud800 character",
    "\u2028\x85\r\n",
    "",
    " ",
    "\ufeff",
    "\U0001f600" * 10_000,
]


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_awkward_text_is_kept_as_it_is(text: str, kind: str, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else None
    async with held(answering(), url=url) as session:
        await after(session, "user", text, metadata={"m": text}, idempotency_key=text)
        await session.set_context("x", text)
        said = (await of_type(session, EV_TEXT))[0]
        assert (said.text, said.metadata, said.idempotency_key) == (text, {"m": text}, text)
        assert session.state.context_vars == {"x": text}
        await still_works(session)


@pytest.mark.parametrize(
    "fields",
    [
        {"audience": "a"},
        {"audience": 5},
        {"audience": [5]},
        {"audience": [None]},
        {"audience": ["a", "a", "b"]},
        {"priority": 99},
        {"priority": "high"},
        {"idempotency_key": 5},
        {"idempotency_key": b"x"},
        {"causation_id": 5},
        {"metadata": [1]},
        {"metadata": "x"},
    ],
    ids=str,
)
async def test_a_field_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    async with held(answering()) as session:
        with pytest.raises(ConfigurationError):
            await session.send("user", "hello", **fields)
        await still_works(session)


@pytest.mark.parametrize("said", [None, 5, b"hello", ["hello"], {"text": "hello"}, Envelope])
async def test_what_is_neither_text_nor_draft_is_refused(said: Any) -> None:
    async with held(answering()) as session:
        with pytest.raises(ConfigurationError):
            await session.send("user", said)
        await still_works(session)


@pytest.mark.parametrize(
    "draft",
    [
        ("ag.session.closed", {"reason": "x"}),
        ("ag.session.opened", {}),
        ("ag.session.expired", {}),
        ("ag.session.invite.ack", {}),
        ("ag.decision", {"interrupt_id": "x", "decision": 1}),
        ("ag.round.failed", {"speaker": "a", "final": True}),
        ("ag.handoff", {"target": "a"}),
        ("ag.phase", {"to": "resolution"}),
        ("ag.interrupt", {"id": "x"}),
        ("ag.mine", {}),
        ("undotted", {}),
        ("", {}),
        (None, {}),
        (5, {}),
        ("my.\nevent", {}),
        (EV_TEXT, {}),
        (EV_TEXT, {"text": 5}),
        (EV_TEXT, {"text": "x", "decision": {"action": "close", "speakers": []}}),
        (EV_PACKET, {"body": "x"}),
        (EV_PACKET, {"body": 5, "routing": {}}),
        (EV_PACKET, {"body": "x", "routing": {}, "active": "a/b"}),
        (EV_PACKET, {"body": "x", "routing": {}, "steps": [{}]}),
        (EV_PACKET, {"body": "x", "routing": {}, "context_updates": 5}),
        (EV_PACKET, {"body": "x", "routing": {}, "context_updates": {"set": 5}}),
        (EV_CONTEXT_SET, {"set": [1]}),
        (EV_CONTEXT_SET, {"delete": "key"}),
    ],
    ids=str,
)
async def test_what_only_sessions_say_cannot_be_forged(draft: tuple[Any, dict[str, Any]]) -> None:
    async with held(answering()) as session:
        with pytest.raises(ConfigurationError):
            await session.send("user", Draft(*draft))
        assert [one.event_type for one in await session.history()] == [EV_SESSION_OPENED]
        await still_works(session)


# Inside of a tool.


async def test_a_tool_may_send_and_read_but_not_wait_for_its_own_session() -> None:
    met: list[Any] = []

    @tool
    async def meddle() -> str:
        """Meddle."""
        session = current_session()
        receipt = await session.send("user", "by the way")
        await session.set_context("from_inside", 1)
        await session.delete_context("never_there")
        for waits in (session.send("user", "x", admitted=True), session.settled()):
            with pytest.raises(InsideRound):
                await waits
        forked = await session.fork(2)
        met.extend([receipt.id, forked.id, session.can_send("a"), len(await session.history())])
        return "done"

    async with held(answering(using(meddle))) as session:
        state = await after(session, "user", "hello")
        assert met[2] is True and state.context_vars == {"from_inside": 1}
        assert met[0] in [one.envelope_id for one in await session.history()]
        fork = await hub_of(session).get(met[1])
        assert (await fork.history())[-1].text == "hello"
        await still_works(session)


async def test_a_tool_that_closes_its_session_and_hangs_is_cut_off_by_its_deadline() -> None:
    has_asked = asyncio.Event()

    @tool
    async def end() -> str:
        """End."""
        await current_session().close("enough")
        has_asked.set()
        await asyncio.Event().wait()
        return "never"

    clock = FakeClock()
    async with held(answering(using(end)), clock=clock) as session:
        await session.send("user", "hello")
        await has_asked.wait()
        clock.advance(181)
        async with asyncio.timeout(PATIENCE_S):
            state = await session.settled()
        assert (state.status, state.pending_close_reason) == ("closed", "enough")
        with pytest.raises(SessionClosed):
            await session.send("user", "more")


async def test_a_tool_deep_inside_a_team_cannot_wait_for_the_outer_session() -> None:
    met: list[str] = []

    @tool
    async def wait() -> str:
        """Wait."""
        with pytest.raises(InsideRound):
            await current_session().settled()
        with pytest.raises(InsideRound):
            await current_session().send("user", "x", admitted=True)
        met.append("refused")
        return "done"

    inner = Team([using(wait)], sequence(["a"]), name="inner")
    outer = Team([inner], back("inner"), name="outer")
    async with held(outer) as session:
        state = await after(session, "user", "hello")
        assert met == ["refused"] and state.status == "waiting_human"
        await still_works(session)


async def test_a_tool_may_set_context_from_its_session_deep_inside_a_team() -> None:
    @tool
    async def note() -> str:
        """Note."""
        await current_session().set_context("x", 1)
        return "done"

    inner = Team([using(note)], sequence(["a"]), name="inner")
    outer = Team([inner], back("inner"), name="outer")
    async with held(outer) as session:
        state = await after(session, "user", "hello")
        assert state.context_vars == {"x": 1}
        await still_works(session)


# After the end.


async def test_after_the_close_all_is_refused_with_one_type_and_reading_goes_on() -> None:
    async with held(answering()) as session:
        await still_works(session)
        await session.close()
        head = session.state.sequence
        for late in (
            session.send("user", "more"),
            session.send("user", "more", admitted=True),
            session.set_context("x", 1),
            session.delete_context("x"),
            session.leave("a"),
        ):
            with pytest.raises(SessionClosed):
                await late
        await session.close()  # a second time is none
        assert (await session.settled()).status == "closed"
        assert [one.sequence async for one in session.watch()] == list(range(1, head + 1))
        assert not session.can_send("user")


async def test_what_waits_when_the_session_closes_is_in_the_log_before_its_end() -> None:
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "done"

    async with held(answering(using(wait))) as session:
        await session.send("user", "hello")
        await until(lambda: session.state.round == 1)
        receipt = await session.send("user", "one thing more")
        await session.close()
        log = await session.history()
        assert log[-1].event_type == EV_SESSION_CLOSED
        assert receipt.id in [one.envelope_id for one in log]
        gate.set()


async def test_a_closed_hub_takes_nothing_more() -> None:
    hub = await Hub.open(serve=[answering()])
    session = await hub.session("desk")
    await still_works(session)
    watching = session.watch(after=session.state.sequence)
    coming = asyncio.ensure_future(anext(watching))
    await hub.aclose()
    for late in (
        session.send("user", "more"),
        session.set_context("x", 1),
        session.close(),
        session.settled(),
        hub.session("desk"),
        hub.get(session.id),
        hub.sessions(),
        coming,
    ):
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(SessionError) as refused:
                await late
        assert refused.value.code == "hub_closed"


# The same thing twice.


async def test_two_sends_of_one_key_at_once_are_one() -> None:
    async with held(answering()) as session:
        receipts = await asyncio.gather(
            *(session.send("user", f"try {n}", idempotency_key="k") for n in range(20))
        )
        await settled(session)
        assert len({one.id for one in receipts}) == 1
        assert len(await of_type(session, EV_TEXT)) == 1
        again = await session.send("user", "later", idempotency_key="k", admitted=True)
        assert again.envelope_id == receipts[0].id
        await still_works(session)


async def test_a_key_belongs_to_its_sender() -> None:
    async with held(answering(humans=("guest",))) as session:
        await session.join("guest")
        one = await session.send("user", "x", idempotency_key="k")
        two = await session.send("guest", "y", idempotency_key="k")
        await settled(session)
        assert one.id != two.id and len(await of_type(session, EV_TEXT)) == 2


# Tools gone wrong.


ODD: dict[str, Any] = {
    "none": None,
    "object": object(),
    "bytes": b"\xff",
    "nan": math.nan,
    "set": {1, 2},
    "class": int,
    "exception": ValueError("returned"),
    "huge": "x" * 1_000_000,
    "surrogate": "\ud800",
    "nul": "a\0b",
    "cyclic": _cyclic(),
    "deep": _deep(),
    "empty": "",
    "list": [],
    "unspeakable": _Odd(),
    "message of another call": ToolMessage("x", tool_call_id="no such call"),
    "messages": [ToolMessage("x", tool_call_id="1"), ToolMessage("y", tool_call_id="2")],
    "command": Command(goto="nowhere"),
    "outer command": Command(goto="a", graph=Command.PARENT),
    "handoff to a stranger": Handoff("mallory"),
    "handoff to itself": Handoff("a"),
    "handoff to nobody": Handoff(""),
    "handoff to none": Handoff(None),  # type: ignore[arg-type]
    "handoff to a list": Handoff(["a"]),  # type: ignore[arg-type]
    "odd reason": Handoff("human", reason=object()),  # type: ignore[arg-type]
    "odd summary": Handoff("human", summary=math.nan),  # type: ignore[arg-type]
    "odd phase": Handoff("human", next_phase=5),  # type: ignore[arg-type]
    "unknown way": Handoff("human", channel_escalation="telepathy"),
    "generator": (n for n in range(3)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_whatever_a_tool_returns_the_session_goes_on(name: str, kind: str) -> None:
    def odd() -> Any:
        """Be odd."""
        return ODD[name]

    async def aodd() -> Any:
        """Be odd."""
        return ODD[name]

    one = tool("odd")(odd if kind == "sync" else aodd)
    clock = FakeClock()
    async with held(answering(using(one), guards=ample()), clock=clock) as session:
        await session.send("user", "hello")
        state = await settled(session)
        assert state.status == "waiting_human", state.pending_close_reason
        await still_works(session)


@pytest.mark.parametrize("marked", [False, True])
async def test_after_an_answer_with_half_a_character_another_tool_can_be_called(
    marked: bool,
) -> None:
    def cut() -> str:
        """Cut."""
        return "\ud800"

    turns = iter([call("cut"), call("cut"), "a speaks"])
    one = agent_of(lambda _: next(turns, "a speaks"), tool(effect(cut) if marked else cut))
    async with held(answering(one), clock=FakeClock()) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human", state.pending_close_reason
        assert await of_type(session, EV_ROUND_FAILED) == []
        await still_works(session)


async def test_what_a_tool_returns_is_not_shown_to_a_model_where_it_is_beyond_the_budget() -> None:
    @tool
    def flood() -> str:
        """Return too much."""
        return "x" * 4_000_000

    one = using(flood)
    async with held(answering(one), clock=FakeClock()) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.pending_close_reason) == ("closed", "cost_budget")
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        assert (failed.event_data["code"], failed.event_data["final"]) == ("guard", True)
        assert len(asked(one)) == 1


@pytest.mark.parametrize("reason", [None, 5, object(), math.nan, "\ud800", "x" * 300_000])
async def test_whatever_a_tool_finishes_with_the_session_ends(reason: Any) -> None:
    @tool
    def end() -> Finish:
        """End."""
        return Finish("bye", reason=reason)

    async with held(answering(using(end))) as session:
        state = await after(session, "user", "hello")
        assert state.is_ended or state.status == "waiting_human"


class _Strange(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError(),
        KeyError(),
        SessionClosed(),
        AgentGraphError(),
        TimeoutError(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_that_raises_is_answered_and_the_session_goes_on(
    error: Exception, kind: str
) -> None:
    def bad() -> str:
        """Fail."""
        raise error

    async def abad() -> str:
        """Fail."""
        raise error

    one = tool("bad")(bad if kind == "sync" else abad)
    async with held(answering(using(one))) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human", state.pending_close_reason
        step = (await of_type(session, EV_PACKET))[0].event_data["steps"][0]
        assert step["calls"][0]["status"] == "error"
        await still_works(session)


async def test_a_tool_that_hangs_is_cut_off_at_the_deadline_and_the_round_runs_again() -> None:
    hangs = asyncio.Event()
    calls = iter([True])

    @tool
    async def hang() -> str:
        """Hang."""
        if next(calls, False):
            hangs.set()
            await asyncio.Event().wait()
        return "done"

    turns = iter([call("hang"), call("hang")])
    clock = FakeClock()
    team = answering(agent_of(lambda _: next(turns, "a speaks"), hang), expectations=())
    async with held(team, clock=clock) as session:
        await session.send("user", "hello")
        await hangs.wait()
        clock.advance(181)
        state = await settled(session)
        assert state.status == "waiting_human"
        failed = (await of_type(session, EV_ROUND_FAILED))[0].event_data
        assert (failed["code"], failed["final"], failed["attempt"]) == ("deadline", False, 1)
        assert (await of_type(session, EV_PACKET))[0].event_data["attempt"] == 2
        await still_works(session)


async def test_a_tool_that_always_hangs_closes_the_session_and_says_why() -> None:
    hangs = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        hangs.set()
        await asyncio.Event().wait()
        return "never"

    clock = FakeClock()
    one = agent_of(lambda _: call("hang"), hang)
    async with held(answering(one, expectations=()), clock=clock) as session:
        await session.send("user", "hello")
        for _ in range(2):
            await hangs.wait()
            hangs.clear()
            clock.advance(181)
        state = await settled(session)
        assert (state.status, state.pending_close_reason) == ("closed", "round_failed")
        codes = [one.event_data["code"] for one in await of_type(session, EV_ROUND_FAILED)]
        assert codes == ["deadline", "deadline"]


@pytest.mark.parametrize("value", [*REFUSED.values()], ids=[*REFUSED])
async def test_a_tool_that_sets_what_json_lacks_is_told_so(value: Any) -> None:
    @tool
    def note() -> str:
        """Note."""
        set_context("x", value)
        return "done"

    async with held(answering(using(note))) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human" and state.context_vars == {}
        step = (await of_type(session, EV_PACKET))[0].event_data["steps"][0]
        assert step["calls"][0]["status"] == "error"
        await still_works(session)


async def test_context_that_is_too_much_together_fails_the_round_and_no_other() -> None:
    @tool
    def note(n: int) -> str:
        """Note."""
        set_context(f"x{n}", "x" * 200_000)
        return "done"

    turns = [[call("note", n=1), call("note", n=2)]] * 2
    said = iter(turns)
    team = answering(agent_of(lambda _: next(said, "a speaks"), note), failure_target="human")
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human" and state.context_vars == {}
        failed = await of_type(session, EV_ROUND_FAILED)
        assert {one.event_data["code"] for one in failed} == {"payload"}
        await still_works(session)


# Models gone wrong.


@pytest.mark.parametrize(
    "args",
    [
        {"x": math.nan},
        {"x": -math.inf},
        {"x": _deep(100)},
        {"x": 10**4_400},
        {"x": "\ud800"},
        {"x": "\U0001f600" * 50_000},
        {"y": {"z": [None]}},
    ],
    ids=["nan", "infinity", "deep", "big", "surrogate", "huge", "unknown"],
)
async def test_whatever_a_model_calls_a_tool_with_the_round_is_committed(args: Any) -> None:
    @tool
    def take(x: Any = None) -> str:
        """Take."""
        return "done"

    turns = iter([{"name": "take", "args": args, "id": None, "type": "tool_call"}])
    one = agent_of(lambda _: next(turns, "a speaks"), take)
    async with held(answering(one), clock=FakeClock()) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human", state.pending_close_reason
        assert len(await of_type(session, EV_PACKET)) == 1
        await still_works(session)


@pytest.mark.parametrize(
    "text", ["\U0001f600" * 60_000, "ü" * 99_000, "x" * 500_000, "\ud800", "a\0b", "\x1b[31m"]
)
async def test_whatever_a_model_says_the_round_is_committed(text: str) -> None:
    turns = iter([text])
    one = agent_of(lambda _: next(turns, "a speaks"))
    async with held(answering(one), clock=FakeClock()) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human", state.pending_close_reason
        said = (await of_type(session, EV_PACKET))[0].text
        assert said[:1_000] == text[:1_000]
        await still_works(session)


async def test_a_round_of_many_calls_with_long_answers_is_committed_with_the_last_of_them() -> None:
    @tool
    def look(at: str) -> str:
        """Look."""
        return "ü" * 5_000

    turns = iter([[call("look", at=f"{of}/{at}") for at in range(8)] for of in range(12)])
    one = agent_of(lambda _: next(turns, "a speaks"), look)
    async with held(answering(one, guards=ample()), clock=FakeClock()) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human", state.pending_close_reason
        steps = (await of_type(session, EV_PACKET))[0].event_data["steps"]
        assert steps and all(len(step["calls"]) == 8 for step in steps)
        await still_works(session)
