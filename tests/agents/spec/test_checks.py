from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from agentgraph import Agent, AgentGraphError, Intent
from agentgraph.errors import ConfigurationError
from agentgraph.testing import ScriptedModel, call


def lookup(order: str) -> str:
    """Look an order up."""
    return order


def named(name: str) -> Any:
    @tool(name)
    def function(order: str) -> str:
        """Do something."""
        return order

    return function


def agent(name: str = "Root", **fields: Any) -> Agent:
    return Agent(name, model=ScriptedModel([]), **fields)


GREETING = Intent("good morning", "raw", "Good morning to you.")


def faults(name: str = "Root", **fields: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        agent(name, **fields)
    return caught.value.faults


@pytest.mark.parametrize("name", ["a", "billing-eu_2", "A" * 52])
def test_legal_names_are_taken(name: str) -> None:
    assert agent(name).graph.name == name


@pytest.mark.parametrize("name", ["", "A" * 53, "no good", "é", "a/b", "a.b", "a\n", "@a"])
def test_illegal_name_is_refused(name: str) -> None:
    assert faults(name) == (
        f"the name {name!r} is not legal: use 1 to 52 of a-z, A-Z, 0-9, _ and -",
    )


def test_illegal_name_of_a_foreign_graph_is_refused() -> None:
    builder = StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n")

    assert "'no good' is not legal" in faults(agents=[builder.compile(name="no good")])[0]


def test_a_foreign_graph_without_a_name_is_refused_until_it_has_one() -> None:
    builder = StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n")
    graph = builder.compile()

    (fault,) = faults(agents=[graph])
    assert "has no name" in fault
    assert 'graph.name = "billing"' in fault
    graph.name = "billing"
    assert agent("Root", agents=[graph]).children[0].name == "billing"


@pytest.mark.parametrize("pair", [("Sub", "Sub"), ("Sub", "sub"), ("ROOT", "Sub")])
def test_names_are_unique_in_the_tree_whatever_their_case(pair: tuple[str, str]) -> None:
    found = faults(agents=[agent(name) for name in pair])

    assert len(found) == 1
    assert "two agents of the tree are called" in found[0]


def test_names_are_unique_across_branches_and_levels() -> None:
    one = agent("One", agents=[agent("Leaf")])
    two = agent("Two", agents=[agent("leaf")])

    assert "'leaf'" in faults(agents=[one, two])[0]


def test_name_of_an_agent_that_answers_like_a_tool_counts_too() -> None:
    assert "'Clerk'" in faults("clerk", tools=[agent("Clerk").as_tool()])[0]


@pytest.mark.parametrize(
    "name",
    ["render_system_prompt", "router", "continue_conversation", "call_model", "call_tools"],
)
def test_sub_agent_cannot_be_called_like_a_node(name: str) -> None:
    found = faults(agents=[agent(name)])

    assert len(found) == 1
    assert f"cannot be called {name!r}" in found[0]


def test_root_may_be_called_like_a_node() -> None:
    assert agent("router").graph.name == "router"


def test_sub_agent_cannot_be_called_like_a_tool_of_its_supervisor() -> None:
    assert "'lookup'" in faults(agents=[agent("lookup")], tools=[lookup])[0]


def test_two_tools_cannot_have_one_name() -> None:
    assert "'lookup' is taken twice" in faults(tools=[lookup, named("lookup")])[0]


def test_same_tool_given_twice_is_refused() -> None:
    assert "'lookup' is taken twice" in faults(tools=[lookup, lookup])[0]


def test_tool_cannot_be_called_like_a_transfer() -> None:
    found = faults(tools=[named("transfer_to_Sub")], agents=[agent("Sub")])

    assert len(found) == 1
    assert "'transfer_to_Sub' is taken twice" in found[0]


@pytest.mark.parametrize(
    "name",
    [
        "get_time_date",
        "list_tools_available",
        "list_subagents_available",
        "list_intents_available",
        "get_current_active_agent",
        "get_supervisor_agent",
        "request_help",
    ],
)
async def test_tool_of_ones_own_replaces_the_default_tool_of_its_name(name: str) -> None:
    model = ScriptedModel([call(name, order="17"), "done"])
    below = Agent(
        "Sub", model=model, tools=[named(name)], agents=[agent("Leaf")], intents=[GREETING]
    )

    reply = await agent(agents=[below]).ainvoke("@Sub hi")

    assert list(model.requests[0].tools).count(name) == 1
    assert (reply.text, model.requests[1].messages[-1].text) == ("done", "17")


@pytest.mark.parametrize("name", ["get_time_date", "get_supervisor_agent", "request_help"])
def test_names_of_default_tools_are_free_where_these_are_off(name: str) -> None:
    own = agent(tools=[named(name)], default_tools=False)

    assert [t.name for t in own.own_tools] == [name]


def test_tool_cannot_be_called_like_the_form_of_the_answer() -> None:
    class Verdict(BaseModel):
        """What is to be done."""

        pay: bool

    assert "'Verdict'" in faults(tools=[named("Verdict")], response_format=Verdict)[0]


def test_tool_cannot_be_called_like_an_agent_that_answers_like_a_tool() -> None:
    assert "'Clerk'" in faults(tools=[named("Clerk"), agent("Clerk").as_tool()])[0]


def test_agent_below_itself_is_refused() -> None:
    leaf = agent("Leaf")
    mid = agent("Mid", agents=[leaf])
    object.__setattr__(leaf, "agents", (mid,))
    object.__setattr__(leaf, "sub_agents", (mid,))

    assert faults(agents=[mid]) == (
        "the tree has a cycle: Root → Mid → Leaf → Mid: an agent cannot be below itself",
    )


def test_one_agent_in_two_places_is_a_name_taken_twice() -> None:
    shared = agent("Shared")

    assert "'Shared'" in faults(agents=[shared, agent("Mid", agents=[shared])])[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("handoff", "sometimes"), ("durability", "round"), ("history", 0), ("history", -1)],
)
def test_value_that_is_none_of_the_allowed_ones_is_refused(field: str, value: object) -> None:
    fields: dict[str, Any] = {field: value}

    found = faults(**fields)

    assert len(found) == 1
    assert found[0].startswith(f"{field}={value!r}: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [42]),
        ("agents", ["Sub"]),
        ("agents", [lookup]),
        ("intents", ["good morning"]),
        ("patcher", ["no function"]),
    ],
)
def test_member_of_a_wrong_type_is_refused(field: str, value: list[Any]) -> None:
    fields: dict[str, Any] = {field: value}

    found = faults(**fields)

    assert len(found) == 1
    assert found[0].startswith(f"{field} holds {value[0]!r}, which is n")


