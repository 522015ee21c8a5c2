"""Sub-agents keep the conversation in graphs that keep nothing of theirs but the messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, messages_to_dict
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agentgraph import Agent
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.stream import RoutingEvent
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import asked
from tests.wire import call as wire_call
from tests.wire import chat_openai, serve, text

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def desk(root: list[Any], leaf: list[Any], *, mid: list[Any] | None = None) -> Agent:
    """Return an agent two levels above `leaf`, each with what its model says."""
    below = Agent("leaf", model=ScriptedModel(leaf))
    turns = mid if mid is not None else [call("transfer_to_leaf")]
    between = Agent("mid", model=ScriptedModel(turns), agents=[below])
    return Agent("desk", model=ScriptedModel(root), agents=[between])


def around(*agents: Agent, saver: Any = None) -> Any:
    """Return a graph of a user in which agents answer one after the other."""
    builder: AnyGraph = StateGraph(MessagesState)
    last = START
    for agent in agents:
        builder.add_node(agent.name, agent.graph)
        builder.add_edge(last, agent.name)
        last = agent.name
    return builder.compile(checkpointer=saver)


def spoken(messages: list[AnyMessage]) -> list[tuple[str | None, str]]:
    return [(m.name, m.text) for m in messages if isinstance(m, AIMessage) and m.text]


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no memory", "memory"])
async def test_a_sub_agent_keeps_the_conversation_in_the_users_graph(saver: Any) -> None:
    graph = around(desk([call("transfer_to_mid")], ["one", "two", "three"]), saver=saver)
    messages: list[Any] = []

    for question in ("first", "second", "third"):
        earlier = [] if saver else messages
        given = {"messages": [*earlier, ("user", question)]}
        messages = (await graph.ainvoke(given, CONFIG))["messages"]

    assert spoken(messages) == [("leaf", "one"), ("leaf", "two"), ("leaf", "three")]


@pytest.mark.parametrize("dump", ["model_dump", "to_json"])
async def test_a_client_that_sends_back_json_stays_with_the_sub_agent(dump: str) -> None:
    graph = desk([call("transfer_to_mid")], ["one", "two"]).graph
    first = await graph.ainvoke({"messages": [("user", "first")]})
    if dump == "model_dump":
        history = [m.model_dump() for m in first["messages"]]
    else:
        history = [{"type": m["type"], **m["data"]} for m in messages_to_dict(first["messages"])]
    history = json.loads(json.dumps(history))

    second = await graph.ainvoke({"messages": [*history, {"role": "user", "content": "second"}]})

    assert spoken(second["messages"]) == [("leaf", "one"), ("leaf", "two")]


async def test_the_supervisor_has_the_conversation_again_after_a_request_for_help() -> None:
    graph = around(
        desk([call("transfer_to_mid"), "I help.", "And again."], [], mid=[call("request_help")])
    )
    first = await graph.ainvoke({"messages": [("user", "first")]})
    second = await graph.ainvoke({"messages": [*first["messages"], ("user", "second")]})

    assert spoken(second["messages"]) == [("desk", "I help."), ("desk", "And again.")]


async def test_a_mention_of_the_supervisor_ends_the_visit_for_good() -> None:
    graph = around(desk([call("transfer_to_mid"), "Here.", "Still here."], ["one"]))
    messages: list[Any] = []
    for question in ("first", "@supervisor second", "third"):
        result = await graph.ainvoke({"messages": [*messages, ("user", question)]})
        messages = result["messages"]

    assert spoken(messages) == [("leaf", "one"), ("desk", "Here."), ("desk", "Still here.")]


async def test_agents_in_one_graph_each_keep_their_own_sub_agent() -> None:
    def pair(name: str) -> Agent:
        below = Agent(f"{name}_below", model=ScriptedModel([f"{name} one", f"{name} two"]))
        model = ScriptedModel([call(f"transfer_to_{below.name}")])
        return Agent(name, model=model, agents=[below])

    graph = around(pair("a"), pair("b"))
    first = await graph.ainvoke({"messages": [("user", "first")]})
    second = await graph.ainvoke({"messages": [*first["messages"], ("user", "second")]})

    assert [words for _, words in spoken(second["messages"])] == [
        "a one",
        "b one",
        "a two",
        "b two",
    ]


def beside(one: Any, two: Any, saver: Any = None) -> Any:
    """Return a user's graph with two nodes; the second one is entered from the second turn on."""

    def after_one(state: MessagesState) -> str:
        return "two" if "again" in str(state["messages"]) else END

    builder: AnyGraph = StateGraph(MessagesState).add_node("one", one).add_node("two", two)
    builder.add_edge(START, "one").add_conditional_edges("one", after_one, ["two", END])
    return builder.compile(checkpointer=saver)


