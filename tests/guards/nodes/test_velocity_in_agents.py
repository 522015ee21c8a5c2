"""Runs that spend faster than they may: they end, or go on with a cheaper model."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.guards import CircuitBreaker, CostBudget, CostVelocity
from agentgraph.guards.decision import Tier
from agentgraph.testing import Fault, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import words_of
from tests.guards.metered_models import (
    Driven,
    Metered,
    actions,
    again,
    asked,
    crowd,
    look,
    paid,
    told,
    worker,
)

FAST = CostVelocity(tokens_per_min=300, fast_s=60, slow_s=120, min_elapsed_s=30)
"""Three calls of 220 tokens, one each 20 s, are faster than that."""


def hasty(calls: int = 9, **fields: Any) -> Agent:
    """Return an agent that asks its model each 20 s."""
    turns: list[Scripted] = [Fault.delay(20, paid(call("look", number=n))) for n in range(calls)]
    return worker("a", [*turns, paid("Done.")], tools=[look], **fields)


@pytest.mark.parametrize(("tier", "action"), [("interactive", "abort"), ("batch", "abort")])
async def test_a_run_that_spends_too_fast_ends(tier: Tier, action: str) -> None:
    agent = hasty(guards=Guards(tier, velocity=FAST))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert (end.close_reason, actions(decisions)) == ("cost_velocity", [("cost_velocity", action)])
    assert asked(agent) == 3
    evidence = decisions[0]["evidence"]
    assert min(evidence["fast"], evidence["slow"]) > evidence["ceiling"] == 300
    assert (evidence["unit"], evidence["scope"]) == ("tokens_per_min", "a")


async def test_a_run_that_spends_slowly_goes_on() -> None:
    agent = hasty(guards=Guards.batch(velocity=CostVelocity(tokens_per_min=1_000, slow_s=120)))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert (end.text, decisions) == ("Done.", [])


async def test_where_stakes_are_high_a_human_decides_on_what_spends_too_fast() -> None:
    agent = hasty(5, guards=Guards.regulated(velocity=FAST, budget=CostBudget(tokens=10**6)))
    with Driven().installed() as clock:
        reply = await clock.drive(agent.ainvoke("go", thread_id="t"))
        [question] = reply.interrupts
        assert asked(agent) == 3
        # They answer at once: what was spent before is none of what they let go on.
        ended = await clock.drive(agent.aresume("t", {question.id: "approve"}))
    assert isinstance(question.payload, dict)
    assert question.payload["guard"] == "cost_velocity"
    assert (ended.text, ended.close_reason, asked(agent)) == ("Done.", None, 6)


async def test_a_cheaper_model_goes_on_for_one_that_spends_too_fast() -> None:
    cheap = Metered([paid("Done, for less.")], model_name="cheap")
    breaker = CircuitBreaker(fallback=cheap)
    agent = hasty(guards=Guards.interactive(velocity=FAST, breaker=breaker))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert (end.text, end.close_reason) == ("Done, for less.", None)
    assert (asked(agent), len(cheap.requests)) == (3, 1)
    assert actions(decisions)[0] == ("cost_velocity", "deny")
    assert actions(decisions)[1:] == [("circuit_breaker", "fallback")]


async def test_workers_who_are_fast_together_end_the_run_of_whoever_asked_them() -> None:
    turn = again(lambda: Fault.delay(40, paid("My part.")))
    boss = crowd("tool", turn, CostBudget(tokens=10**6), velocity=FAST)
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(boss, "go"))
    assert (end.close_reason, words_of(end)) == ("cost_velocity", "")
    assert (asked(boss), actions(decisions)) == (1, [("cost_velocity", "abort")])


# The defaults.

CALLS = 50


def big(calls: int, every_s: float = 0, tokens: int = 10_000, **fields: Any) -> Agent:
    """Return an agent that reads much and writes little, each time something new."""
    turns = [paid(call("look", number=n), read=tokens) for n in range(calls - 1)]
    last = paid("Done.", read=tokens)
    delayed: list[Scripted] = [Fault.delay(every_s, turn) for turn in (*turns, last)]
    return worker("a", delayed if every_s else [*turns, last], tools=[look], **fields)


@pytest.mark.parametrize("tier", ["interactive", "batch"])
@pytest.mark.parametrize("every_s", [0, 1, 5])
async def test_healthy_work_is_not_too_fast_for_the_defaults(tier: Tier, every_s: float) -> None:
    agent = big(CALLS, every_s, guards=Guards(tier))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert (end.text, end.close_reason, decisions) == ("Done.", None, [])
    assert asked(agent) == CALLS


async def test_by_default_a_run_ends_that_burns_more_than_anybody_needs() -> None:
    agent = big(CALLS, 5, 100_000, guards=Guards(budget=10**9))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert (end.close_reason, actions(decisions)) == ("cost_velocity", [("cost_velocity", "abort")])
    assert 3 < asked(agent) < 20


async def test_by_default_work_in_the_background_goes_on_after_an_alert() -> None:
    agent = big(CALLS, 5, 500_000, guards=Guards.batch(budget=10**9))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert (end.text, end.close_reason) == ("Done.", None)
    assert {*actions(decisions)} == {("cost_velocity", "allow")}
    assert all(decision["evidence"]["alert"] for decision in decisions)
    assert 1 <= len(decisions) < 10, "not at each call"


async def test_one_agent_may_spend_its_share_alone() -> None:
    shared = CostVelocity(1_000, slow_s=120, share=0.5)
    agent = big(9, 20, 220, guards=Guards(velocity=shared))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "go"))
    assert end.close_reason == "cost_velocity"
    assert decisions[0]["evidence"]["ceiling"] == 500
    assert "by 'a', whose ceiling is 500" in decisions[0]["cause"]
