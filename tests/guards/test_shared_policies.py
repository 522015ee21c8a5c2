"""One policy may hold in any number of trees and teams: what each of them did is undone by its own.

Two tenants have agents of the same names with tools of the same names, each with a till.
"""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.testing import Fault, ScriptedModel
from tests.guards.escalating_agents import ANSWER, PLACES, Till, asked, clerk, pays, tree, unsure
from tests.guards.guarded_agents import calls, watched
from tests.sessions.talk import after, held

FAILS = Fault.server_error()


def payer(till: Till, name: str, *turns: Any, **fields: Any) -> Agent:
    fields = {"tools": [till.tool], "default_tools": False, **fields}
    return Agent(name, f"is {name}", model=ScriptedModel(turns), **fields)


@pytest.mark.parametrize("place", PLACES)
async def test_each_tenants_agent_undoes_what_it_did_itself(place: str) -> None:
    tills = [Till(), Till()]
    guards = unsure("doubt")
    tenants = [tree(place, clerk(till, "", "tea"), guards=guards) for till in tills]
    for tenant in tenants:
        assert tenant.graph
    for tenant in tenants:
        [question] = (await asked(tenant)).interrupts
        await tenant.aresume("t", {question.id: "reject"})
    assert [till.tries for till in tills] == [["pay tea", "give back tea"]] * 2


async def test_a_stage_of_a_shared_policy_undoes_what_its_own_tenant_did() -> None:
    tills = [Till(), Till()]
    guards = unsure("doubt", stages={"clerk": Guards(steps=40)})
    tenants = [tree("deep", clerk(till, "", "tea"), guards=guards) for till in tills]
    for tenant in tenants:
        assert tenant.graph
    [question] = (await asked(tenants[0])).interrupts
    await tenants[0].aresume("t", {question.id: "reject"})
    assert [till.tries for till in tills] == [["pay tea", "give back tea"], []]


async def test_a_guard_that_ends_a_team_undoes_what_all_of_that_team_did() -> None:
    tills, guards = [Till(), Till()], watched(steps=calls(3))
    teams = [
        Team(
            [
                payer(till, "first", *pays("tea"), "Paid."),
                payer(till, "second", *pays("milk"), ANSWER),
            ],
            sequence(["first", "second"]),
            guards=guards,
        )
        for till in tills
    ]
    assert all(team.graph for team in teams)
    assert (await teams[0].arun("go")).close_reason == "max_steps"
    undone = ["pay tea", "pay milk", "give back milk", "give back tea"]
    assert [till.tries for till in tills] == [undone, []]


async def test_a_session_that_fails_undoes_what_its_own_team_did() -> None:
    tills, guards = [Till(), Till()], watched(retry=None)
    teams = [
        Team(
            [payer(till, "desk", *pays("tea"), FAILS, *pays("tea"), FAILS)],
            sequence(["desk"]),
            guards=guards,
        )
        for till in tills
    ]
    assert all(team.graph for team in teams)
    async with held(teams[0]) as session:
        state = await after(session, "user", "go")
    assert state.pending_close_reason == "round_failed"
    assert [till.tries for till in tills] == [["pay tea", "give back tea"], []]


async def test_a_team_in_a_team_undoes_what_its_own_agents_of_a_name_did() -> None:
    inner, outer = Till(), Till()
    desk = payer(inner, "desk", *pays("tea"), FAILS, *pays("tea"), FAILS)
    within = Team([desk], sequence(["desk"]), name="within")
    around = Team(
        [within, payer(outer, "desk", *pays("milk"), ANSWER)],
        sequence(["within", "desk"]),
        guards=watched(retry=None),
    )
    async with held(around) as session:
        await after(session, "user", "go")
    assert inner.tries[:2] == ["pay tea", "give back tea"]
    assert (outer.tries, inner.left) == ([], [])


async def test_whoever_ends_an_input_undoes_what_others_did_under_guards_of_their_own() -> None:
    till = Till()
    team = Team(
        [
            payer(till, "first", *pays("tea"), "Paid.", guards=watched()),
            payer(till, "second", *pays("milk"), ANSWER, guards=watched(steps=calls(3))),
        ],
        sequence(["first", "second"]),
        guards=None,
    )
    await team.arun("go")
    assert till.tries == ["pay tea", "pay milk", "give back milk", "give back tea"]
    assert till.left == []
