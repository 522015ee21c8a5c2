"""Guards of a participant's own: they hold for it and all below it, beside the team's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.guards import CostBudget, Deadlines
from agentgraph.routing import sequence
from agentgraph.sessions import EV_AUDIT, EV_ROUND_FAILED, Session, Team
from agentgraph.testing import FakeClock, ScriptedModel, Turn, call
from tests.sessions.talk import PATIENCE_S, after, agent, held, of_type, settled, talk

LITTLE = CostBudget(tokens=3_000)


def costing(tokens: int, text: str = "", *calls: Any) -> Turn:
    """A turn that costs so much."""
    usage: Any = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
    return Turn(text, calls=calls, usage=usage)


def thrifty(*turns: Any, **fields: Any) -> Agent:
    return agent("a", *turns, guards=Guards.interactive(budget=LITTLE), **fields)


async def denied(session: Session) -> list[tuple[str, Any]]:
    """Return who was denied a call, and of which budget."""
    told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    return [(one["agent"], one["evidence"]["limit"]) for one in told if one["kind"] == "decision"]


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_a_budget_of_one_s_own_limits_nobody_else(order: str) -> None:
    b = agent("b", costing(9_000, "from b"), costing(9_000, "from b again"))
    async with held(Team([thrifty("from a"), b], sequence([*order, "b"]))) as session:
        state = await after(session, "user", "hello")
        assert (state.pending_close_reason, await denied(session)) == ("sequence_complete", [])


@pytest.mark.parametrize("order", ["aa", "baa"])
async def test_a_budget_of_one_s_own_holds_in_all_turns_for_an_input(order: str) -> None:
    one = thrifty(costing(2_990, "one"), "two")
    members = [one, agent("b")][: len({*order})]
    async with held(Team(members, sequence([*order]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "cost_budget"
        assert await denied(session) == [("a", 3_000)]


async def test_a_budget_of_one_s_own_is_shared_by_all_below() -> None:
    below = agent("below", costing(2_590, "below has"))
    one = thrifty(
        costing(400, "", call("transfer_to_below")), "never", agents=[below], handoff="delegate"
    )
    async with held(Team([agent("b"), one], sequence(["b", "a"]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "cost_budget"
        assert await denied(session) == [("a", 3_000)]


async def test_the_team_s_budget_holds_beside_one_s_own() -> None:
    one = agent(
        *("a", costing(4_000, "one"), costing(4_990, "two")),
        guards=Guards.interactive(budget=CostBudget(tokens=100_000)),
    )
    guards = Guards.interactive(budget=CostBudget(tokens=9_000))
    async with held(Team([one], sequence(["a", "a", "a"]), guards=guards)) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "cost_budget"
        assert await denied(session) == [("a", 9_000)]


@pytest.mark.parametrize(
    ("own", "of_team"),
    [
        (Guards.interactive(deadlines=Deadlines(None, 7, None)), Guards.interactive()),
        (Guards.interactive(deadlines=Deadlines(None, None, 7)), Guards.interactive()),
        (None, Guards.interactive(stages={"a": Guards(deadlines=Deadlines(None, 7, None))})),
    ],
    ids=["stage", "workflow", "stage of the team"],
)
async def test_a_deadline_of_one_s_own_cuts_off_one_s_turn(
    own: Guards | None, of_team: Guards
) -> None:
    begun = asyncio.Event()

    async def turn(messages: Any) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    fields: dict[str, Any] = {} if own is None else {"guards": own}
    one = Agent("a", model=ScriptedModel(turn), default_tools=False, **fields)
    clock = FakeClock()
    team = Team([one, agent("b")], sequence(["a"]), failure_target="b", guards=of_team)
    async with held(team, clock=clock) as session, asyncio.timeout(PATIENCE_S):
        await session.send("user", "hello")
        for _ in range(2):
            await begun.wait()
            begun.clear()
            clock.advance(7.5)
        await settled(session)
        told = [one.event_data for one in await of_type(session, EV_ROUND_FAILED)]
        assert [(one["speaker"], one["code"]) for one in told] == [("a", "deadline")] * 2
        assert await talk(session) == [("user", "hello"), ("b", "b speaks")]
