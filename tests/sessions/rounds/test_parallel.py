"""Several who speak at once, and who goes on when all of them have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from agentgraph.sessions import (
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    Session,
    Team,
    set_context,
)
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.talk import (
    after,
    agent,
    asked,
    held,
    of_type,
    settled,
    shown,
    talk,
    untried,
)


def fan_out(join: Any = "join", *rules: Transition) -> TransitionGraph:
    """Let `a` begin, then `b` and `c` at once, then whoever joins them."""
    fan = Transition(FromSpeaker("a"), ParallelTarget(["b", "c"], join))
    return TransitionGraph("a", (fan, *rules), TerminateTarget("joined"))


def finish() -> Finish:
    """Finish."""
    return Finish("It is over.", "b_finished")


def give() -> Handoff:
    """Hand over to d."""
    return Handoff("d", "d knows", "about tides")


async def decisions(session: Session) -> list[tuple[str, Any]]:
    """Return who spoke, and what was decided on it."""
    return [
        (one.sender_id, (one.event_data.get("decision") or {}).get("speakers"))
        for one in await of_type(session, EV_PACKET)
    ]


class Rendezvous:
    """A model that answers when as many are waiting for an answer as were named."""

    def __init__(self, together: int) -> None:
        self.together, self.inside, self.met = together, 0, asyncio.Event()

    def model(self, text: str) -> ScriptedModel:
        async def turn(messages: Sequence[BaseMessage]) -> str:
            self.inside += 1
            if self.inside == self.together:
                self.met.set()
            await self.met.wait()
            return text

        return ScriptedModel(turn)


async def test_they_speak_at_once_and_then_the_join_goes_on() -> None:
    meeting = Rendezvous(2)
    b = agent("b").replace(model=meeting.model("from b"))
    c = agent("c").replace(model=meeting.model("from c"))
    last = agent("join")
    async with held(Team([agent("a"), b, c, last], fan_out())) as session:
        state = await after(session, "user", "hello")
        assert meeting.inside == 2
        told = await decisions(session)
        assert told[0] == ("a", ["b", "c"])
        assert {name for name, _ in told[1:3]} == {"b", "c"}
        assert [speakers for _, speakers in told[1:]] == [None, ["join"], []]
        rounds = [one.event_data["round"] for one in await of_type(session, EV_PACKET)]
        assert rounds == [1, 2, 2, 3]
        assert (state.turn_count, state.pending_close_reason) == (4, "joined")
        assert "[b]: from b" in shown(last)
        assert "[c]: from c" in shown(last)


async def test_none_of_them_sees_what_the_others_say_at_the_same_time() -> None:
    b, c = agent("b"), agent("c")
    async with held(Team([agent("a"), b, c, agent("join")], fan_out())) as session:
        await after(session, "user", "hello")
        assert "c speaks" not in shown(b)
        assert "b speaks" not in shown(c)
        assert "[a]: a speaks" in shown(b)


async def test_the_writes_of_all_of_them_are_kept() -> None:
    def put(key: str) -> str:
        """Put."""
        set_context(key, key)
        return "put"

    b = agent("b", call("put", key="x"), "so", tools=[put])
    c = agent("c", call("put", key="y"), "so", tools=[put])
    async with held(Team([agent("a"), b, c, agent("join")], fan_out())) as session:
        assert dict((await after(session, "user", "hello")).context_vars) == {"x": "x", "y": "y"}


async def test_a_join_can_be_a_human_or_an_end() -> None:
    again = Transition(FromSpeaker("user"), "a")
    team = Team([agent("a"), agent("b"), agent("c")], fan_out(HumanTarget(), again))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
    team = Team([agent("a"), agent("b"), agent("c")], fan_out(TerminateTarget("all_said")))
    async with held(team) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "all_said"


async def test_only_the_one_that_failed_runs_again() -> None:
    b, c = agent("b", Fault.server_error(), "from b"), agent("c", "from c")
    team = Team([agent("a"), b, c, agent("join")], fan_out(), guards=untried())
    async with held(team) as session:
        state = await after(session, "user", "hello")
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        assert (failed.event_data["speaker"], failed.event_data["final"]) == ("b", False)
        assert len(asked(c)) == 1
        assert sorted(await talk(session))[:4] == [
            ("a", "a speaks"),
            ("b", "from b"),
            ("c", "from c"),
            ("join", "join speaks"),
        ]
        assert state.pending_close_reason == "joined"


async def test_where_one_fails_for_good_the_others_finish_and_then_it_closes() -> None:
    b, c = agent("b", "", ""), agent("c", "from c")
    async with held(Team([agent("a"), b, c, agent("join")], fan_out())) as session:
        state = await after(session, "user", "hello")
        assert ("c", "from c") in await talk(session)
        assert (state.pending_close_reason, state.turn_count) == ("round_failed", 2)


async def test_where_one_fails_for_good_the_failure_target_goes_on_after_the_others() -> None:
    b, c = agent("b", "", ""), agent("c", "from c")
    team = Team([agent("a"), b, c, agent("d"), agent("join")], fan_out(), failure_target="d")
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a", "c", "d"]
        assert state.pending_close_reason == "joined"


async def test_one_who_finishes_ends_it_once_all_have_spoken() -> None:
    finished = asyncio.Event()

    async def late(messages: Sequence[BaseMessage]) -> str:
        await finished.wait()
        return "from c"

    b = agent("b", call("finish"), tools=[finish])
    c = agent("c").replace(model=ScriptedModel(late))
    async with held(Team([agent("a"), b, c, agent("join")], fan_out())) as session:
        session.on(EV_PACKET, lambda one: finished.set() if one.sender_id == "b" else None)
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a", "b", "c"]
        assert state.pending_close_reason == "b_finished"


async def test_the_handoff_of_the_last_to_speak_outranks_the_join() -> None:
    spoken = asyncio.Event()

    async def late(messages: Sequence[BaseMessage]) -> Any:
        await spoken.wait()
        return call("give")

    b = agent("b", "from b")
    c = agent("c", tools=[give]).replace(model=ScriptedModel(late))
    d = agent("d")
    async with held(Team([agent("a"), b, c, d, agent("join")], fan_out())) as session:
        session.on(EV_PACKET, lambda one: spoken.set() if one.sender_id == "b" else None)
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a", "b", "c", "d"]
        assert state.pending_close_reason == "joined"
        assert "[Context from c]: about tides" in shown(d)


async def test_what_one_of_them_asks_a_human_waits_and_the_others_run_once() -> None:
    def ask() -> str:
        """Ask a human."""
        return f"decided: {interrupt({'question': 'may I?'})}"

    b, c = agent("b", call("ask"), "b was told", tools=[ask]), agent("c", "from c")
    async with held(Team([agent("a"), b, c, agent("join")], fan_out())) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_decision"
        (question,) = await of_type(session, EV_INTERRUPT)
        assert question.event_data["speaker"] == "b"
        assert question.event_data["payload"] == {"question": "may I?"}
        assert ("c", "from c") in await talk(session)
        await session.decide(question.event_data["id"], "yes")
        state = await settled(session)
        assert len(asked(c)) == 1
        assert ("b", "b was told") in await talk(session)
        assert any("decided: yes" in str(m.text) for m in asked(b)[-1].messages)
        assert state.pending_close_reason == "joined"


async def test_two_of_them_ask_and_each_is_answered_in_its_own_time() -> None:
    def ask(what: str) -> str:
        """Ask a human."""
        return f"decided: {interrupt(what)}"

    b = agent("b", call("ask", what="for b"), "b was told", tools=[ask])
    c = agent("c", call("ask", what="for c"), "c was told", tools=[ask])
    async with held(Team([agent("a"), b, c, agent("join")], fan_out())) as session:
        state = await after(session, "user", "hello")
        asked_ = {
            one.event_data["payload"]: one.event_data["id"]
            for one in await of_type(session, EV_INTERRUPT)
        }
        assert set(asked_) == {"for b", "for c"}
        await session.decide(asked_["for c"], "yes to c")
        state = await settled(session)
        assert (state.status, state.spoken) == ("waiting_decision", ("c",))
        await session.decide(asked_["for b"], "yes to b")
        state = await settled(session)
        assert state.pending_close_reason == "joined"
        assert any("decided: yes to b" in str(m.text) for m in asked(b)[-1].messages)
        assert any("decided: yes to c" in str(m.text) for m in asked(c)[-1].messages)


async def test_whoever_leaves_meanwhile_does_not_hold_up_the_others() -> None:
    entered = asyncio.Event()

    async def hang(messages: Sequence[BaseMessage]) -> str:
        entered.set()
        await asyncio.Event().wait()
        return ""

    b = agent("b").replace(model=ScriptedModel(hang))
    team = Team([agent("a"), b, agent("c", "from c", "from c")], fan_out(TerminateTarget("x")))
    async with held(team) as session:
        await session.send("user", "hello")
        await entered.wait()
        await session.leave("b")
        state = await settled(session)
        assert state.pending_close_reason == "round_failed"
        assert ("c", "from c") in await talk(session)


async def test_a_human_among_them_is_waited_for() -> None:
    rules = TransitionGraph(
        "a",
        (Transition(FromSpeaker("a"), ParallelTarget(["b", "ann"], "join")),),
        TerminateTarget("joined"),
    )
    team = Team([agent("a"), agent("b"), agent("join")], rules, humans=["ann"])
    async with held(team) as session:
        await session.join("ann")
        state = await after(session, "user", "hello")
        assert (state.status, state.due) == ("waiting_human", ("ann",))
        assert [name for name, _ in await talk(session)] == ["user", "a", "b"]
        state = await after(session, "ann", "here I am")
        assert state.pending_close_reason == "joined"
        assert [name for name, _ in await talk(session)] == ["user", "a", "b", "ann", "join"]


async def test_the_rule_after_a_join_is_the_joins_own() -> None:
    rules = fan_out("join", Transition(ToolCalled("note"), "a"))

    def note() -> str:
        """Note."""
        return "noted"

    b = agent("b", call("note"), "so", tools=[note])
    c = agent("c", call("note"), "so", tools=[note])
    team = Team([agent("a"), b, c, agent("join")], rules)
    async with held(team) as session:
        await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)][-1] == "join"
