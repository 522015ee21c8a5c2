"""What answers a private message is private too: to whom each envelope of a round is shown."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import ConfigurationError, SessionError
from agentgraph.guards import effect
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_AUDIT,
    EV_DECISION,
    EV_HANDOFF,
    EV_HANDOFF_REJECTED,
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_RELEASED,
    EV_TASK_PROGRESS,
    EV_TEXT,
    Draft,
    Envelope,
    Hub,
    Session,
    Team,
    current_session,
    delete_context,
    packet_envelope,
    report_progress,
    set_context,
    visible_to,
)
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.state import SessionState
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import (
    PATIENCE_S,
    after,
    agent,
    asked,
    dialogue,
    heard,
    held,
    of_type,
    settled,
    shown,
    until,
)

SECRET = "the marker"
ANSWER = Transition(FromSpeaker("user"), "a")


def in_turn(*agents: Agent, **fields: Any) -> Team:
    """Return a team whose agents speak one after the other, and then the user again."""
    names = [one.name for one in agents]
    follows = [Transition(FromSpeaker(a), b) for a, b in pairwise(names)]
    rules = TransitionGraph(
        names[0], [*follows, Transition(FromSpeaker("user"), names[0])], HumanTarget()
    )
    return Team(agents, rules, **{"name": "team", **fields})


async def told(session: Session, reader: str) -> str:
    """Return all that a participant may see of a session, as one text."""
    return str([one.to_dict() for one in await session.history() if visible_to(one, reader)])


async def last(session: Session, event_type: str) -> Envelope:
    return (await of_type(session, event_type))[-1]


async def test_the_answer_to_a_private_message_is_private() -> None:
    one, other = agent("a", SECRET, "all may know"), agent("b")
    async with held(in_turn(one, other)) as session:
        await after(session, "user", f"{SECRET} is for a", audience=["a"])
        assert SECRET not in shown(other) and SECRET not in await told(session, "b")
        packet = (await of_type(session, EV_PACKET))[0]
        assert packet.audience == ("a", "user")


async def test_it_is_passed_on_from_packet_to_packet_until_something_is_said_to_all() -> None:
    one, other, third = agent("a", SECRET, "public"), agent("b"), agent("c")
    async with held(in_turn(one, other, third)) as session:
        await after(session, "user", "psst", audience=["a", "b"])
        assert [one.audience for one in await of_type(session, EV_PACKET)] == [
            ("a", "b", "user"),
            ("a", "b", "user"),
            ("a", "b", "user"),
        ]
        assert SECRET in shown(other) and SECRET not in shown(third)
        await after(session, "user", "hello all")
        packets = (await of_type(session, EV_PACKET))[3:]
        assert [one.audience for one in packets] == [None, None, None]
        assert "public" in shown(third) and SECRET not in shown(third)


async def test_an_interjection_to_all_does_not_make_a_private_round_public() -> None:
    sessions: list[Session] = []

    async def chat() -> str:
        """Let the user say something meanwhile."""
        await sessions[0].send("user", "by the way", audience=["a", "b"])
        return "said"

    one = agent("a", call("chat"), SECRET, tools=[chat])
    async with held(in_turn(one, agent("b"))) as session:
        sessions.append(session)
        await after(session, "user", "psst", audience=["a"])
        assert SECRET not in await told(session, "b")


async def test_a_speaker_who_was_not_meant_hears_nothing_and_speaks_in_private() -> None:
    one, other = agent("a"), agent("b")
    async with held(in_turn(one, other)) as session:
        await after(session, "user", SECRET, audience=["b"])
        assert SECRET not in shown(one) and SECRET in shown(other)
        assert (await of_type(session, EV_PACKET))[0].audience == ("b", "user")


async def test_the_receiver_of_a_handoff_joins_those_who_may_see_it() -> None:
    def give() -> Handoff:
        """Give to c."""
        return Handoff("c", SECRET, f"summary: {SECRET}")

    one, other, third = agent("a", call("give"), SECRET, tools=[give]), agent("b"), agent("c")
    async with held(in_turn(one, other, third)) as session:
        await after(session, "user", "psst", audience=["a"])
        packet = (await of_type(session, EV_PACKET))[0]
        assert packet.audience == ("a", "user", "c")
        assert (await last(session, EV_HANDOFF)).audience == ("a", "user", "c")
        assert f"[Context from a]: summary: {SECRET}" in shown(third)
        assert "psst" not in shown(third)
        assert (await last(session, EV_PACKET)).audience == ("a", "user", "c")
        assert SECRET not in await told(session, "b")


async def test_a_refused_handoff_of_a_private_round_is_private() -> None:
    def give() -> Handoff:
        """Give to nobody."""
        return Handoff("nobody", SECRET, SECRET)

    one = agent("a", call("give"), "so", tools=[give])
    async with held(in_turn(one, agent("b"))) as session:
        await after(session, "user", "psst", audience=["a"])
        assert (await last(session, EV_HANDOFF_REJECTED)).audience == ("a", "user")
        assert SECRET not in await told(session, "b")


async def test_what_a_private_round_fails_at_is_private_and_its_failure_target_too() -> None:
    rules = dialogue("a")
    other = agent("b", SECRET)
    team = Team([agent("a", "", ""), other], rules, failure_target="b", humans=["guest"])
    async with held(team) as session:
        await session.join("guest")
        await after(session, "user", "psst", audience=["a"])
        failed = await of_type(session, EV_ROUND_FAILED)
        assert {one.audience for one in failed} == {("a", "user")}
        assert (await last(session, EV_PACKET)).audience == ("a", "user")
        assert SECRET not in await told(session, "guest")


def ask(what: str) -> str:
    """Ask a human for a decision."""
    return f"decided: {interrupt({'question': what})}"


async def test_what_a_private_round_asks_and_is_answered_is_private() -> None:
    one = agent("a", call("ask", what=SECRET), "so", tools=[ask])
    async with held(in_turn(one, agent("b"))) as session:
        state = await after(session, "user", "psst", audience=["a"])
        (key,) = state.interrupts
        await session.decide(key, f"yes, {SECRET}")
        await settled(session)
        assert (await last(session, EV_INTERRUPT)).audience == ("a", "user")
        assert (await last(session, EV_DECISION)).audience == ("a", "user")
        assert SECRET not in await told(session, "b")


async def test_what_is_asked_in_private_is_not_for_others_to_decide() -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt(SECRET))

    team = in_turn(agent("a", call("ask"), "thanks", tools=[ask]), humans=["bob"])
    async with held(team) as session:
        await session.join("bob")
        asked_question = await session.ask("in private", audience=["a"])
        (question,) = asked_question.interrupts
        with pytest.raises(SessionError, match="what waits is nothing"):
            await session.decide(question.id, "yes", sender="bob")
        await session.decide(question.id, "yes", sender="user")
        assert (await session.answer(asked_question.run_id)).text == "thanks"


async def test_the_reason_of_a_private_finish_is_not_told_to_all() -> None:
    def finish() -> Finish:
        """End it."""
        return Finish("bye", reason=SECRET)

    team = in_turn(agent("a", call("finish"), tools=[finish]), humans=["bob"])
    async with held(team) as session:
        await session.join("bob")
        await session.ask("in private", audience=["a"])
        assert session.state.pending_close_reason == "finished"
        assert SECRET not in await told(session, "bob")
        assert SECRET in await told(session, "user")


async def test_the_audit_and_the_progress_of_a_private_round_are_private() -> None:
    @effect
    def pay(what: str) -> str:
        """Pay."""
        report_progress(f"paying for {what}")
        return f"paid for {what}"

    one = agent("a", call("pay", what=SECRET), "so", tools=[pay])
    async with held(in_turn(one, agent("b"))) as session:
        await after(session, "user", "psst", audience=["a"])
        for event_type in (EV_AUDIT, EV_TASK_PROGRESS):
            assert {e.audience for e in await of_type(session, event_type)} == {("a", "user")}
        assert SECRET not in await told(session, "b")


async def test_after_parallel_speakers_all_of_them_are_in_the_audience() -> None:
    fan = Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], "d"))
    rules = TransitionGraph("a", [fan, ANSWER], HumanTarget())
    agents = [agent("a"), agent("b"), agent("c"), agent("d", SECRET)]
    async with held(Team(agents, rules)) as session:
        await after(session, "user", "psst", audience=["a"])
        packets = await of_type(session, EV_PACKET)
        assert {frozenset(one.audience or ()) for one in packets[1:3]} == {
            frozenset("a") | {"user"}
        }
        assert frozenset(packets[3].audience or ()) == {"a", "b", "c", "user"}


async def test_a_release_to_an_agent_leaves_a_private_talk_private() -> None:
    def give() -> Handoff:
        """Give to a human."""
        return Handoff("human", SECRET)

    one = agent("a", call("give"), "so", SECRET, tools=[give])
    async with held(in_turn(one, agent("b"), agent("c"))) as session:
        state = await after(session, "user", "psst", audience=["a"])
        assert state.status == "waiting_human"
        await session.release("a")
        await settled(session)
        assert (await last(session, EV_SESSION_RELEASED)).audience == ("a", "user")
        assert SECRET not in await told(session, "c")


# Context variables are public.


async def test_a_private_round_writes_no_context_unless_it_says_that_all_may_know() -> None:
    def note(public: bool) -> str:
        """Note it."""
        set_context("k", SECRET, public=public)
        return "noted"

    def forget() -> str:
        """Forget it."""
        delete_context("k")
        return "forgotten"

    turns: list[Any] = [call("note", public=False), call("note", public=True), call("forget"), "so"]
    one = agent("a", *turns, tools=[note, forget])
    async with held(in_turn(one, agent("b"))) as session:
        state = await after(session, "user", "psst", audience=["a"])
        answers = [str(m.text) for m in asked(one)[-1].messages if m.type == "tool"]
        assert "private to a, user" in answers[0] and "public=True" in answers[0]
        assert answers[1] == "noted" and "public=True" in answers[2]
        assert dict(state.context_vars) == {"k": SECRET}


async def test_neither_does_it_by_the_handle_of_its_session() -> None:
    async def note(public: bool) -> str:
        """Note it."""
        await current_session().set_context("k", SECRET, public=public)
        return "noted"

    one = agent("a", call("note", public=False), call("note", public=True), "so", tools=[note])
    async with held(in_turn(one, agent("b"))) as session:
        await after(session, "user", "psst", audience=["a"])
        answers = [str(m.text) for m in asked(one)[-1].messages if m.type == "tool"]
        assert "public=True" in answers[0] and answers[1] == "noted"
        await session.set_context("other", 1)  # from outside of a round
        assert set(session.state.context_vars) == {"k", "other"}


async def test_a_public_round_writes_context_as_before() -> None:
    def note() -> str:
        """Note it."""
        set_context("k", 1)
        return "noted"

    one = agent("a", call("note"), "so", tools=[note])
    async with held(in_turn(one)) as session:
        assert dict((await after(session, "user", "hello")).context_vars) == {"k": 1}


@pytest.mark.parametrize(
    "draft",
    [
        packet_envelope("mine", context_set={"k": SECRET}, audience=["a"]),
        packet_envelope("mine", context_delete=["k"], audience=["a"]),
        Draft("ag.context.set", {"set": {"k": SECRET}, "delete": []}, audience=("a",)),
    ],
)
async def test_what_is_for_some_sets_no_context(draft: Draft) -> None:
    async with held(in_turn(agent("a"), agent("b"))) as session:
        with pytest.raises(ConfigurationError, match="context variables"):
            await session.send("user", draft)


async def test_what_a_tool_says_in_a_private_round_is_for_those_who_see_that_round() -> None:
    async def say() -> str:
        """Say something."""
        await current_session().send("a", SECRET)
        return "said"

    one = agent("a", call("say"), "so", tools=[say])
    async with held(in_turn(one, agent("b"))) as session:
        await after(session, "user", "psst", audience=["a"])
        assert SECRET in await told(session, "user")
        assert SECRET not in await told(session, "b")


async def test_human_in_an_audience_is_the_creator() -> None:
    async with held(in_turn(agent("a"), agent("b"))) as session:
        receipt = await session.send("a", SECRET, audience=["human"], admitted=True)
        assert receipt.audience == ("user",)


# Sessions within sessions, forks, earlier versions.


async def inner_sessions(hub: Hub) -> list[Session]:
    sessions = [await hub.get(one.session_id) for one in await hub.log.sessions()]
    return [one for one in sessions if one.record.serves]


@pytest.mark.parametrize("where", ["team", "agent"])
async def test_an_inner_team_of_a_private_round_is_private(where: str) -> None:
    def note() -> str:
        """Note it."""
        set_context("k", SECRET)
        return "noted"

    x, y = agent("x", call("note"), f"x: {SECRET}", tools=[note]), agent("y", f"y: {SECRET}")
    inner = Team([x, y], sequence(["x", "y"]), name="inner")
    speaker: Any = inner
    if where == "agent":
        speaker = agent("boss", call("transfer_to_inner", reason="theirs"), agents=[inner])
    answer = Transition(FromSpeaker("human"), speaker.name)
    rules = TransitionGraph(
        speaker.name, [answer, Transition(FromSpeaker(speaker.name), "b")], HumanTarget()
    )
    other = agent("b")
    team = Team([speaker, other], rules, name="outer", humans=["guest"])
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.join("guest")
        await after(session, "guest", "hello")
        await after(session, "user", f"psst, {SECRET}", audience=[speaker.name])
        assert SECRET in shown(y) and "public=True" in shown(x)
        assert SECRET not in shown(other) and SECRET not in await told(session, "guest")
        assert SECRET in await told(session, "user")
        (found,) = await inner_sessions(hub)
        said = [one for one in await found.history() if one.is_substantive]
        assert {frozenset(one.audience or ()) for one in said} <= {
            frozenset("xy"),
            frozenset(["x", "y", "caller"]),
        }


async def test_the_creator_who_may_not_see_a_round_does_not_see_its_inner_session() -> None:
    x = agent("x", SECRET)
    inner = Team([x], sequence(["x"]), name="inner")
    rules = TransitionGraph("a", [Transition(FromSpeaker("guest"), "inner")], HumanTarget("guest"))
    team = Team([agent("a"), inner], rules, name="outer", humans=["guest"])
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.join("guest")
        await after(session, "user", "hello")
        await after(session, "guest", f"psst, {SECRET}", audience=["inner"])
        assert SECRET in await told(session, "guest")
        assert SECRET not in await told(session, "user")
        (found,) = await inner_sessions(hub)
        assert SECRET not in await told(found, "user")


async def test_a_fork_in_a_private_round_goes_on_in_private() -> None:
    one, other = agent("a"), agent("b", SECRET)
    async with held(in_turn(one, other)) as session:
        await after(session, "user", "psst", audience=["a"])
        first = (await of_type(session, EV_PACKET))[0]
        fork = await session.fork(first.sequence)
        await settled(fork)
        assert (await last(fork, EV_PACKET)).audience == ("a", "user")


async def test_a_state_that_an_earlier_version_has_stored_is_folded_again() -> None:
    async with held(in_turn(agent("a"))) as session:
        state = await after(session, "user", "psst", audience=["a"])
        stored = state.to_dict()
        del stored["audience"]
        with pytest.raises(KeyError):
            SessionState.from_dict(stored)
        assert fold_all(SessionState.initial(session.record), await session.history()) == state


# What a reader is given.


async def test_a_reader_is_given_what_it_may_see_and_no_more() -> None:
    one, other = agent("a", SECRET, "public"), agent("b")
    async with held(in_turn(one, other)) as session:
        await after(session, "user", "psst", audience=["a"])
        await after(session, "user", "hello")
        everything = await session.history()
        for reader in ("a", "b", "user"):
            seen = [one for one in everything if visible_to(one, reader)]
            assert await session.history(reader=reader) == seen
            assert await session.history(3, reader=reader) == [e for e in seen if e.sequence > 3]
        assert SECRET not in str(await session.history(reader="b"))
        assert "public" in str(await session.history(reader="b"))
        assert SECRET in str(await session.history(reader="user"))


async def test_watching_as_a_reader_ends_with_the_session() -> None:
    async with held(in_turn(agent("a", SECRET), agent("b"))) as session:
        await after(session, "user", "psst", audience=["a"])
        await session.close()
        seen = [one async for one in session.watch(reader="b")]
        assert seen == await session.history(reader="b")
        assert seen[-1].event_type == EV_SESSION_CLOSED


async def test_a_reader_is_told_of_no_live_event_of_a_round_that_it_may_not_see() -> None:
    x = agent("x", f"x says {SECRET}", "x in public")
    inner = Team([x], sequence(["x"]), name="inner")
    one = agent("a", SECRET, "a in public")
    rules = TransitionGraph(
        "a",
        [Transition(FromSpeaker("a"), "inner"), Transition(FromSpeaker("user"), "a")],
        HumanTarget(),
    )
    team = Team([one, inner, agent("b")], rules)
    async with held(team) as session:
        seen: dict[str, list[Any]] = {"a": [], "b": []}
        live: dict[str, list[Any]] = {"a": [], "b": []}

        async def read(reader: str) -> None:
            async for item in session.stream(reader=reader):
                (seen if isinstance(item, Envelope) else live)[reader].append(item)

        readers = [asyncio.ensure_future(read(name)) for name in live]
        await after(session, "user", "psst", audience=["a"])
        await after(session, "user", "hello")
        await session.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*readers)
        assert SECRET in str(live["a"]) and "a in public" in str(live["a"])
        assert SECRET not in str(live["b"]) and "a in public" in str(live["b"])
        assert "x in public" in str(live["b"])
        assert seen["b"] == await session.history(reader="b")


async def test_explain_tells_a_reader_of_what_it_may_see() -> None:
    async with held(in_turn(agent("a"), agent("b"))) as session:
        await after(session, "user", SECRET, audience=["a"])
        sequence = next(e.sequence for e in await session.history() if e.event_type == EV_TEXT)
        assert (await session.explain(sequence, reader="a")).decision is not None
        with pytest.raises(SessionError, match="'b' may see"):
            await session.explain(sequence, reader="b")


async def test_a_reader_has_to_take_part() -> None:
    async with held(in_turn(agent("a"))) as session:
        for read in (session.watch, session.stream):
            with pytest.raises(SessionError, match="takes no part"):
                read(reader="mallory")
        with pytest.raises(SessionError, match="takes no part"):
            await session.history(reader="mallory")
        with pytest.raises(SessionError, match="takes no part"):
            await session.explain(1, reader="mallory")


async def test_the_supervisor_reads_all_that_is_said() -> None:
    boss = agent("boss", *[call("stay_silent")] * 9)
    async with held(in_turn(agent("a", SECRET), agent("b"), supervisor=boss)) as session:
        await after(session, "user", "psst", audience=["a"])
        assert SECRET in str(await session.history(reader="boss"))


# The supervisor.


def watching() -> Agent:
    """Return a supervisor that remarks on what the user says, and quotes it."""

    def judge(messages: Any) -> Any:
        new = heard(messages).rsplit("\n\n", 1)[-1]
        return f"mind this: {new}" if new.startswith("[user]") else call("stay_silent")

    return Agent("boss", "watches", model=ScriptedModel(judge), default_tools=False)


async def remarks(session: Session) -> list[Envelope]:
    return [one for one in await of_type(session, EV_PACKET) if one.sender_id == "boss"]


async def test_a_remark_is_for_those_who_may_see_what_it_remarks_on() -> None:
    gate = asyncio.Event()

    async def slow(messages: Any) -> str:
        await gate.wait()
        return "so"

    one = Agent("a", "does a", model=ScriptedModel(slow), default_tools=False)
    other = agent("b")
    boss = watching()
    async with held(in_turn(one, other, supervisor=boss)) as session:
        await session.send("user", f"psst, {SECRET}", audience=["a"])
        await until(lambda: asked(boss))
        gate.set()
        await until(lambda: session.state.said.get("boss") == 1)
        await settled(session)
        (remark,) = await remarks(session)
        assert SECRET in remark.text and frozenset(remark.audience or ()) == {"a", "user"}
        assert SECRET not in shown(other)
        gate.clear()
        await session.send("user", "hello all")
        await until(lambda: any("hello all" in heard(one.messages) for one in asked(boss)))
        gate.set()
        await until(lambda: session.state.said.get("boss") == 2)
        await settled(session)
        assert (await remarks(session))[-1].audience is None


async def test_a_floor_that_a_supervisor_moves_in_private_stays_private() -> None:
    def judge(messages: Any) -> Any:
        new = heard(messages).rsplit("\n\n", 1)[-1]
        if new.startswith("[a]"):
            return call("handoff_conversation", target="c", reason=SECRET, summary=SECRET)
        return call("stay_silent")

    boss = Agent("boss", "watches", model=ScriptedModel(judge), default_tools=False)
    other, third = agent("b"), agent("c", SECRET)
    rules = dialogue("a")
    async with held(Team([agent("a"), other, third], rules, supervisor=boss)) as session:
        await after(session, "user", "psst", audience=["a"])
        await until(lambda: session.state.said.get("c"))
        await settled(session)
        assert SECRET in shown(third)
        assert SECRET not in await told(session, "b")


async def test_a_supervisor_writes_no_context_about_what_is_private() -> None:
    def note() -> str:
        """Note it."""
        set_context("k", SECRET)
        return "noted"

    def judge(messages: Any) -> Any:
        if messages[-1].type == "tool" or not heard(messages).endswith("psst"):
            return call("stay_silent")
        return call("note")

    model = ScriptedModel(judge)
    boss = Agent("boss", "watches", model=model, tools=[note], default_tools=False)
    gate = asyncio.Event()

    async def slow(messages: Any) -> str:
        await gate.wait()
        return "so"

    one = Agent("a", "does a", model=ScriptedModel(slow), default_tools=False)
    async with held(in_turn(one, agent("b"), supervisor=boss)) as session:
        await session.send("user", "psst", audience=["a"])
        await until(lambda: len(model.requests) >= 2)
        gate.set()
        state = await settled(session)
        assert "public=True" in str(model.requests[1].messages[-1].text)
        assert dict(state.context_vars) == {}


async def test_the_input_of_an_inner_team_is_not_shown_to_whom_its_parts_are_hidden() -> None:
    """The round is public, and the inner team has heard what the creator has not."""
    x = agent("x")
    inner = Team([x], sequence(["x"]), name="inner")
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "inner")], HumanTarget())
    team = Team([agent("a"), inner], rules, humans=["guest"])
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.join("guest")
        await after(session, "user", "hello")
        await after(session, "guest", f"psst, {SECRET}", audience=["inner"])
        await after(session, "user", "hello all")
        assert SECRET in shown(x)
        assert SECRET not in await told(session, "user")
        (found,) = await inner_sessions(hub)
        with pytest.raises(SessionError, match="takes no part"):
            await found.history(reader="user")


async def test_a_remark_on_parallel_packets_is_for_those_who_may_see_all_of_them() -> None:
    def judge(messages: Any) -> Any:
        new = heard(messages).rsplit("\n\n", 1)[-1]
        return f"mind this: {new}" if new.startswith("[c]") else call("stay_silent")

    boss = Agent("boss", "watches", model=ScriptedModel(judge), default_tools=False)
    fan = Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], "user"))
    rules = TransitionGraph("a", [fan, ANSWER], HumanTarget())
    team = Team([agent("a"), agent("b"), agent("c", SECRET)], rules, supervisor=boss)
    async with held(team) as session:
        await after(session, "user", "psst", audience=["a"])
        await until(lambda: session.state.said.get("boss"))
        await settled(session)
        for remark in await remarks(session):
            assert SECRET in remark.text and frozenset(remark.audience or ()) == {"a", "user"}
        assert SECRET not in await told(session, "b")
