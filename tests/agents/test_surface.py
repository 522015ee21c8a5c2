"""What others see of an agent's graph: as a node of their graphs, in schemas, states, streams."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Agent, Patcher, Team
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call

CONFIG: Any = {"configurable": {"thread_id": "t"}}
ASK: Any = {"messages": [("user", "hi")]}


class Tenant(TypedDict, total=False):
    tenant: str


def look() -> str:
    """Look."""
    return "seen"


def tree(**fields: Any) -> Agent:
    """Return an agent with two levels below it, and a patcher that brings a channel."""
    calls: list[Any] = [call("look"), "It is here."]
    leaf = Agent("leaf", model=ScriptedModel([*calls, *calls]), tools=[look])
    mid = Agent("mid", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf])
    model = ScriptedModel([call("transfer_to_mid")])
    patch = Patcher(lambda graph: graph, state=Tenant)
    return Agent("desk", model=model, agents=[mid], patcher=patch, **fields)


def around(graph: Any, state: Any = MessagesState, saver: Any = None, depth: int = 1) -> Any:
    """Return graphs of a user, each with the one before as its only node."""
    for level in range(depth):
        builder: AnyGraph = StateGraph(state)
        builder.add_node("inner", graph)
        builder.add_edge(START, "inner")
        graph = builder.compile(checkpointer=saver if level == depth - 1 else None)
    return graph


def colliding_state(graph: AnyCompiledGraph) -> tuple[type, dict[str, Any]]:
    """Return a state with a key for each channel of a graph, and values of types that none has."""
    keys = sorted(set(graph.builder.channels) - {"messages"})
    fields: dict[str, Any] = dict.fromkeys(keys, set)
    fields["messages"] = Annotated[list[AnyMessage], add_messages]
    state = TypedDict("Colliding", fields, total=False)  # type: ignore[misc]
    return state, {key: {f"the user's {key}"} for key in keys}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no memory", "memory"])
async def test_a_node_leaves_the_users_channels_alone_whatever_they_are_called(
    depth: int, guards: dict[str, Any], saver: Any
) -> None:
    agent = tree(**guards)
    state, values = colliding_state(agent.graph)
    assert {"output", "turn", "current_active_agent", "system_prompt", "tenant"} <= values.keys()
    graph = around(agent.graph, state, saver, depth)

    result = await graph.ainvoke({**ASK, **values}, {"configurable": {"thread_id": f"{depth}"}})

    assert result.pop("messages")[-1].text == "It is here."
    assert result == values


async def test_a_node_takes_the_messages_of_a_state_that_is_an_object() -> None:
    class State(BaseModel):
        messages: Annotated[list[AnyMessage], add_messages]
        output: int = 3
        turn: str = "mine"

    result = await around(tree().graph, State).ainvoke({**ASK, "output": 3, "turn": "mine"})

    assert result["messages"][-1].text == "It is here."
    assert (result["output"], result["turn"]) == (3, "mine")


async def test_a_node_takes_the_messages_of_a_state_with_slots() -> None:
    @dataclass(slots=True)
    class State:
        messages: Annotated[list[AnyMessage], add_messages]
        output: int = 3

    result = await around(tree().graph, State).ainvoke(ASK)

    assert result["messages"][-1].text == "It is here."


async def test_an_input_that_is_no_state_is_refused() -> None:
    with pytest.raises(InvalidUpdateError, match="Expected dict"):
        await tree().graph.ainvoke("hi")


async def test_messages_of_a_node_are_there_once_in_a_list_that_is_only_added_to() -> None:
    class Added(TypedDict, total=False):
        messages: Annotated[list[Any], operator.add]

    class Joined(TypedDict, total=False):
        messages: Annotated[list[Any], lambda old, new: [*old, *new]]

    for state in (Added, Joined):
        agent = tree()
        result = await around(agent.graph, state).ainvoke(
            {"messages": [HumanMessage("hi"), AIMessage("Welcome.")]}
        )
        texts = [m.text for m in result["messages"] if m.text]
        assert texts[:3] == ["hi", "Welcome.", "Conversation transferred to mid"]
        assert texts[-1] == "It is here."
        assert len(texts) == len(set(texts))


async def test_messages_are_there_once_after_a_humans_decision() -> None:
    class State(TypedDict, total=False):
        messages: Annotated[list[Any], operator.add]

    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    agent = Agent("desk", model=ScriptedModel([call("ask"), "Done."]), tools=[ask])
    graph = around(agent.graph, State, InMemorySaver())

    await graph.ainvoke({"messages": [HumanMessage("hi")]}, CONFIG)
    result = await graph.ainvoke(Command(resume="yes"), CONFIG)

    assert [m.text for m in result["messages"] if m.text] == ["hi", "yes", "Done."]


def test_schemas_name_the_public_channels() -> None:
    graph = tree().graph

    assert set(graph.get_input_jsonschema()["properties"]) == {"messages", "tenant"}
    assert set(graph.get_output_jsonschema()["properties"]) == {
        "messages",
        "current_active_agent",
        "tenant",
    }


def test_schemas_have_what_middleware_shows() -> None:
    agent = Agent("desk", model="offline", middleware=[TodoListMiddleware()])

    assert set(agent.graph.get_input_jsonschema()["properties"]) == {"messages"}
    shown = set(agent.graph.get_output_jsonschema()["properties"])
    assert shown == {"messages", "current_active_agent", "todos"}


async def test_the_output_and_the_state_have_public_channels_only() -> None:
    agent = tree(checkpointer=InMemorySaver())

    result = await agent.graph.ainvoke({**ASK, "tenant": "acme"}, CONFIG)
    snapshot = await agent.graph.aget_state(CONFIG)

    public = {"messages", "current_active_agent", "tenant"}
    assert set(result) == set(snapshot.values) == public
    assert (result["current_active_agent"], result["tenant"]) == ("mid/leaf", "acme")
    history = [state.values async for state in agent.graph.aget_state_history(CONFIG)]
    assert all(values.keys() <= public for values in history)


async def test_the_active_path_is_never_an_input() -> None:
    agent = tree()

    result = await agent.graph.ainvoke({**ASK, "current_active_agent": "mid/leaf"})

    assert "Conversation transferred to mid" in [m.text for m in result["messages"]]


@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("is_node", [False, True], ids=["root", "node"])
async def test_streams_show_public_channels_at_all_levels(
    guards: dict[str, Any], is_node: bool
) -> None:
    agent = tree(**guards)
    graph: Any = around(agent.graph) if is_node else agent.graph
    public = {"messages", "tenant"} | (set() if is_node else {"current_active_agent"})
    depths: set[int] = set()

    async for namespace, mode, data in graph.astream(
        ASK, stream_mode=["updates", "values"], subgraphs=True
    ):
        depths.add(len(namespace))
        updates: list[Any] = [data] if mode == "values" else list(data.values())
        for update in updates:
            parts = update if isinstance(update, list) else [update or {}]
            assert set().union(*parts) <= public, (namespace, mode, parts)

    assert len(depths) == (4 if is_node else 3)


async def test_a_waiting_level_shows_public_channels() -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    leaf = Agent("leaf", model=ScriptedModel([call("ask"), "Done."]), tools=[ask])
    agent = Agent("desk", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf])
    graph = around(agent.graph, saver=InMemorySaver())

    await graph.ainvoke(ASK, CONFIG)
    snapshot = await graph.aget_state(CONFIG, subgraphs=True)

    shown: list[Mapping[str, Any]] = []
    while snapshot.tasks:
        snapshot = snapshot.tasks[0].state
        if snapshot is None:
            break
        shown.append(snapshot.values)
    assert [set(values) for values in shown] == [{"messages"}, {"messages"}]


def drawn(graph: Any, xray: Any = True) -> Any:
    """Return a graph's drawing, which can be shown as Mermaid."""
    drawing = graph.get_graph(xray=xray)
    assert drawing.draw_mermaid()
    return drawing


