"""Who has the floor, and how what is said gets into the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph.errors import ConfigurationError, RoutingWarning, SessionClosed
from agentgraph.outcomes import Handoff
from agentgraph.routing import (
    Always,
    FromSpeaker,
    HumanTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    round_robin,
    sequence,
)
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_DECISION,
    EV_HANDOFF,
    EV_PACKET,
    EV_PHASE,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_OPENED,
    EV_SUMMARY,
    EV_TEXT,
    Draft,
    Envelope,
    Hub,
    Priority,
    Team,
    current_session,
    packet_envelope,
    text_envelope,
)
from agentgraph.testing import ScriptedModel, call
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
)


def chat() -> TransitionGraph:
    """Return rules by which an agent answers whatever its human says."""
    rules = (Transition(FromSpeaker("user"), "bot"),)
    return TransitionGraph("bot", rules, HumanTarget())


class Gate:
    """A model that waits in its first turn until it is let go on."""

    def __init__(self, *said: str) -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()
        self.said = iter(said)
        self.model = ScriptedModel(self._turn)

    async def _turn(self, messages: Sequence[BaseMessage]) -> str:
        self.entered.set()
        await self.opened.wait()
        return next(self.said)


async def test_the_creators_first_words_give_the_floor_to_the_initial_speaker() -> None:
    # Every rule would lead to `b`, if one were asked.
    team = Team(
        [agent("a"), agent("b")], TransitionGraph("a", (Transition(Always(), "b"),), "b", 1)
    )
    async with held(team) as session:
        state = await after(session, "user", "hello")
        opening = (await of_type(session, EV_TEXT))[0]
        assert opening.event_data["decision"]["rule"] == "initial"
        assert await talk(session) == [("user", "hello"), ("a", "a speaks")]
        assert (state.turn_count, state.pending_close_reason) == (1, "max_turns")


async def test_a_creator_who_is_the_initial_speaker_has_the_first_turn() -> None:
    rules = TransitionGraph("user", (Transition(FromSpeaker("user"), "a"),), max_turns=5)
    async with held(Team([agent("a")], rules)) as session:
        assert session.can_send("user")
        assert session.state.expected_next_speaker == "user"
        state = await after(session, "user", "hello")
        opening = (await of_type(session, EV_TEXT))[0]
        assert opening.event_data["decision"]["rule"] == 0
        assert state.turn_count == 2


async def test_the_initial_speaker_human_is_whoever_opens_the_session() -> None:
    rules = TransitionGraph("human", (Transition(FromSpeaker("human"), "a"),), HumanTarget())
    async with held(Team([agent("a")], rules), creator="ann") as session:
        state = await after(session, "ann", "hello")
        assert await talk(session) == [("ann", "hello"), ("a", "a speaks")]
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "ann")


async def test_an_agent_can_open_a_session_and_has_its_first_turn_written_from_outside() -> None:
    team = Team([agent("a"), agent("b")], sequence(["a", "b"]))
    async with held(team, creator="a") as session:
        state = await after(session, "a", packet_envelope("mine"))
        assert await talk(session) == [("a", "mine"), ("b", "b speaks")]
        assert state.turn_count == 2


async def test_before_anything_is_said_nobody_speaks() -> None:
    one = agent("a")
    async with held(Team([one], sequence(["a"]))) as session:
        state = await settled(session)
        assert (state.status, state.sequence, asked(one)) == ("active", 1, [])
        assert session.can_send("user")
        assert not session.can_send("a")


async def test_an_interjection_is_seen_and_neither_decided_on_nor_counted() -> None:
    gate = Gate("from a")
    first = agent("a").replace(model=gate.model)
    second, third = agent("b"), agent("c")
    async with held(Team([first, second, third], sequence(["a", "b", "c"]))) as session:
        await session.send("user", "hello")
        await gate.entered.wait()
        await session.send("user", "and one more thing")
        await session.send("c", "I am not due")
        gate.opened.set()
        state = await settled(session)
        assert (state.turn_count, state.pending_close_reason) == (3, "sequence_complete")
        said = await of_type(session, EV_TEXT)
        assert [one.text for one in said] == ["hello", "and one more thing", "I am not due"]
        assert ["decision" in one.event_data for one in said] == [True, False, False]
        assert "[user]: and one more thing" in shown(second)
        assert "[c]: I am not due" in shown(second)


async def test_what_is_said_while_nobody_is_due_waits_in_no_ones_name() -> None:
    bot = agent("bot")
    team = Team([bot], chat(), humans=["ann"])
    async with held(team) as session:
        await session.join("ann")
        await after(session, "user", "hello")
        state = await after(session, "ann", "me too")  # the floor is the creator's
        assert (state.status, state.turn_count) == ("waiting_human", 1)
        state = await after(session, "user", "go on")
        assert state.turn_count == 3
        assert "[ann]: me too" in shown(bot)


async def test_the_inbox_is_admitted_by_priority_and_then_by_arrival() -> None:
    gate = Gate("from a")
    team = Team([agent("a").replace(model=gate.model), agent("b")], sequence(["a", "b"]))
    async with held(team) as session:
        await session.send("user", "hello")
        await gate.entered.wait()
        for text, priority in (
            ("low", Priority.LOW),
            ("first", Priority.NORMAL),
            ("urgent", Priority.URGENT),
            ("second", Priority.NORMAL),
            ("high", Priority.HIGH),
        ):
            await session.send("user", text, priority=priority)
        gate.opened.set()
        await settled(session)
        texts = [one.text for one in await of_type(session, EV_TEXT)]
        assert texts == ["hello", "urgent", "high", "first", "second", "low"]


async def test_words_are_admitted_between_rounds_only() -> None:
    gate = Gate("from a")
    team = Team([agent("a").replace(model=gate.model), agent("b")], sequence(["a", "b"]))
    async with held(team) as session:
        await session.send("user", "hello")
        await gate.entered.wait()
        admission = asyncio.create_task(session.send("user", "meanwhile", admitted=True))
        custom = asyncio.create_task(
            session.send("user", Draft("my.event", {"n": 1}), admitted=True)
        )
        async with asyncio.timeout(PATIENCE_S):
            # What is never folded need not wait.
            assert (await custom).sequence == 3
        assert not admission.done()
        assert session.state.sequence == 3
        gate.opened.set()
        async with asyncio.timeout(PATIENCE_S):
            envelope = await admission
        await settled(session)
        senders = [one.sender_id for one in await session.history() if one.is_substantive]
        assert senders == ["user", "a", "user", "b"]
        assert envelope.sequence == 5


async def test_what_comes_in_at_the_last_moment_stands_before_the_end() -> None:
    gate = Gate("from a")
    async with held(Team([agent("a").replace(model=gate.model)], sequence(["a"]))) as session:
        await session.send("user", "hello")
        await gate.entered.wait()
        await session.send("user", "too late to be answered")
        gate.opened.set()
        await settled(session)
        kinds = [one.event_type for one in await session.history()]
        assert kinds == [EV_SESSION_OPENED, EV_TEXT, EV_PACKET, EV_TEXT, EV_SESSION_CLOSED]


async def test_a_receipt_has_the_id_of_the_envelope_to_come() -> None:
    async with held(Team([agent("bot")], chat())) as session:
        receipt = await session.send("user", "hello")
        await settled(session)
        assert (await of_type(session, EV_TEXT))[0].envelope_id == receipt.id


async def test_an_admitted_send_returns_the_stamped_envelope() -> None:
    async with held(Team([agent("bot")], chat())) as session:
        envelope = await session.send("user", "hello", admitted=True)
        assert isinstance(envelope, Envelope)
        assert envelope.sequence == 2
        assert (await session.history())[1] == envelope
        assert envelope.created_at
        await settled(session)


async def test_a_round_cannot_wait_for_its_own_session() -> None:
    async def ask(what: str) -> str:
        """Ask the session something."""
        session = current_session()
        if what == "admitted":
            await session.send("bot", "a word", admitted=True)
        if what == "settled":
            await session.settled()
        await session.send("bot", "a word of my own")
        return "sent"

    bot = agent(
        "bot",
        call("ask", what="admitted"),
        call("ask", what="settled"),
        call("ask", what=""),
        "so",
        "yes",
    )
    async with held(Team([bot.replace(tools=[ask])], chat())) as session:
        state = await after(session, "user", "hello")
        told = [m.text for m in asked(bot)[-1].messages if m.type == "tool"]
        assert ["InsideRound" in text for text in told] == [True, True, False]
        assert state.status == "waiting_human"
        # What it said while it spoke comes after its packet, and is not its turn.
        assert await talk(session) == [
            ("user", "hello"),
            ("bot", "so"),
            ("bot", "a word of my own"),
        ]
        state = await after(session, "user", "still there?")
        assert state.turn_count == 3


async def test_words_of_somebody_else_before_the_creators_are_an_interjection() -> None:
    one = agent("a")
    async with held(Team([one], sequence(["a"]), humans=["ann"])) as session:
        await session.join("ann")
        state = await after(session, "ann", "me first")
        assert (state.round, state.turn_count, asked(one)) == (0, 0, [])
        state = await after(session, "user", "hello")
        assert (state.turn_count, state.pending_close_reason) == (1, "sequence_complete")
        assert "[ann]: me first" in shown(one)


async def test_an_initial_speaker_who_is_another_human_is_waited_for() -> None:
    rules = TransitionGraph("ann", (Transition(FromSpeaker("ann"), "a"),), HumanTarget())
    async with held(Team([agent("a")], rules, humans=["ann"])) as session:
        await session.join("ann")
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "ann")
        state = await after(session, "ann", "here")
        assert [name for name, _ in await talk(session)] == ["user", "ann", "a"]
        assert state.turn_count == 2


async def test_a_human_can_be_one_of_a_ring() -> None:
    rules = round_robin(["user", "a"], max_turns=4)
    async with held(Team([agent("a")], rules)) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.turn_count) == ("waiting_human", 2)
        state = await after(session, "user", "more")
        assert state.pending_close_reason == "round_robin_complete"


async def test_a_tool_closes_its_own_session() -> None:
    async def stop() -> str:
        """Stop."""
        await current_session().close("stopped_from_inside")
        return "stopped"

    one = agent("a", call("stop"), "that was all", tools=[stop])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "stopped_from_inside"
        assert [one.text for one in await of_type(session, EV_PACKET)] == ["that was all"]


async def test_a_closed_session_accepts_nothing_more() -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        with pytest.raises(SessionClosed):
            await session.send("user", "one more")
        with pytest.raises(SessionClosed):
            await session.set_context("k", 1)
        assert not session.can_send("user")
        await session.close()  # a second time is nothing


@pytest.mark.parametrize("url", [None, "sqlite"])
async def test_a_sender_says_the_same_thing_once(url: str | None, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}" if url else None
    async with held(Team([agent("bot")], chat()), url=url) as session:
        first = await session.send("user", "hello", idempotency_key="k")
        again = await session.send("user", "hello", idempotency_key="k")
        await settled(session)
        later = await session.send("user", "hello", idempotency_key="k")
        assert first == again == later
        other = await session.send("bot", "hello", idempotency_key="k")
        assert other != first
        await settled(session)
        said = await of_type(session, EV_TEXT)
        assert [(one.sender_id, one.idempotency_key) for one in said] == [
            ("user", "k"),
            ("bot", "k"),
        ]
        envelope = await session.send("user", "x", idempotency_key="k", admitted=True)
        assert envelope.envelope_id == first.id


async def test_a_causation_id_is_kept_and_a_packet_has_its_cause() -> None:
    async with held(Team([agent("bot")], chat())) as session:
        opened = (await session.history())[0]
        await after(session, "user", "hello", causation_id=opened.envelope_id)
        said, packet = await of_type(session, EV_TEXT, EV_PACKET)
        assert said.causation_id == opened.envelope_id
        assert packet.causation_id == said.envelope_id


async def test_only_its_audience_sees_an_envelope() -> None:
    first, second = agent("a"), agent("b")
    gate = Gate("opened")
    team = Team(
        [agent("gate").replace(model=gate.model), first, second], sequence(["gate", "a", "b"])
    )
    async with held(team) as session:
        await session.send("user", "hello")
        await gate.entered.wait()
        await session.send("user", "for b only", audience=["b"])
        await session.send("user", "for nobody", audience=[])
        await session.send("user", "for all")
        gate.opened.set()
        await settled(session)
        assert [part in shown(first) for part in ("for b only", "for nobody", "for all")] == [
            False,
            False,
            True,
        ]
        assert [part in shown(second) for part in ("for b only", "for nobody", "for all")] == [
            True,
            False,
            True,
        ]
        assert (await of_type(session, EV_TEXT))[2].audience == ()


async def test_opening_words_that_nobody_sees_leave_the_session_working() -> None:
    bot = agent("bot")
    async with held(Team([bot], chat())) as session:
        state = await after(session, "user", "for nobody", audience=[])
        assert state.status == "waiting_human"
        assert "for nobody" not in shown(bot)
        state = await after(session, "user", "for you")
        assert state.turn_count == 3


@pytest.mark.parametrize(
    ("sender", "given", "fields", "code"),
    [
        ("stranger", "hello", {}, "draft"),
        ("user", "hello", {"audience": ["bot", "nobody-known"]}, "draft"),
        ("user", 7, {}, "draft"),
        ("user", Draft("dotless", {}), {}, "draft"),
        ("user", Draft(EV_TEXT, {}), {}, "draft"),
        ("user", Draft(EV_PACKET, {"body": "x"}), {}, "draft"),
        ("user", Draft(EV_PACKET, {"routing": {}}), {}, "draft"),
        ("user", Draft(EV_CONTEXT_SET, {"set": [1]}), {}, "draft"),
        ("ag.hub", "hello", {}, "draft"),
    ],
)
async def test_a_draft_that_is_none_is_refused_and_changes_nothing(
    sender: str, given: Any, fields: dict[str, Any], code: str
) -> None:
    async with held(Team([agent("bot")], chat())) as session:
        with pytest.raises(ConfigurationError) as caught:
            await session.send(sender, given, **fields)
        assert caught.value.code == code
        assert session.state.sequence == 1
        assert (await after(session, "user", "hello")).turn_count == 1


async def test_all_faults_of_a_draft_are_told_at_once() -> None:
    async with held(Team([agent("bot")], chat())) as session:
        draft = Draft("dotless", {"decision": {}}, audience=("x",))
        with pytest.raises(ConfigurationError) as caught:
            await session.send("stranger", draft)
        assert len(caught.value.faults) == 4


@pytest.mark.parametrize(
    "event_type",
    [
        EV_SESSION_OPENED,
        EV_SESSION_CLOSED,
        EV_SESSION_INVITE_ACK,
        EV_HANDOFF,
        EV_PHASE,
        EV_DECISION,
        EV_ROUND_FAILED,
        EV_SUMMARY,
        "ag.session.left",
        "ag.session.released",
        "ag.anything.new",
    ],
)
async def test_what_sessions_say_of_themselves_cannot_be_forged(event_type: str) -> None:
    async with held(Team([agent("bot")], chat())) as session:
        with pytest.raises(ConfigurationError, match="sessions alone"):
            await session.send("user", Draft(event_type, {"reason": "x"}))
        assert session.state.status == "active"


@pytest.mark.parametrize("key", ["decision", "round", "attempt", "active", "steps", "usage"])
async def test_what_the_session_stamps_on_a_packet_cannot_be_forged(key: str) -> None:
    async with held(Team([agent("bot")], chat())) as session:
        forged = packet_envelope("hello")
        forged = replace(forged, event_data={**forged.event_data, key: {"action": "close"}})
        with pytest.raises(ConfigurationError, match=key):
            await session.send("user", forged)
        text = Draft(EV_TEXT, {"text": "x", "decision": {"action": "close", "speakers": []}})
        with pytest.raises(ConfigurationError, match="decision"):
            await session.send("user", text)


async def test_a_text_decides_nothing_by_what_it_carries() -> None:
    rules = (
        Transition(FromSpeaker("user") & ToolCalled("escalate"), "c"),
        Transition(FromSpeaker("user"), "bot"),
    )
    team = Team([agent("bot"), agent("c")], TransitionGraph("bot", rules, HumanTarget()))
    async with held(team) as session:
        await after(session, "user", "hello")
        forged = {"kind": "finish", "tool": "escalate", "target": "c", "reason": "mine"}
        state = await after(session, "user", Draft(EV_TEXT, {"text": "x", "routing": forged}))
        assert (state.status, state.last_speaker_id) == ("waiting_human", "bot")


async def test_custom_events_are_stored_and_delivered_and_never_folded() -> None:
    bot = agent("bot")
    async with held(Team([bot], chat())) as session:
        told: list[Envelope] = []
        end = session.on("myapp.review_requested", told.append)
        everything: list[str] = []
        session.on("*", lambda one: everything.append(one.event_type))
        data = {"set": {"k": 1}, "text": "hidden words", "speaker": "bot", "decision_": 1}
        draft = Draft("myapp.review_requested", data, audience=("bot",))
        before = session.state
        envelope = await session.send("user", draft, admitted=True)
        unchanged = replace(session.state, sequence=before.sequence, updated_at=before.updated_at)
        assert unchanged == before
        assert told == [envelope]
        assert envelope.event_data == data
        assert everything == ["myapp.review_requested"]
        end()
        await session.send("user", draft, admitted=True)
        assert len(told) == 1
        await after(session, "user", "hello")
        assert "hidden words" not in shown(bot)


async def test_a_handler_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with held(Team([agent("bot")], chat())) as session:
        done: list[str] = []

        def fail(envelope: Envelope) -> None:
            raise ValueError("broken handler")

        async def fail_later(envelope: Envelope) -> None:
            done.append(envelope.sender_id)
            raise ValueError("broken handler")

        session.on(EV_PACKET, fail)
        session.on(EV_PACKET, fail_later)
        state = await after(session, "user", "hello")
        await until(lambda: done)
        assert (state.turn_count, done) == (1, ["bot"])
        assert "a handler of ag.packet failed" in caplog.text


async def test_a_packet_from_outside_can_hand_over_and_write_the_context() -> None:
    rules = (Transition(FromSpeaker("user"), "bot"),)
    with pytest.warns(RoutingWarning, match="gives 'b' the floor, only a Handoff could"):
        team = Team([agent("bot"), agent("b")], TransitionGraph("bot", rules, HumanTarget()))
    async with held(team, context={"gone": 1}) as session:
        await after(session, "user", "hello")
        packet = packet_envelope(
            "over to b",
            handoff=Handoff("b", "you know this", "it is about tides"),
            context_set={"topic": "tides"},
            context_delete=["gone"],
        )
        state = await after(session, "user", packet)
        assert dict(state.context_vars) == {"topic": "tides"}
        assert state.last_speaker_id == "b"
        assert [one.event_data["target"] for one in await of_type(session, EV_HANDOFF)] == ["b"]
        assert "[Context from user]: it is about tides" in shown(team.agents[1])  # type: ignore[arg-type]


async def test_a_packet_from_outside_can_name_the_tool_that_routes() -> None:
    rules = (
        Transition(FromSpeaker("user") & ToolCalled("escalate"), "b"),
        Transition(FromSpeaker("user"), "a"),
    )
    team = Team([agent("a"), agent("b")], TransitionGraph("a", rules, HumanTarget()))
    async with held(team) as session:
        await after(session, "user", "hello")
        await after(session, "user", packet_envelope("more", tool="escalate"))
        assert [name for name, _ in await talk(session)] == ["user", "a", "user", "b"]


def test_a_text_envelope_is_a_draft_with_all_that_it_was_given() -> None:
    draft = text_envelope(
        "hello",
        audience=["a"],
        causation_id="c",
        priority=Priority.HIGH,
        idempotency_key="k",
        metadata={"intent": "refund"},
    )
    assert draft == Draft(
        EV_TEXT, {"text": "hello"}, ("a",), "c", Priority.HIGH, "k", {"intent": "refund"}
    )
    with pytest.raises(ConfigurationError):
        text_envelope(7)  # type: ignore[arg-type]


async def test_what_send_is_given_beside_a_draft_goes_into_it() -> None:
    async with held(Team([agent("bot")], chat())) as session:
        envelope = await session.send(
            "user",
            text_envelope("hello", metadata={"a": 1}),
            metadata={"b": 2},
            audience=["bot"],
            priority=Priority.LOW,
            admitted=True,
        )
        assert envelope.metadata == {"b": 2}
        assert (envelope.audience, envelope.priority) == (("bot",), Priority.LOW)
        await settled(session)


@pytest.mark.parametrize(
    "data",
    [{"text": object()}, {"text": "x", "more": [float("nan")]}, {"text": "x" * 300_000}],
    ids=["no JSON", "no number", "too large"],
)
def test_a_payload_that_no_log_can_hold_is_refused_as_it_is_made(data: Any) -> None:
    with pytest.raises(ConfigurationError):
        Draft(EV_TEXT, data)


async def test_sequences_have_no_gaps_and_instants_never_run_back() -> None:
    team = Team([agent("a"), agent("b")], round_robin(["a", "b"], max_turns=6))
    async with held(team) as session:
        await after(session, "user", "hello")
        history = await session.history()
        assert [one.sequence for one in history] == [*range(1, len(history) + 1)]
        instants = [one.created_at for one in history]
        assert instants == sorted(instants)
        assert len({one.envelope_id for one in history}) == len(history)


async def test_two_sessions_of_one_hub_do_not_hear_each_other() -> None:
    bot = agent("bot")
    team = Team([bot], chat())
    async with await Hub.open(serve=[team]) as hub:
        session, other = await hub.session(team), await hub.session("bot")
        await after(session, "user", "for the first")
        await after(other, "user", "for the second")
        assert "for the first" not in shown(bot)
        assert await talk(other) == [("user", "for the second"), ("bot", "bot speaks")]
