"""A team in a team: what is done for one outside input is counted on all levels together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from langchain_core.messages import BaseMessage

from agentgraph import Agent, Guards, Handoff, Team
from agentgraph.guards import CostBudget
from agentgraph.routing import TransitionGraph, sequence
from agentgraph.sessions import EV_HANDOFF
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import calls, look, solo, watched
from tests.sessions.talk import after, held, of_type, talk


def passing_on(name: str, target: str, reasons: Iterator[int]) -> Agent:
    """Return an agent that hands over to another, until it is refused."""

    def over(reason: str) -> Handoff:
        """Hand over."""
        return Handoff(target, reason)

    def turn(messages: list[BaseMessage]) -> Scripted:
        refused = messages[-1].type == "tool" and "hop_limit" in str(messages[-1].text)
        return f"{name} stays." if refused else call("over", reason=str(next(reasons)))

    return solo(ScriptedModel(turn), over, name=name)


def ring(*names: str, name: str, **fields: Any) -> Team:
    reasons = count()
    agents = [
        passing_on(one, names[(at + 1) % len(names)], reasons) for at, one in enumerate(names)
    ]
    return Team(agents, TransitionGraph(names[0], ()), name=name, **fields)


async def test_hops_of_a_team_inside_count_with_those_outside() -> None:
    """Two outside and three inside are five; the sixth is refused, wherever it is tried."""
    inner = ring("q0", "q1", "q2", "q3", name="inner")
    reasons = count()
    first, second = passing_on("p0", "p1", reasons), passing_on("p1", "inner", reasons)
    rules = sequence(["p0"])
    async with held(Team([first, second, inner], rules)) as session:
        await after(session, "user", "go")
        assert len(await of_type(session, EV_HANDOFF)) == 2
        assert (await talk(session))[-1] == ("inner", "q3 stays.")
        assert session.state.hops == 5


async def test_hops_inside_are_none_that_are_left_outside() -> None:
    inner = ring("q0", "q1", "q2", "q3", "q4", "q5", "q6", name="inner")
    last = passing_on("p", "inner", count())
    async with held(Team([inner, last], sequence(["inner", "p"]))) as session:
        await after(session, "user", "go")
        assert await talk(session) == [("user", "go"), ("inner", "q5 stays."), ("p", "p stays.")]


async def test_an_inner_team_s_own_limit_may_be_lower_and_never_higher() -> None:
    for own, most in ((Guards(hops=2), "q2 stays."), (Guards(hops=50), "q5 stays.")):
        names = [f"q{n}" for n in range(7)]
        inner = ring(*names, name="inner", guards=own)
        async with held(Team([inner], sequence(["inner"]))) as session:
            await after(session, "user", "go")
            assert (await talk(session))[-1] == ("inner", most)


def talking(name: str) -> Agent:
    return solo(ScriptedModel(lambda _: f"{name} speaks"), name=name)


async def test_model_calls_inside_count_with_those_outside() -> None:
    inner = Team(
        [talking("a"), talking("b"), talking("c")], sequence(["a", "b", "c"]), name="inner"
    )
    outer: list[Any] = [talking("p"), inner, talking("q"), talking("r")]
    rules = sequence(["p", "inner", "q", "r"])
    async with held(Team(outer, rules, guards=watched(steps=calls(5)))) as session:
        state = await after(session, "user", "go")
        assert [who for who, _ in await talk(session)] == ["user", "p", "inner", "q"]
        assert state.pending_close_reason == "max_steps"


async def test_a_team_inside_stops_at_the_limit_of_the_one_around_it() -> None:
    pages = count()
    busy = ScriptedModel(lambda _: call("look", what=str(next(pages))))
    inner = Team([solo(busy, look, name="busy")], sequence(["busy"]), name="inner")
    team = Team([talking("p"), inner], sequence(["p", "inner"]), guards=watched(steps=calls(5)))
    await team.arun("go")
    assert len(busy.requests) == 4


async def test_what_a_team_inside_spends_is_paid_from_the_budget_around_it() -> None:
    pages = count()
    busy = ScriptedModel(lambda _: call("look", what=str(next(pages))))
    inner = Team([solo(busy, look, name="busy")], sequence(["busy"]), name="inner")
    guards = watched(budget=CostBudget(tokens=2_500))
    result = await Team([inner, talking("p")], sequence(["inner", "p"]), guards=guards).arun("go")
    assert result.usage.total_tokens <= 2_500
    assert 2 <= len(busy.requests) < 50
