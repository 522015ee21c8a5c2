"""Inputs that spend too fast go on with a cheaper model, and no others with them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent, Guards
from agentgraph.guards import CircuitBreaker, CostBudget, CostVelocity
from agentgraph.testing import Fault, call
from tests.guards.metered_models import Driven, Metered, actions, asked, paid, told, worker

FAST = CostVelocity(tokens_per_min=300, fast_s=60, slow_s=120, min_elapsed_s=30)
"""Three calls of 220 tokens, one each 20 s, are faster than that."""


def look(number: int) -> str:
    """Look at something."""
    return f"seen {number}"


def hasty(**fields: Any) -> Agent:
    """Return an agent that asks its model each 20 s when it is told to hurry, else once."""

    def turn(messages: list[BaseMessage]) -> Any:
        if not any(m.type == "human" and m.text == "hurry" for m in messages):
            return paid("At your service.")
        return Fault.delay(20, paid(call("look", number=len(messages))))

    return worker("a", turn, tools=[look], **fields)


def with_cheaper(*turns: Any, **fields: Any) -> tuple[Agent, Metered]:
    cheap = Metered(list(turns) or [paid("Done, for less.")], model_name="cheap")
    breaker = CircuitBreaker(fallback=cheap, **fields)
    return hasty(guards=Guards.interactive(velocity=FAST, breaker=breaker)), cheap


async def test_who_spends_too_fast_takes_no_model_from_others() -> None:
    agent, cheap = with_cheaper()
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "hurry", "fast"))
        assert (end.text, actions(decisions)[0]) == ("Done, for less.", ("cost_velocity", "deny"))
        for thread in ("other", "fast too, once"):
            calm, decisions = await clock.drive(told(agent, "calmly", thread))
            assert (calm.text, decisions) == ("At your service.", [])
    assert (asked(agent), len(cheap.requests)) == (5, 1)


async def test_after_a_pause_the_model_is_asked_again_and_its_last_trip_ends_the_run() -> None:
    looks = [Fault.delay(20, paid(call("look", number=n), read=1, written=1)) for n in range(99)]
    agent, cheap = with_cheaper(*looks, max_trips=2, cooldown_s=40)
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "hurry"))
    assert end.close_reason == "circuit_breaker"
    assert actions(decisions).count(("cost_velocity", "deny")) == 2
    assert asked(agent) > 3
    assert len(cheap.requests) >= 2


async def test_dollars_are_watched_where_the_budget_is_in_tokens() -> None:
    prices = {"metered": (Decimal(100), Decimal(100))}
    fast = CostVelocity(usd_per_hour=1, fast_s=60, slow_s=120, min_elapsed_s=30)
    budget = CostBudget(tokens=10**6, prices=prices)
    agent = hasty(guards=Guards.interactive(velocity=fast, budget=budget))
    with Driven().installed() as clock:
        end, decisions = await clock.drive(told(agent, "hurry"))
    assert (end.close_reason, actions(decisions)) == ("cost_velocity", [("cost_velocity", "abort")])
    assert decisions[0]["evidence"]["unit"] == "usd_per_hour"
    assert asked(agent) == 3


@pytest.mark.parametrize("has_another", [True, False])
async def test_where_no_model_is_swapped_too_fast_is_what_the_table_says_of_cost(
    has_another: bool,
) -> None:
    """In the batch tier the run ends; in the regulated one a human lets it go on."""
    breaker = CircuitBreaker(fallback=Metered([]) if has_another else None)
    budget = CostBudget(tokens=10**6)

    with Driven().installed() as clock:
        batch = Guards.batch(velocity=FAST, breaker=breaker, budget=budget)
        end, decisions = await clock.drive(told(hasty(guards=batch), "hurry"))
        assert end.close_reason == "cost_velocity"
        assert actions(decisions) == [("cost_velocity", "abort")]
        agent = hasty(guards=Guards.regulated(velocity=FAST, budget=budget))
        _, decisions = await clock.drive(told(agent, "hurry"))
        assert actions(decisions) == [("cost_velocity", "escalate")]
        [question] = await agent.ainterrupts("t")
        before = asked(agent)
        reply = await clock.drive(agent.aresume("t", {question.id: "approve"}))
        assert asked(agent) >= before + 3  # until it has spent as much again
        assert [one.id for one in reply.interrupts] != [question.id]
