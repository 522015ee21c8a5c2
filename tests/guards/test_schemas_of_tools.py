"""A schema is for the calls of a tool that somebody has: else nothing would ever be held to it."""

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


def fault(name: str, there: str) -> str:
    return f"guards: Gate(schema={{{name!r}: …}}): nobody under it has such a tool to run: " + (
        f"there are {there}"
    )


def test_a_schema_of_a_tool_that_nobody_has_is_refused_with_the_names_there_are() -> None:
    found = refused(lambda: agent("a", pay, refund, guards=schemas("Pay", "refund", "transfer")))
    assert found == (fault("Pay", "pay, refund"), fault("transfer", "pay, refund"))
    assert refused(lambda: agent("a", guards=schemas("pay"))) == (fault("pay", "none"),)


def test_what_moves_the_conversation_is_no_tool_that_a_gate_is_asked_about() -> None:
    names = ("transfer_to_clerk", "teller")
    below: dict[str, Any] = {"agents": [agent("clerk", pay)], "guards": schemas(*names, "pay")}
    found = refused(lambda: agent("boss", agent("teller").as_tool(), **below))
    assert found == tuple(fault(name, "pay") for name in names)


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
    assert refused(lambda: boss(schemas("buy"))) == (fault("buy", "pay"),)


def test_a_gate_of_a_stage_is_for_the_tools_of_that_stage() -> None:
    def boss(guards: Guards) -> Agent:
        return agent("boss", refund, agents=[agent("clerk", pay)], guards=guards)

    assert boss(Guards(stages={"clerk": schemas("pay")})).graph
    found = refused(lambda: boss(Guards(stages={"clerk": schemas("refund")})))
    assert found == (fault("refund", "pay"),)
    # The stage has gates of its own instead.
    found = refused(lambda: boss(schemas("pay", stages={"clerk": schemas("pay")})))
    assert found == (fault("pay", "refund"),)


def test_a_policy_inside_of_another_one_is_for_the_tools_below_it() -> None:
    clerk = agent("clerk", pay, guards=schemas("pay"))
    boss = agent("boss", refund, agents=[clerk], guards=schemas("pay", "refund"))
    assert boss.graph
    assert refused(lambda: clerk.replace(guards=schemas("refund"))) == (fault("refund", "pay"),)


def test_the_tools_that_each_agent_has_may_be_named() -> None:
    named = schemas("get_time_date", "get_supervisor_agent")
    assert agent("a", default_tools=True, guards=named).graph
    assert agent("boss", agents=[agent("clerk", default_tools=True)], guards=named).graph
    assert len(refused(lambda: agent("a", pay, guards=named))) == 2


def test_in_a_team_a_tool_may_be_anybodys() -> None:
    clerk, teller = agent("clerk", pay), agent("teller", agents=[agent("till", refund)])
    names = ("pay", "refund", "handoff_conversation")
    assert team(clerk, teller, guards=schemas(*names)).graph
    around = team(team(clerk, teller, name="inner"), agent("other"), guards=schemas(*names))
    assert around.graph
    found = refused(lambda: team(clerk, teller, guards=schemas("pay", "buy")))
    assert found == (fault("buy", "pay, refund"),)
    found = refused(
        lambda: team(clerk, teller, guards=Guards(stages={"teller": schemas("pay")})),
    )
    assert found == (fault("pay", "none"),)
    supervisor = agent("boss", refund)
    assert team(clerk, supervisor=supervisor, guards=schemas("refund")).graph


def test_whoever_has_a_place_in_a_team_may_be_held_to_what_comes_with_it() -> None:
    assert agent("clerk", pay, guards=schemas("handoff_conversation", "stay_silent")).graph


class Brings(AgentMiddleware):
    """Middleware, which may bring tools with a call of the model."""


def test_where_tools_may_come_later_nothing_is_refused() -> None:
    theirs = create_agent(ScriptedModel(["Done."]), [pay], name="theirs")
    assert agent("a", middleware=[Brings()], guards=schemas("later")).graph
    below = agent("clerk", middleware=[Brings()])
    assert agent("boss", pay, agents=[below], guards=schemas("later")).graph
    assert agent("boss", pay, agents=[theirs], guards=schemas("later")).graph
    assert Team([agent("a", pay), theirs], sequence(["a"]), guards=schemas("later")).graph


def test_what_has_no_gates_by_tool_is_not_looked_at() -> None:
    assert agent("a", guards=Guards(gates=Gate(schema=Payment))).graph
    assert agent("a", guards=Guards(gates=Gate(schema={}))).graph
