"""A schema by the name of a tool that is misspelt would hold nothing: it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from pydantic import BaseModel

from agentgraph import Agent, Guards, Team, sequence
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Gate
from agentgraph.testing import ScriptedModel


class Payment(BaseModel):
    amount: int


def pay(amount: str) -> str:
    """Pay."""
    return "paid"


def refund(amount: str) -> str:
    """Pay back."""
    return "paid back"


def schemas(*names: str, **fields: Any) -> Guards:
    return Guards(gates=Gate(schema=dict.fromkeys(names, Payment)), **fields)


def agent(name: str, *tools: Any, **fields: Any) -> Agent:
    given = {"default_tools": False, **fields}
    return Agent(name, f"is {name}", model=ScriptedModel(["Done."]), tools=tools, **given)


def team(*agents: Any, **fields: Any) -> Team:
    return Team(agents, sequence([agents[0].name]), **fields)


def refused(make: Callable[[], object]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        make()
    return caught.value.faults


def fault(name: str, meant: str) -> str:
    return (
        f"guards: Gate(schema={{{name!r}: …}}): nobody under it has such a tool: there is {meant!r}"
    )


def test_a_name_that_is_misspelt_is_refused_with_the_one_that_was_meant() -> None:
    found = refused(lambda: agent("a", pay, refund, guards=schemas("Pay", "refunds")))
    assert found == (fault("Pay", "pay"), fault("refunds", "refund"))


def test_a_policy_may_be_shared_by_agents_of_different_tools() -> None:
    company = schemas("pay", "refund", "refunds", "transfer")
    clerk, teller = agent("clerk", pay, guards=company), agent("teller", refund, guards=company)
    assert agent("boss", agents=[clerk, teller], guards=company).graph
    assert team(clerk, teller).graph
    assert clerk.replace(tools=[]).graph


@pytest.mark.parametrize(
    "below",
    [
        lambda clerk: {"agents": [clerk]},
        lambda clerk: {"agents": [agent("mid", agents=[clerk])]},
        lambda clerk: {"agents": [clerk], "handoff": "delegate"},
        lambda clerk: {"tools": [clerk.as_tool()]},
    ],
    ids=["below", "far below", "delegate", "tool"],
)
def test_a_tool_may_be_that_of_anybody_below(below: Any) -> None:
    def boss(guards: Guards) -> Agent:
        fields = {"default_tools": False, **below(agent("clerk", pay)), "guards": guards}
        return Agent("boss", model=ScriptedModel([]), **fields)

    assert boss(schemas("pay")).graph
    assert refused(lambda: boss(schemas("pays"))) == (fault("pays", "pay"),)


def test_a_gate_of_a_stage_is_for_the_tools_of_that_stage() -> None:
    def boss(guards: Guards) -> Agent:
        return agent("boss", refund, agents=[agent("clerk", pay)], guards=guards)

    assert boss(Guards(stages={"clerk": schemas("pay")})).graph
    found = refused(lambda: boss(Guards(stages={"clerk": schemas("pays")})))
    assert found == (fault("pays", "pay"),)
    # The stage has gates of its own instead.
    assert boss(schemas("pays", stages={"clerk": schemas("pay")})).graph


def test_a_policy_inside_of_another_one_is_for_the_tools_below_it() -> None:
    clerk = agent("clerk", pay, guards=schemas("pay"))
    boss = agent("boss", refund, agents=[clerk], guards=schemas("pay", "refund"))
    assert boss.graph
    assert refused(lambda: clerk.replace(guards=schemas("pays"))) == (fault("pays", "pay"),)


def test_the_tools_that_each_agent_has_may_be_named() -> None:
    named = schemas("get_time_date", "get_supervisor_agent")
    assert agent("a", default_tools=True, guards=named).graph
    assert agent("boss", agents=[agent("clerk", default_tools=True)], guards=named).graph
    found = refused(lambda: agent("a", default_tools=True, guards=schemas("get_time_dates")))
    assert found == (fault("get_time_dates", "get_time_date"),)


def test_in_a_team_a_tool_may_be_anybodys() -> None:
    clerk, teller = agent("clerk", pay), agent("teller", agents=[agent("till", refund)])
    names = ("pay", "refund", "handoff_conversation")
    assert team(clerk, teller, guards=schemas(*names)).graph
    around = team(team(clerk, teller, name="inner"), agent("other"), guards=schemas(*names))
    assert around.graph
    found = refused(lambda: team(clerk, teller, guards=schemas("pay", "refunds")))
    assert found == (fault("refunds", "refund"),)
    supervisor = agent("boss", refund)
    assert team(clerk, supervisor=supervisor, guards=schemas("refund")).graph


def test_whoever_has_a_place_in_a_team_may_be_held_to_what_comes_with_it() -> None:
    assert agent("clerk", pay, guards=schemas("handoff_conversation", "stay_silent")).graph


class Brings(AgentMiddleware):
    """Middleware, which may bring tools with a call of the model."""


def test_where_tools_may_come_later_nothing_is_refused() -> None:
    theirs = create_agent(ScriptedModel(["Done."]), [pay], name="theirs")
    assert agent("a", middleware=[Brings()], guards=schemas("pays")).graph
    below = agent("clerk", middleware=[Brings()])
    assert agent("boss", pay, agents=[below], guards=schemas("pays")).graph
    assert agent("boss", pay, agents=[theirs], guards=schemas("pays")).graph
    assert Team([agent("a", pay), theirs], sequence(["a"]), guards=schemas("pays")).graph


def test_what_has_no_gates_by_tool_is_not_looked_at() -> None:
    assert agent("a", guards=Guards(gates=Gate(schema=Payment))).graph
    assert agent("a", guards=Guards(gates=Gate(schema={}))).graph
