"""A team that says how many turns it takes is not ended before by the default step limit."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph import Guards
from agentgraph.guards import DEFAULT, CostBudget
from agentgraph.routing import round_robin
from agentgraph.sessions import Team
from tests.sessions.talk import agent


@pytest.mark.parametrize("guards", [DEFAULT, Guards.interactive(hops=9)])
async def test_a_team_takes_its_turns_before_its_steps_are_used_up(guards: Any) -> None:
    rules = round_robin(["a", "b"], max_turns=60)
    team = Team([agent("a"), agent("b")], rules, guards=guards)
    result = await team.arun("go")
    assert (result.close_reason, result.state.turn_count) == ("round_robin_complete", 60)


async def test_a_step_limit_that_was_given_holds_whatever_max_turns_says() -> None:
    rules = round_robin(["a", "b"], max_turns=60)
    team = Team([agent("a"), agent("b")], rules, guards=Guards.interactive(steps=7))
    assert (await team.arun("go")).close_reason == "max_steps"


async def test_guards_shared_with_an_agent_pay_from_one_budget_whatever_max_turns_says() -> None:
    shared = Guards.interactive(budget=CostBudget(tokens=100_000))
    pair = [agent("a", guards=shared), agent("b", guards=shared)]
    team = Team(pair, round_robin(["a", "b"], max_turns=4), guards=shared)
    policy = team.active_guards
    assert policy is not None and shared.within(policy, "a") is policy
    assert (await team.arun("go")).close_reason == "round_robin_complete"