def within(agent: Agent) -> Any:
    """Return a user's graph with an agent in it."""
    builder = StateGraph(MessagesState).add_node("desk", agent.graph)
    return builder.add_edge(START, "desk").compile()


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no memory", "memory"])
async def test_two_trees_of_one_name_in_a_graph_each_keep_their_own_sub_agent(
    saver: Any, is_nested: bool
) -> None:
    one = desk([call("transfer_to_mid")], ["one 1", "one 2", "one 3"])
    two = desk([call("transfer_to_mid")], ["two 1", "two 2"])
    graph_of = within if is_nested else lambda agent: agent.graph
    graph = beside(graph_of(one), graph_of(two), saver=saver)
    config: Any = {"configurable": {"thread_id": f"{is_nested}"}}
    messages: list[Any] = []
    for question in ("first", "again", "and again"):
        earlier = [] if saver else messages
        given = {"messages": [*earlier, ("user", question)]}
        messages = (await graph.ainvoke(given, config))["messages"]
    said = [text for _, text in spoken(messages)]
    assert said == ["one 1", "one 2", "two 1", "one 3", "two 2"]
    assert [len(asked(agent)) for agent in (one, two)] == [1, 1]


async def test_two_agents_that_one_function_calls_each_keep_their_own_sub_agent() -> None:
    one = desk([call("transfer_to_mid")], ["one 1", "one 2", "one 3"])
    two = desk([call("transfer_to_mid")], ["two 1", "two 2"]).replace(name="second")

    async def both(state: MessagesState) -> Any:
        result = await one.graph.ainvoke(state)
        if "again" in str(state["messages"]):
            result = await two.graph.ainvoke(result)
        return {"messages": result["messages"]}

    graph = StateGraph(MessagesState).add_node("both", both).add_edge(START, "both").compile()
    messages: list[Any] = []
    for question in ("first", "again", "and again"):
        given: Any = {"messages": [*messages, ("user", question)]}
        messages = (await graph.ainvoke(given))["messages"]
    said = [text for _, text in spoken(messages)]
    assert said == ["one 1", "one 2", "two 1", "one 3", "two 2"]
    assert [len(asked(agent)) for agent in (one, two)] == [1, 1]


def test_two_trees_of_one_name_keep_their_own_sub_agent_in_synchronous_runs() -> None:
    one = desk([call("transfer_to_mid")], ["one 1", "one 2"])
    two = desk([call("transfer_to_mid")], ["two 1"])
    graph = beside(one.graph, two.graph)
    first = graph.invoke({"messages": [("user", "first")]})
    result = graph.invoke({"messages": [*first["messages"], ("user", "again")]})
    assert [text for _, text in spoken(result["messages"])] == ["one 1", "one 2", "two 1"]
    assert len(asked(two)) == 1


async def test_a_mark_without_a_place_of_an_earlier_version_is_read() -> None:
    graph = around(desk([], ["two"]))
    about = {"agentgraph": {"desk": "mid/leaf"}}
    earlier = AIMessage("one", id="1", name="leaf", response_metadata=about)
    given: Any = {"messages": [("user", "first"), earlier, ("user", "second")]}
    result = await graph.ainvoke(given)
    assert spoken(result["messages"]) == [("leaf", "one"), ("leaf", "two")]


async def test_the_graph_of_an_agent_below_an_agent_keeps_its_own_sub_agent() -> None:
    inner = desk([call("transfer_to_mid")], ["one", "two"])
    outer = Agent("outer", model=ScriptedModel([call("transfer_to_desk")]), agents=[inner.graph])

    graph = around(outer)
    first = await graph.ainvoke({"messages": [("user", "first")]})
    second = await graph.ainvoke({"messages": [*first["messages"], ("user", "second")]})

    assert [words for _, words in spoken(second["messages"])] == ["one", "two"]


async def test_a_path_that_is_gone_falls_back_with_an_event() -> None:
    first = await desk([call("transfer_to_mid")], ["one"]).graph.ainvoke(
        {"messages": [("user", "first")]}
    )
    later = Agent("desk", model=ScriptedModel(["Here."]), agents=[Agent("other", model="offline")])

    events = [e async for e in later.astream([*first["messages"], HumanMessage("second")])]

    moves = [(e.kind, e.target) for e in events if isinstance(e, RoutingEvent)]
    assert moves == [("fallback", "desk")]
    assert events[-1].agent == "desk"


async def test_the_path_does_not_grow_and_is_only_where_there_is_one() -> None:
    graph = around(desk([call("transfer_to_mid")], ["one", "two", "three"]))
    messages: list[Any] = []
    for question in ("first", "second", "third"):
        result = await graph.ainvoke({"messages": [*messages, ("user", question)]})
        messages = result["messages"]

    marks = [m.response_metadata["agentgraph"] for m in messages if m.name == "leaf"]
    assert marks == [{"desk@desk": "mid/leaf"}] * 3
    reply = await Agent("alone", model=ScriptedModel(["hello"])).ainvoke("hi")
    assert "agentgraph" not in reply.messages[-1].response_metadata


async def test_the_path_is_not_sent_to_the_provider() -> None:
    with serve() as wire:
        wire.script(wire_call("transfer_to_billing", reason="money"), text("one"), text("two"))
        model = chat_openai(wire)
        graph = around(
            Agent("support", model=model, agents=[Agent("billing", "Bills", model=model)])
        )
        first = await graph.ainvoke({"messages": [("user", "first")]})
        await graph.ainvoke({"messages": [*first["messages"], ("user", "second")]})

        assert len(wire.requests) == 3
        assert "agentgraph" not in json.dumps(wire.requests, default=str)
        assert "support/billing" not in json.dumps(wire.requests[-1], default=str)
