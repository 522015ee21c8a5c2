"""The context of a run reaches each agent in the form of its own `context_schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Agent, Team, sequence
from agentgraph.errors import ConfigurationError
from agentgraph.testing import ScriptedModel, call


@dataclass
class Customer:
    user: str
    tier: str = "basic"


class Account(BaseModel):
    user: str


class Place(TypedDict):
    user: str


@dataclass
class Office:
    user: str
    city: str = "Rome"


seen: list[Any] = []
GIVEN = {"user": "ann", "city": "Oslo"}


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def look(runtime: ToolRuntime[Any]) -> str:
    """Look at the context."""
    seen.append(runtime.context)
    return "seen"


def looker(schema: type | None, name: str = "below") -> Agent:
    model = ScriptedModel([call("look"), "Done."])
    return Agent(name, model=model, tools=[look], context_schema=schema)


def above(below: Any, how: str = "sticky", schema: type | None = None) -> Agent:
    """Return an agent that leaves the work to the one below it."""
    if how == "tool":
        agents, ask = [below.as_tool()], call(below.name, request="go")
        return Agent("boss", model=ScriptedModel([ask, "So."]), tools=agents, context_schema=schema)
    model = ScriptedModel([call(f"transfer_to_{below.name}"), "So."])
    handoff: Any = how
    return Agent("boss", model=model, agents=[below], handoff=handoff, context_schema=schema)


@pytest.mark.parametrize("how", ["sticky", "delegate", "tool"])
@pytest.mark.parametrize(
    ("schema", "fitted"),
    [
        (Customer, Customer("ann")),
        (Account, Account(user="ann")),
        (Place, {"user": "ann"}),
        (None, GIVEN),
    ],
)
async def test_a_sub_agent_gets_the_context_in_its_own_form(
    how: str, schema: type | None, fitted: Any
) -> None:
    await above(looker(schema), how).ainvoke("go", context=GIVEN)
    assert seen == [fitted]


@pytest.mark.parametrize("own", [Office, Account, Place])
async def test_it_does_so_where_the_root_declares_another_form(own: type) -> None:
    given = {"user": "ann"}
    await above(looker(Customer), schema=own).ainvoke("go", context=given)
    assert seen == [Customer("ann")]


def test_it_does_so_in_synchronous_runs() -> None:
    above(looker(Customer)).invoke("go", context=GIVEN)
    assert seen == [Customer("ann")]


async def test_a_sub_agent_two_levels_below_gets_it_too() -> None:
    middle = above(looker(Customer)).replace(name="middle")
    await above(middle).ainvoke("go", context=GIVEN)
    assert seen == [Customer("ann")]


@pytest.mark.parametrize("how", ["sticky", "delegate"])
async def test_a_graph_of_others_below_an_agent_gets_it_too(how: str) -> None:
    model = ScriptedModel([call("look"), "Done."])
    theirs: Any = create_agent(model, [look], name="below", context_schema=Customer)
    await above(theirs, how).ainvoke("go", context=GIVEN)
    assert seen == [Customer("ann")]


async def test_an_agent_in_a_graph_of_others_or_in_a_team_gets_it_too() -> None:
    builder = StateGraph(MessagesState).add_node("desk", looker(Customer).graph)
    graph: Any = builder.add_edge(START, "desk").compile()
    await graph.ainvoke({"messages": [HumanMessage("go")]}, context=GIVEN)
    team = Team([looker(Customer)], sequence(["below"]))
    messages: Any = {"messages": [HumanMessage("go")]}
    await team.graph.ainvoke(messages, context=GIVEN)
    assert seen == [Customer("ann"), Customer("ann")]


async def test_without_a_context_there_is_none() -> None:
    await above(looker(Customer)).ainvoke("go")
    assert seen == [None]


@pytest.mark.parametrize(
    ("schema", "given", "problem"),
    [
        (Customer, {"city": "Oslo"}, "missing 1 required positional argument: 'user'"),
        (Account, {"user": 12345}, "user: Input should be a valid string"),
        (Place, {"city": "Oslo"}, "dict lacks user"),
        (Customer, "ann", "a str has no fields to take over"),
    ],
)
async def test_a_context_that_does_not_fit_is_an_error_that_says_so(
    schema: type, given: Any, problem: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        await above(looker(schema)).ainvoke("go", context=given)
    assert f"does not fit {schema.__name__}, the context_schema of 'below'" in str(error.value)
    assert problem in str(error.value)
    assert "12345" not in str(error.value)
    assert error.value.code == "context"
