"""Teams in teams: a session of its own for one round of the outer one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.types import interrupt

from agentgraph import Agent, Guards
from agentgraph.guards import Deadlines
from agentgraph.outcomes import Handoff
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    ParallelTarget,
    TerminateTarget,
    Transition,
    TransitionGraph,
    feedback,
    sequence,
)
from agentgraph.sessions import (
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    Hub,
    Session,
    Team,
    current_session,
    set_context,
)
from agentgraph.testing import FakeClock, Fault, ScriptedModel, call
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


def inner_of(*agents: Any, rules: TransitionGraph | None = None, **fields: Any) -> Team:
    names = [one.name for one in agents]
    return Team(agents, rules or sequence(names), name="inner", **fields)


def outer_of(inner: Team, *, before: Any = None, **fields: Any) -> Team:
    """Return a team in which `first` speaks, then the inner team, then `last`."""
    first, last = before or agent("first"), agent("last")
    return Team([first, inner, last], sequence(["first", "inner", "last"]), name="outer", **fields)


async def inner_session(hub: Hub, outer: Session) -> Session:
    """Return the session that the inner team held."""
    (found,) = [one.session_id for one in await hub.log.sessions() if one.parent == outer.id]
    return await hub.get(found)


async def rounds_served(hub: Hub) -> list[tuple[str, int]]:
    """Return the outer session and round that each inner session of a store serves."""
    handles = [await hub.get(one.session_id) for one in await hub.log.sessions()]
    parents = [one.record.parent for one in handles if one.record.parent is not None]
    return [(parent.session_id, parent.round) for parent in parents]


async def test_the_last_words_of_an_inner_team_are_what_it_says() -> None:
    drafter, reviewer = agent("drafter", "a draft"), agent("reviewer", "the final text")
    team = outer_of(inner_of(drafter, reviewer))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert await talk(session) == [
            ("user", "hello"),
            ("first", "first speaks"),
            ("inner", "the final text"),
            ("last", "last speaks"),
        ]
        assert (state.turn_count, state.pending_close_reason) == (3, "sequence_complete")
        assert "(first): first speaks" in shown(drafter)  # said by the creator there
        assert "a draft" not in shown(team.agents[2])  # type: ignore[arg-type]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_an_inner_team_has_a_log_of_its_own_that_names_its_parent(
    store: str, tmp_path: Any
) -> None:
    url = None if store == "memory" else f"sqlite:///{tmp_path / 'log.db'}"
    team = outer_of(inner_of(agent("x"), agent("y")))
    async with await Hub.open(url, serve=[team]) as hub:
        outer = await hub.session(team, id="o")
        await after(outer, "user", "hello")
        inner = await inner_session(hub, outer)
        parent = inner.record.parent
        assert parent is not None
        assert (parent.session_id, parent.round, parent.speaker) == ("o", 2, "inner")
        assert [name for name, _ in await talk(inner)] == ["user", "x", "y"]
        assert inner.state.pending_close_reason == "sequence_complete"
        history = await inner.history()
        assert [one.sequence for one in history] == [*range(1, len(history) + 1)]


async def test_each_round_of_an_inner_team_is_a_session_of_its_own() -> None:
    inner = inner_of(agent("x"), agent("y"))
    team = Team([agent("a"), inner], sequence(["a", "inner", "a", "inner"]))
    async with await Hub.open(serve=[team]) as hub:
        outer = await hub.session(team, id="o")
        await after(outer, "user", "hello")
        assert await rounds_served(hub) == [("o", 2), ("o", 4)]


async def test_what_an_inner_team_has_used_is_told_by_its_agents() -> None:
    async with held(outer_of(inner_of(agent("x"), agent("y")))) as session:
        await after(session, "user", "hello")
        packet = (await of_type(session, EV_PACKET))[1]
        assert set(packet.event_data["usage"]) == {"inner/x", "inner/y"}


async def test_the_inner_context_is_its_own() -> None:
    def put() -> str:
        """Put."""
        set_context("k", 1)
        return "put"

    inner = inner_of(agent("x", call("put"), "so", tools=[put]))
    team = outer_of(inner)
    async with await Hub.open(serve=[team]) as hub:
        outer = await hub.session(team)
        state = await after(outer, "user", "hello")
        assert dict((await inner_session(hub, outer)).state.context_vars) == {"k": 1}
        assert dict(state.context_vars) == {}


async def test_a_failure_inside_fails_the_round_outside_and_it_is_tried_again() -> None:
    x = agent("x", Fault.server_error(), Fault.server_error(), "well then")
    team = outer_of(inner_of(x), guards=untried())
    async with await Hub.open(serve=[team]) as hub:
        outer = await hub.session(team, id="o")
        state = await after(outer, "user", "hello")
        (failed,) = await of_type(outer, EV_ROUND_FAILED)
        assert (failed.event_data["speaker"], failed.event_data["code"]) == (
            "inner",
            "round_failed",
        )
        assert ("inner", "well then") in await talk(outer)
        assert state.pending_close_reason == "sequence_complete"
        assert await rounds_served(hub) == [("o", 2), ("o", 2)]


async def test_a_failure_inside_that_lasts_closes_both() -> None:
    team = outer_of(inner_of(agent("x", "", "", "", "")))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        failed = await of_type(session, EV_ROUND_FAILED)
        assert [one.event_data["final"] for one in failed] == [False, True]
        assert state.pending_close_reason == "round_failed"


async def test_a_failure_inside_that_its_failure_target_mends_is_none_outside() -> None:
    inner = Team(
        [agent("x", "", ""), agent("y", "mended")],
        sequence(["x"]),
        name="inner",
        failure_target="y",
    )
    async with held(outer_of(inner)) as session:
        await after(session, "user", "hello")
        assert await of_type(session, EV_ROUND_FAILED) == []
        assert ("inner", "mended") in await talk(session)


async def test_a_hang_inside_is_cut_off_by_the_inner_teams_own_deadline() -> None:
    clock, entered = FakeClock(), asyncio.Event()

    async def hang(messages: Sequence[BaseMessage]) -> str:
        entered.set()
        await asyncio.Event().wait()
        return ""

    guards = Guards.interactive(deadlines=Deadlines(stage_s=10.0))
    x = agent("x").replace(model=ScriptedModel(hang))
    inner = inner_of(x, guards=guards)
    async with held(outer_of(inner), clock=clock) as session:
        await session.send("user", "hello")
        for _ in range(4):
            async with asyncio.timeout(PATIENCE_S):
                await entered.wait()
            entered.clear()
            clock.advance(10.5)
        state = await settled(session)
        assert state.pending_close_reason == "round_failed"


def ask(what: str) -> str:
    """Ask a human for a decision."""
    return f"decided: {interrupt({'question': what})}"


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_tool_inside_asks_a_human_outside(durability: Any) -> None:
    x = agent("x", call("ask", what="may I?"), "x was told", tools=[ask])
    w = agent("w", "before x")
    inner = inner_of(w, x, durability=durability)
    async with held(outer_of(inner, durability=durability)) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_decision"
        (question,) = await of_type(session, EV_INTERRUPT)
        assert question.event_data["speaker"] == "inner"
        assert question.event_data["payload"] == {"question": "may I?"}
        await session.decide(question.event_data["id"], "yes")
        state = await settled(session)
        assert ("inner", "x was told") in await talk(session)
        assert len(asked(w)) == 1
        assert len(asked(x)) == 2
        assert state.pending_close_reason == "sequence_complete"


async def test_an_inner_team_that_waits_for_a_human_asks_outside() -> None:
    rules = TransitionGraph(
        "x",
        (Transition(FromSpeaker("x"), HumanTarget()), Transition(FromSpeaker("user"), "y")),
        TerminateTarget("inner_done"),
    )
    y = agent("y", "thanks")
    inner = inner_of(agent("x", "what do you say?"), y, rules=rules)
    async with held(outer_of(inner)) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_decision"
        (question,) = await of_type(session, EV_INTERRUPT)
        assert question.event_data["payload"]["waits_for"] == "user"
        await session.decide(question.event_data["id"], "I say yes")
        state = await settled(session)
        assert "[user]: I say yes" in shown(y)
        assert ("inner", "thanks") in await talk(session)
        assert state.pending_close_reason == "sequence_complete"


async def test_several_of_an_inner_team_speak_at_once() -> None:
    fan = Transition(FromSpeaker("x"), ParallelTarget(["y", "z"], "w"))
    rules = TransitionGraph("x", (fan,), TerminateTarget("inner_done"))
    inner = inner_of(agent("x"), agent("y"), agent("z"), agent("w", "all of it"), rules=rules)
    async with held(outer_of(inner)) as session:
        await after(session, "user", "hello")
        assert ("inner", "all of it") in await talk(session)


async def test_two_inner_teams_speak_at_once() -> None:
    one = Team([agent("x", "from x")], sequence(["x"]), name="one")
    two = Team([agent("y", "from y")], sequence(["y"]), name="two")
    fan = Transition(FromSpeaker("a"), ParallelTarget(["one", "two"], "z"))
    rules = TransitionGraph("a", (fan,), TerminateTarget("done"))
    last = agent("z")
    async with held(Team([agent("a"), one, two, last], rules)) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "done"
        assert "[one]: from x" in shown(last)
        assert "[two]: from y" in shown(last)


async def test_a_team_in_a_team_in_a_team() -> None:
    deepest = Team([agent("x", "from below")], sequence(["x"]), name="deepest")
    middle = Team([deepest, agent("y", "from the middle")], sequence(["deepest", "y"]), name="mid")
    top = Team([agent("a"), middle], sequence(["a", "mid"]), name="top")
    async with await Hub.open(serve=[top]) as hub:
        session = await hub.session(top, id="o")
        await after(session, "user", "hello")
        assert (await talk(session))[-1] == ("mid", "from the middle")
        (middle_id,) = [one.session_id for one in await hub.log.sessions() if one.parent == "o"]
        assert await rounds_served(hub) == [("o", 2), (middle_id, 1)]


async def test_a_tool_inside_has_the_outer_session_as_its_own() -> None:
    seen: list[str] = []

    def look() -> str:
        """Look."""
        seen.append(current_session().id)
        return "seen"

    inner = inner_of(agent("x", call("look"), "so", tools=[look]))
    async with held(outer_of(inner), id="o") as session:
        await after(session, "user", "hello")
        assert seen == ["o"]


async def test_a_tool_inside_cannot_wait_for_the_outer_session() -> None:
    async def wait() -> str:
        """Wait for it."""
        await current_session().send("first", "hello", admitted=True)
        return "waited"

    x = agent("x", call("wait"), "so", tools=[wait])
    async with held(outer_of(inner_of(x))) as session:
        state = await after(session, "user", "hello")
        told = [str(m.text) for m in asked(x)[-1].messages if m.type == "tool"]
        assert "InsideRound" in told[0]
        assert state.pending_close_reason == "sequence_complete"


async def test_the_outer_session_is_closed_while_the_inner_team_speaks() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(messages: Sequence[BaseMessage]) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    inner = inner_of(agent("x").replace(model=ScriptedModel(hang)))
    async with held(outer_of(inner)) as session:
        await session.send("user", "hello")
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
            await session.close("enough")
            await cancelled.wait()
        state = await settled(session)
        assert state.pending_close_reason == "enough"


async def test_a_handoff_inside_stays_inside() -> None:
    def give() -> Handoff:
        """Give to y."""
        return Handoff("y", "", "of this")

    def leave() -> Handoff:
        """Give to one of the outer team."""
        return Handoff("last", "", "")

    x = agent("x", call("leave"), call("give"), tools=[give, leave])
    y = agent("y", "from y")
    async with held(outer_of(inner_of(x, y))) as session:
        await after(session, "user", "hello")
        told = [str(m.text) for m in asked(x)[-1].messages if m.type == "tool"]
        assert '"unknown_target"' in told[0]
        assert ("inner", "from y") in await talk(session)
        assert "[Context from x]: of this" in shown(y)


async def test_a_handoff_to_an_inner_team_reaches_it() -> None:
    def give() -> Handoff:
        """Give to the team."""
        return Handoff("inner", "they know", "about tides")

    x = agent("x", "from x")
    first = agent("a", call("give"), tools=[give])
    team = Team([first, inner_of(x)], sequence(["a"]), name="outer")
    async with held(team) as session:
        await after(session, "user", "hello")
        assert (await talk(session))[-1] == ("inner", "from x")
        assert "about tides" in shown(x)


async def test_feedback_works_through_a_team() -> None:
    def approve() -> str:
        """Approve."""
        set_context("approved", True)
        return "approved"

    writers = Team([agent("w"), agent("e")], sequence(["w", "e"]), name="writers")
    reviewer = agent("r", "not yet", call("approve"), "good", tools=[approve])
    team = Team([writers, reviewer], feedback("writers", "r", done="approved"), name="outer")
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "writers", "r", "writers", "r"]
        assert state.pending_close_reason == "feedback_complete"


async def test_an_inner_session_is_read_and_not_driven_by_whoever_looks_at_it() -> None:
    entered, opened = asyncio.Event(), asyncio.Event()

    async def slow(messages: Sequence[BaseMessage]) -> str:
        entered.set()
        await opened.wait()
        return "so"

    x = agent("x").replace(model=ScriptedModel(slow))
    team = outer_of(inner_of(x))
    async with await Hub.open(serve=[team]) as hub:
        outer = await hub.session(team)
        await outer.send("user", "hello")
        async with asyncio.timeout(PATIENCE_S):
            await entered.wait()
        inner = await inner_session(hub, outer)
        assert inner.state.due == ("x",)
        opened.set()
        await settled(outer)
        assert len(asked(x)) == 1
        await until(lambda: True)
        assert [one.event_type for one in await inner.history()][-1] == EV_SESSION_CLOSED


async def test_an_inner_team_that_an_agent_creator_opens() -> None:
    inner = inner_of(agent("x", "from x"))
    team = Team([agent("a"), inner], sequence(["a", "inner"]), name="outer")
    async with held(team, creator="a") as session:
        await after(session, "a", "mine")
        assert (await talk(session))[-1] == ("inner", "from x")


async def test_an_inner_session_is_never_left_for_hubs_to_run() -> None:
    failing = ScriptedModel([ValueError("down")] * 4)
    inner = Team([Agent("solver", model=failing)], sequence(["solver"]), name="inner")
    outer = Team([inner], sequence(["inner"]), name="outer")
    async with await Hub.open(serve=[outer]) as hub:
        session = await hub.session(outer)
        await session.send("user", "go")
        await session.settled()

        assert session.state.pending_close_reason == "round_failed"
        assert len(await hub.log.sessions()) == 3  # the outer one, and one for each attempt
        assert await hub.log.unfinished_sessions(float("inf")) == []


async def test_what_an_inner_team_uses_is_counted_for_all_its_rounds() -> None:
    solver = Agent("solver", model=ScriptedModel(["one", "two"]))
    inner = Team([solver], sequence(["solver", "solver"]), name="inner")
    result = await Team([inner], sequence(["inner"]), name="outer").arun("go")

    asked = solver.model.requests  # type: ignore[union-attr]
    assert len(asked) == 2
    [used] = result.usage.by_agent.values()
    assert list(result.usage.by_agent) == ["inner/solver"]
    assert used.output_tokens == 2