def test_checkpointer_of_a_wrong_type_is_refused() -> None:
    assert "give a saver, or a URL" in faults(checkpointer=42)[0]


def test_function_that_cannot_become_a_tool_is_refused() -> None:
    def undocumented(order: str) -> str:
        return order

    (found,) = faults(tools=[undocumented])

    assert "the function 'undocumented' in tools cannot become a tool" in found
    assert "no docstring" in found


def test_same_agent_in_two_places_is_told_to_be_renamed() -> None:
    clerk = agent("clerk")
    sales, support = agent("sales", agents=[clerk]), agent("support", agents=[clerk])

    (found,) = faults(agents=[sales, support])

    assert "agent.replace(name=...)" in found


def test_unknown_field_of_a_replacement_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="no field 'tool': did you mean 'tools'"):
        changes: dict[str, Any] = {"tool": [lookup]}
        agent().replace(**changes)


def test_all_faults_are_named_at_once() -> None:
    found = faults(
        "no good",
        tools=[42, lookup, named("lookup"), named("transfer_to_Sub")],
        agents=[agent("Sub"), agent("sub"), agent("router")],
        intents=[Intent("hi", "agent", "Nobody")],
        handoff="sometimes",
        durability="round",
        history=0,
    )

    expected = [
        "tools holds 42",
        "handoff='sometimes'",
        "durability='round'",
        "history=0",
        "'no good' is not legal",
        "cannot be called 'router'",
        "two agents of the tree are called 'sub'",
        "'lookup' is taken twice",
        "'transfer_to_Sub' is taken twice",
        "names 'Nobody'",
    ]
    assert [[part in fault for fault in found].count(True) for part in expected] == [1] * 10
    assert len(found) == len(expected)


def test_error_lists_its_faults_and_has_a_code() -> None:
    with pytest.raises(AgentGraphError) as caught:
        agent("no good", history=0)

    assert caught.value.code == "configuration"
    assert str(caught.value).splitlines()[0] == "2 faults:"
    assert str(caught.value).count("\n- ") == 2


def test_lists_of_the_caller_are_copied() -> None:
    tools = [lookup]
    made = agent(tools=tools)

    tools.append(named("other"))

    assert [t.name for t in made.own_tools] == ["lookup"]


async def test_two_agents_share_no_state() -> None:
    one = Agent("One", model=ScriptedModel([]), agents=[Agent("Sub", model=ScriptedModel(["s"]))])
    two = Agent("Two", model=ScriptedModel(["two answers"]))

    await one.ainvoke("@Sub hi", thread_id="t")
    reply = await two.ainvoke("hi", thread_id="t")

    assert (reply.text, reply.agent) == ("two answers", "Two")


def test_fault_of_a_store_does_not_tell_its_url() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Agent("Solo", checkpointer="postgresql+asyncpg://zaphod:secret@host/db")

    assert "postgresql+asyncpg://…" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "zaphod" not in str(caught.value)
