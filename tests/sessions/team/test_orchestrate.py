"""`orchestrate`: the nodes of any graph take turns as the rules say."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph import (
    Agent,
    FromSpeaker,
    HumanTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.errors import ConfigurationError
from agentgraph.sessions.team.orchestrate import orchestrate
from agentgraph.testing import ScriptedModel


def writer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"written after {state['messages'][-1].text}")]}


async def test_functions_and_graphs_speak_in_their_turn() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", writer)
    builder.add_node("editor", create_agent(model := ScriptedModel(["edited"]), []))
    graph = orchestrate(sequence(["writer", "editor"]))(builder).compile()

    result = await graph.ainvoke({"messages": [("user", "hello")]})

    assert [m.text for m in result["messages"]] == ["hello", "edited"]
    assert "[writer]: written after [user]: hello" in model.requests[0].messages[-1].text


async def test_a_thread_goes_on_with_its_session_and_the_same_words_count_each_time() -> None:
    rules = TransitionGraph("human", [Transition(FromSpeaker("user"), "clerk")], HumanTarget())
    builder = StateGraph(MessagesState)
    clerk = Agent("clerk", model=(model := ScriptedModel(["one", "two", "three"])))
    builder.add_node("clerk", clerk.graph)
    graph = orchestrate(rules)(builder).compile(InMemorySaver())

    for _ in range(3):
        result = await graph.ainvoke(
            {"messages": [("user", "yes")]}, {"configurable": {"thread_id": "t"}}
        )

    assert [m.text for m in result["messages"]] == ["yes", "one", "yes", "two", "yes", "three"]
    assert [len(request.messages) for request in model.requests] == [2, 4, 6]


async def test_new_words_after_the_end_begin_another_session() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", writer)
    graph = orchestrate(sequence(["writer"]))(builder).compile(InMemorySaver())

    for said in ("a", "b", "c"):
        result = await graph.ainvoke(
            {"messages": [("user", said)]}, {"configurable": {"thread_id": "t"}}
        )

    assert result["messages"][-1].text == "written after [user]: c"


def test_edges_are_refused_as_the_rules_say_who_follows() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", writer)
    builder.add_node("editor", writer)
    builder.add_edge(START, "writer")
    builder.add_edge("writer", "editor")

    with pytest.raises(ConfigurationError, match="writer → editor"):
        orchestrate(sequence(["writer", "editor"]))(builder)


def test_rules_that_name_strangers_are_refused() -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("writer", writer)

    with pytest.raises(ConfigurationError, match="editor"):
        orchestrate(sequence(["writer", "editor"]))(builder)