@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_graph_is_drawn_with_all_levels_wherever_it_stands(
    depth: int, guards: dict[str, Any]
) -> None:
    drawing = drawn(around(tree(**guards).graph, depth=depth))

    own = {"render_system_prompt", "router", "continue_conversation", "call_model", "call_tools"}
    at = "inner:" * depth
    for level in ("", "mid:", "mid:leaf:"):
        assert {f"{at}{level}{node}" for node in own} <= set(drawing.nodes)


@pytest.mark.parametrize("xray", [False, 1, 2, True])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_graph_is_drawn_to_any_depth(xray: Any, depth: int) -> None:
    assert "__start__" in drawn(around(tree().graph, depth=depth), xray).nodes


@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_agent_above_graphs_of_others_is_drawn(depth: int, guards: dict[str, Any]) -> None:
    def route(state: Any) -> Command[str]:
        return Command(goto="worker")

    worker = create_agent(ScriptedModel([]), [look], name="worker")
    builder: AnyGraph = StateGraph(MessagesState)
    builder.add_node("route", route, destinations=("worker", END))
    builder.add_node("worker", worker)
    builder.add_edge(START, "route")
    single = create_agent(ScriptedModel([]), [look], name="single")
    team = Team([Agent("a", model="offline"), Agent("b", model="offline")], sequence(["a", "b"]))
    below: list[Any] = [builder.compile(name="crew"), single, team]
    agent = Agent("top", model="offline", agents=below, **guards)

    drawing = drawn(around(agent.graph, depth=depth))

    at = "inner:" * depth
    assert {f"{at}crew:worker:tools", f"{at}single:model", f"{at}a-b:admit"} <= set(drawing.nodes)
    assert agent.mermaid()


def test_an_agent_above_two_graphs_with_members_of_one_name_is_drawn() -> None:
    def crew(name: str) -> Any:
        worker = create_agent(ScriptedModel([]), [look], name="worker")
        builder: AnyGraph = StateGraph(MessagesState).add_node("worker", worker)
        builder.add_node("check", lambda state: {})
        return builder.add_edge(START, "check").add_edge("check", "worker").compile(name=name)

    agent = Agent("top", model="offline", agents=[crew("one"), crew("two")])
    text = agent.mermaid()

    clusters = [line.split()[1] for line in text.splitlines() if line.startswith("\tsubgraph")]
    assert sorted(clusters) == ["one", "two", "worker", "worker_2"]
    assert "image/svg+xml" in agent._repr_mimebundle_()


def test_drawn_edges_are_those_that_a_run_can_take() -> None:
    agent = Agent("desk", model="offline", agents=[Agent("leaf", model="offline")], guards=None)
    graph = agent.graph.get_graph()
    after = {(edge.source, edge.target): edge.conditional for edge in graph.edges}

    assert after[("__start__", "render_system_prompt")] is False
    assert after[("render_system_prompt", "router")] is False
    for source, target in [
        ("router", "leaf"),
        ("router", "continue_conversation"),
        ("call_model", "call_tools"),
        ("call_model", "__end__"),
        ("call_tools", "call_model"),
        ("call_tools", "leaf"),
        ("leaf", "__end__"),
        ("leaf", "continue_conversation"),
    ]:
        assert after[(source, target)] is True, (source, target)
    assert ("render_system_prompt", "call_model") not in after
    assert ("call_model", "leaf") not in after
