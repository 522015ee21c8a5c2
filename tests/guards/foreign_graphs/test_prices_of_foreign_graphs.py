"""Dollars that graphs of others spend: their models are not known, so prices are to be given."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool

from agentgraph import Agent, Guards, Team, patched
from agentgraph.errors import ConfigurationError
from agentgraph.guards import CostBudget, CostVelocity
from agentgraph.routing import round_robin
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.foreign_graphs.foreign_shapes import SHAPES
from tests.guards.guarded_agents import look, stopped_by, watched

A_THOUSAND: Any = {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1_000}
PRICED: Any = {"gpt-4o-mini": ("1", "2")}


def clerk_of(model: Any, *tools: Any) -> Any:
    return create_agent(model, list(tools), name="clerk")


def placed(place: str, clerk: Any, guards: Guards) -> Any:
    """Put a graph into its place, and build everything around it."""
    if place == "graph":
        return patched(clerk, guards)
    if place == "clerk":
        return Team([clerk], round_robin(["clerk"], max_turns=9), guards=guards)
    boss = ScriptedModel([call("transfer_to_clerk")], model_name="boss")
    return Agent("boss", model=boss, agents=[clerk], guards=guards)


PLACES = pytest.mark.parametrize("place", ["graph", "clerk", "boss/clerk"])


@PLACES
@pytest.mark.parametrize("tools", [(), (look,)], ids=["alone", "tools"])
@pytest.mark.parametrize(
    ("what", "held"),
    [
        ("budget", {"budget": CostBudget(usd=1, prices=PRICED)}),
        ("budget", {"budget": CostBudget(usd=1, tokens=9_000)}),
        ("velocity", {"velocity": CostVelocity(usd_per_hour=9)}),
    ],
)
def test_dollars_are_refused_where_the_model_is_not_known(
    place: str, tools: Any, what: str, held: Any
) -> None:
    clerk = clerk_of(ScriptedModel(["Never."], model_name="gpt-4o-mini"), *tools)
    with pytest.raises(ConfigurationError) as refused:
        placed(place, clerk, watched(**held))
    (fault,) = (one for one in refused.value.faults if repr(place) in one)
    assert fault.startswith(f"guards: {place!r} has a {what} in dollars")
    assert f"CostBudget(prices={{{place!r}: (read, written)}}" in fault
    assert "give tokens" in fault


def in_dollars(place: str) -> Guards:
    """Return guards under which three calls of a clerk can be paid."""
    known: Any = {place: (100, 100), "boss": (0, 0)}
    return watched(budget=CostBudget(usd="0.30", prices=known))


def reading() -> ScriptedModel:
    """Return a model that reads one page after the other."""
    pages = iter(range(100))
    return ScriptedModel(
        lambda _: Turn(calls=[call("look", what=str(next(pages)))], usage=A_THOUSAND)
    )


async def test_a_price_given_for_a_graph_is_what_its_calls_cost() -> None:
    model = reading()
    graph = placed("graph", clerk_of(model, look), in_dollars("graph"))
    result = await graph.ainvoke({"messages": [("user", "go")]})
    assert (stopped_by(result), len(model.requests)) == ("cost_budget", 3)


async def test_a_price_given_for_a_sub_agent_is_what_its_calls_cost() -> None:
    model = reading()
    agent = placed("boss/clerk", clerk_of(model, look), in_dollars("boss/clerk"))
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("cost_budget", 3)


async def test_a_price_given_for_a_speaker_is_what_its_calls_cost() -> None:
    model = ScriptedModel(lambda _: Turn("It is 7.", usage=A_THOUSAND))
    reply = await placed("clerk", clerk_of(model), in_dollars("clerk")).arun("go")
    assert (reply.close_reason, len(model.requests)) == ("cost_budget", 3)


async def test_a_price_given_where_a_graph_was_patched_holds_in_a_team() -> None:
    model = ScriptedModel(lambda _: Turn("It is 7.", usage=A_THOUSAND))
    clerk = placed("graph", clerk_of(model), in_dollars("graph"))
    team = Team([clerk], round_robin(["clerk"], max_turns=2), guards=None)
    reply = await team.arun("go")
    assert (reply.text, len(model.requests)) == ("It is 7.", 2)


def test_a_team_is_no_graph_of_a_model_though_a_speaker_is_called_like_one() -> None:
    speaker = Agent("agent", model=ScriptedModel(["It is 7."], model_name="boss"), guards=None)
    team = Team([speaker], round_robin(["agent"], max_turns=1), name="clerks", guards=None)
    boss = placed("boss/clerks", team, in_dollars("boss"))
    assert "clerks" in boss.graph.nodes


# Models in nodes that guards do not know.

UNSEEN = ("dict", "method", "graph in a list")


def office(shape: str, guards: Guards, *turns: Any) -> Agent:
    graph = SHAPES[shape].make(ScriptedModel([*turns]), tool(look))
    boss = ScriptedModel([call("transfer_to_office"), "Bye."])
    return Agent("boss", model=boss, agents=[graph], guards=guards, default_tools=False)


def asks_for(tokens: int, what: str) -> Turn:
    usage = UsageMetadata(input_tokens=tokens, output_tokens=0, total_tokens=tokens)
    return Turn("", [call("look", what=what)], usage=usage)


@pytest.mark.filterwarnings("ignore:guards. .* asks a model in a node")
@pytest.mark.parametrize("shape", UNSEEN)
async def test_dollars_limit_models_in_nodes_that_guards_do_not_know(shape: str) -> None:
    prices = {"scripted": (1, 1), "boss/office": (1_000, 1_000)}
    budget = CostBudget(usd=5, prices=prices)
    turns = [asks_for(4_000, "a"), asks_for(4_000, "b"), asks_for(4_000, "c"), "Done."]
    reply = await office(shape, Guards(budget=budget), *turns).ainvoke("go")
    assert reply.close_reason == "cost_budget"


@pytest.mark.filterwarnings("ignore:guards. .* asks a model in a node")
@pytest.mark.parametrize("shape", UNSEEN)
async def test_a_call_there_without_usage_is_charged_as_it_was_estimated(shape: str) -> None:
    turns = [asks_for(0, f"{n}") for n in range(9)]
    reply = await office(shape, Guards(budget=6_000), *turns, "Done.").ainvoke("go")
    assert reply.close_reason == "cost_budget"
