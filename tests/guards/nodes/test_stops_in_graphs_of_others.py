"""Stops in graphs of others: a run that a guard ends says so in its last message."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, ToolCall
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from agentgraph import Agent, Guards, Team
from agentgraph.errors import GuardStopped
from agentgraph.guards import Escalation, Gate
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call, check_history
from tests.guards.guarded_agents import for_ever, looping, solo, stopped_by, watched

GO: Any = {"messages": "go"}
ON_T: Any = {"configurable": {"thread_id": "t"}}


def around(agent: Agent[Any]) -> Any:
    """Return a graph of a user's, with an agent as its only node."""
    builder = StateGraph(MessagesState).add_node("desk", agent.graph).add_edge(START, "desk")
    return builder.compile(checkpointer=InMemorySaver())


def above(*agents: Agent[Any], guards: Guards, **fields: Any) -> Agent[Any]:
    """Return an agent that hands over to all of these."""
    calls = [ToolCall(name=f"transfer_to_{a.name}", args={}, id=a.name) for a in agents]
    model = ScriptedModel([AIMessage("", tool_calls=calls)])
    return Agent("root", model=model, agents=agents, guards=guards, **fields)


def last_of(result: Any) -> tuple[str | None, str]:
    return stopped_by(result), result["messages"][-1].text


@pytest.mark.parametrize("handoff", ["none", "sticky", "delegate"])
async def test_the_last_message_says_which_guard_has_ended_the_run_and_why(handoff: str) -> None:
    steps, below = watched(steps=3), [solo(looping(), name=name) for name in "ab"]
    agent = solo(looping(), guards=steps)
    if handoff == "sticky":
        agent = above(below[0], guards=steps)
    if handoff == "delegate":
        agent = above(*below, guards=steps, handoff="delegate")
    graph = around(agent)
    result = await graph.ainvoke(GO, ON_T)
    check_history(result["messages"][:-1])
    guard, text = last_of(result)
    assert guard == "max_steps"
    assert text.startswith("Stopped by max_steps: 3 model calls were made for one input")
    assert [m.id for m in result["messages"] if m.type == "ai" and m.text] == [
        result["messages"][-1].id
    ]


async def test_an_agent_whose_run_was_ended_still_has_the_conversation() -> None:
    below = solo(ScriptedModel([*[call("look", what="it")] * 2, "Here again."]), name="a")
    graph = around(above(below, guards=watched(steps=3)))
    assert stopped_by(await graph.ainvoke(GO, ON_T)) == "max_steps"
    result = await graph.ainvoke(GO, ON_T)
    assert last_of(result) == (None, "Here again.")


@pytest.mark.parametrize("is_below", [False, True])
async def test_a_rejected_answer_is_followed_by_a_message(is_below: bool) -> None:
    guards = watched(escalation=Escalation(0.8, critic=lambda subject: 0.4))
    agent = solo(ScriptedModel(["A draft."]), guards=None if is_below else guards)
    graph = around(above(agent, guards=guards) if is_below else agent)
    assert (await graph.ainvoke(GO, ON_T))["__interrupt__"]
    result = await graph.ainvoke(Command(resume={"type": "reject"}), ON_T)
    assert last_of(result) == ("escalation", "Stopped by escalation: a human has rejected it.")


async def test_a_stop_in_a_graph_of_others_ends_the_run_of_the_agent_above_it() -> None:
    builder = StateGraph(MessagesState).add_edge(START, "desk")
    builder.add_node("desk", solo(looping(), guards=watched(steps=3)).graph)
    outer = above(cast(Any, builder.compile(name="inner")), guards=Guards.interactive())
    reply = await outer.ainvoke("go")
    assert reply.close_reason == "max_steps"
    assert reply.text.startswith("The run was ended by the guard max_steps: 3 model calls")


async def test_a_teams_graph_says_which_guard_has_ended_its_session() -> None:
    rules = sequence(["a", "b"])
    team = Team([solo(looping()), solo(looping(), name="b")], rules, guards=watched(steps=3))
    guard, text = last_of(await team.graph.ainvoke(GO))
    assert guard == "max_steps"
    assert text.startswith("Stopped by max_steps: 3 model calls were made for one input")


async def test_the_agents_own_runs_store_no_such_message() -> None:
    agent = solo(looping(), guards=watched(steps=3), checkpointer=InMemorySaver())
    reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.close_reason, reply.messages[-1].type) == ("max_steps", "tool")
    assert await agent.ahistory("t") == [*(await agent.ahistory("t"))[:1], *reply.messages]


def test_a_stop_is_told_in_words_and_not_as_an_object() -> None:
    agent = solo(looping(), guards=None)
    with pytest.raises(GuardStopped, match="A guard ended the run: recursion_limit: Recursion"):
        agent.invoke("go", config={"recursion_limit": 6})


@pytest.mark.parametrize("text", ["A good word.", "A bad word."])
async def test_a_text_that_a_gate_refuses_is_not_in_the_stream_of_messages(text: str) -> None:
    guards = watched(gates=Gate(invariants=[lambda subject: "bad" not in subject.text]))
    graph = around(solo(for_ever(text), guards=guards))
    stream = graph.astream(GO, ON_T, stream_mode="messages", subgraphs=True)
    told = "".join([chunk.text async for _, (chunk, _) in stream])
    assert told == text or told.startswith("Stopped by gate:")
    assert "bad" not in told
