"""Budgets of models that do not say how much they may write: what is reserved for their answers."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages.ai import UsageMetadata

from agentgraph import Agent, Guards
from agentgraph.guards import CostBudget
from agentgraph.guards.mechanisms.spending.budget import Spend
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.guarded_agents import solo, watched


def used(read: int, written: int) -> UsageMetadata:
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


def reading(read: int, written: int) -> ScriptedModel:
    """Return a model that looks at one thing after the other."""
    pages = iter(range(100))
    usage = used(read, written)
    return ScriptedModel(lambda _: Turn(calls=[call("look", what=f"{next(pages)}")], usage=usage))


async def test_a_short_answer_is_had_for_a_small_budget() -> None:
    guards = Guards(budget=CostBudget(tokens=1_200))
    agent = Agent("a", model=ScriptedModel(["Hello."]), guards=guards)
    assert (await agent.ainvoke("go")).text == "Hello."


@pytest.mark.parametrize("tokens", [1_000, 1_900, 2_500])
async def test_only_the_last_call_may_exceed_a_budget(tokens: int) -> None:
    model = reading(900, 100)
    reply = await solo(model, guards=watched(budget=CostBudget(tokens=tokens))).ainvoke("go")
    assert reply.close_reason == "cost_budget"
    assert tokens <= 1_000 * len(model.requests) < tokens + 1_000


async def test_a_model_is_taken_to_write_again_what_it_wrote_once() -> None:
    model = reading(50, 700)
    reply = await solo(model, guards=watched(budget=CostBudget(tokens=1_400))).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("cost_budget", 1)


async def test_a_call_that_does_not_fit_with_what_it_sends_is_refused() -> None:
    model = reading(900, 100)
    agent = solo(model, guards=watched(budget=CostBudget(tokens=200)))
    assert (await agent.ainvoke("word " * 1_000)).close_reason == "cost_budget"
    assert model.requests == []


async def test_parallel_calls_do_not_share_what_is_left() -> None:
    model = ScriptedModel(lambda _: Turn("Done.", usage=used(100, 400)))
    workers = [Agent(f"w{n}", "works", model=model, default_tools=False) for n in range(3)]
    calls = [call(one.name, request="go") for one in workers]
    free = used(0, 1)
    boss: Any = ScriptedModel([Turn(calls=calls, usage=free), Turn("Done.", usage=free)])
    guards = watched(budget=CostBudget(tokens=1_300))
    team = [one.as_tool() for one in workers]
    await asyncio.wait_for(solo(boss, agents=team, guards=guards).ainvoke("go"), 30)
    assert len(model.requests) <= 2


def test_dollars_are_cut_to_what_is_left_like_tokens() -> None:
    spend = Spend(CostBudget(usd="1"))
    assumed: Any = {"assumed_usd": Decimal("0.9")}
    decision, first = spend.reserve(tokens=0, usd=Decimal("1.2"), **assumed)
    assert first is not None and (decision.action, first.usd) == ("allow", Decimal(1))
    decision, second = spend.reserve(tokens=0, usd=Decimal("1.2"), **assumed)
    assert (decision.action, second) == ("deny", None)
