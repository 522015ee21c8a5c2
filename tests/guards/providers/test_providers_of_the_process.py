"""Agents on default guards share what the process knows of a provider, and others do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.errors import ModelError
from agentgraph.guards import RetryBudget
from tests.guards.guarded_agents import Hurried, Provider

RESERVE = 3
"""How many retries the budget of a model has at its begin."""


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


def agents(model: Any, count: int, **fields: Any) -> list[Agent]:
    return [Agent(f"a{n}", model=model, **fields) for n in range(count)]


async def failed(agent: Agent) -> str:
    with pytest.raises(ModelError) as error:
        await agent.ainvoke("hello")
    return error.value.code


async def test_default_guards_share_a_breaker_and_a_budget_of_retries(clock: Hurried) -> None:
    dear = Provider("dear")
    codes = [await failed(agent) for agent in agents(dear.model, 10)]
    assert codes[-1] == "circuit_open"
    first_attempts = len([code for code in codes if code != "circuit_open"])
    assert dear.requests <= first_attempts + RESERVE


async def test_another_model_has_a_breaker_and_a_budget_of_its_own(clock: Hurried) -> None:
    dear, other = Provider("dear"), Provider("other")
    for agent in agents(dear.model, 10):
        await failed(agent)
    [agent] = agents(other.model, 1)
    await failed(agent)
    assert other.requests == 3


async def test_the_breakers_of_guards_that_were_made_are_their_own(clock: Hurried) -> None:
    dear = Provider("dear")
    for agent in agents(dear.model, 10):
        await failed(agent)
    before = dear.requests
    [own] = agents(dear.model, 1, guards=Guards.interactive())
    await failed(own)
    assert dear.requests == before + 3
    dear.mend()
    [other] = agents(dear.model, 1, guards=Guards.interactive())
    assert (await other.ainvoke("hello")).text == "dear speaks"


async def test_a_budget_of_retries_counts_for_each_model_by_itself(clock: Hurried) -> None:
    dear, other = Provider("dear"), Provider("other")
    guards = Guards.interactive(retry=RetryBudget(reserve=2, ratio=0))
    for provider in (dear, other):
        [agent] = agents(provider.model, 1, guards=guards)
        await failed(agent)
        await failed(agent)
    assert (dear.requests, other.requests) == (4, 4)
