"""What others see of a team's graph: as a node of their graphs, in schemas, states, streams."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from agentgraph import Agent, Team
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import agent

ASK: Any = {"messages": [HumanMessage("hello", id="h")]}
CONFIG: Any = {"configurable": {"thread_id": "t"}}


def pair(**fields: Any) -> Team:
    leaf = Agent("leaf", model=ScriptedModel(["leaf speaks"]))
    first = Agent("a", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf], **fields)
    return Team([first, agent("b")], sequence(["a", "b"]), **fields)


def around(graph: Any, state: Any = MessagesState, depth: int = 1, saver: Any = None) -> Any:
    """Return graphs of a user, each with the one before as its only node."""
    for level in range(depth):
        builder: AnyGraph = StateGraph(state)
        builder.add_node("inner", graph)
        builder.add_edge(START, "inner")
        graph = builder.compile(checkpointer=saver if level == depth - 1 else None)
    return graph


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no memory", "memory"])
async def test_a_team_leaves_the_users_channels_alone_whatever_they_are_called(
    depth: int, guards: dict[str, Any], saver: Any
) -> None:
    team: Any = pair(**guards)
    graphs = [team.graph, *(member.graph for member in team.agents)]
    keys = {key for one in graphs for key in one.builder.channels} - {"messages"}
    fields: dict[str, Any] = dict.fromkeys(sorted(keys), set)
    fields["messages"] = Annotated[list[AnyMessage], add_messages]
    state = TypedDict("Colliding", fields, total=False)  # type: ignore[misc]
    values = {key: {f"the user's {key}"} for key in keys}
    assert {"place", "round", "session", "team_usage", "turn", "output"} <= keys

    graph = around(team.graph, state, depth, saver)
    result = await graph.ainvoke({**ASK, **values}, {"configurable": {"thread_id": f"{guards}"}})

    assert [m.text for m in result.pop("messages")] == ["hello", "b speaks"]
    assert result == values


async def test_a_teams_messages_are_there_once_in_a_list_that_is_only_added_to() -> None:
    class Added(TypedDict, total=False):
        messages: Annotated[list[Any], operator.add]

    said = [HumanMessage("hello"), AIMessage("Welcome."), HumanMessage("go on")]
    result = await around(pair().graph, Added).ainvoke({"messages": said})

    assert [m.text for m in result["messages"]] == ["hello", "Welcome.", "go on", "b speaks"]


def test_a_teams_schemas_name_the_messages() -> None:
    graph = pair().graph

    assert set(graph.get_input_jsonschema()["properties"]) == {"messages"}
    assert set(graph.get_output_jsonschema()["properties"]) == {"messages"}


@pytest.mark.parametrize("is_node", [False, True], ids=["root", "node"])
async def test_a_teams_streams_show_messages_at_all_levels(is_node: bool) -> None:
    graph: Any = around(pair().graph) if is_node else pair().graph
    depths: set[int] = set()

    async for namespace, mode, data in graph.astream(
        ASK, CONFIG, stream_mode=["updates", "values"], subgraphs=True
    ):
        depths.add(len(namespace))
        updates: list[Any] = [data] if mode == "values" else list(data.values())
        for update in updates:
            parts = update if isinstance(update, list) else [update or {}]
            assert set().union(*parts) <= {"messages"}, (namespace, mode, parts)

    assert len(depths) == (4 if is_node else 3)


async def test_a_waiting_team_shows_messages_and_goes_on() -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    one = Agent("a", model=ScriptedModel([call("ask"), "a speaks"]), tools=[ask])
    team = Team([one, agent("b")], sequence(["a", "b"]))
    graph = around(team.graph, saver=InMemorySaver())

    await graph.ainvoke(ASK, CONFIG)
    snapshot = await graph.aget_state(CONFIG, subgraphs=True)
    below: Any = snapshot.tasks[0].state
    result = await graph.ainvoke(Command(resume="yes"), CONFIG)

    assert set(below.values) <= {"messages"}
    assert [m.text for m in result["messages"]] == ["hello", "b speaks"]
