"""Stops in graphs of others: a run that a guard ends says so in its last message."""

from __future__ import annotations

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from agentgraph import Agent, Guards, Team, patched
from agentgraph.clock import clock as current_clock
from agentgraph.errors import GuardStopped, ModelError
from agentgraph.guards import Deadlines, Escalation, Gate
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call, check_history
from tests.guards.guarded_agents import calls, for_ever, looping, solo, stopped_by, watched
from tests.guards.metered_models import Driven

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
    assert text.startswith(
        "Stopped by max_steps: 3 model calls were made since the last new result"
    )
    assert [m.id for m in result["messages"] if m.type == "ai" and m.text] == [
        result["messages"][-1].id
    ]


def calls_and_answers(result: Any) -> tuple[list[Any], list[Any]]:
    """Return the ids of all calls, and those that were answered, in their order."""
    messages = result["messages"]
    check_history([*messages, HumanMessage("and then?")])
    calls = [c["id"] for m in messages if isinstance(m, AIMessage) for c in m.tool_calls]
    return calls, [m.tool_call_id for m in messages if isinstance(m, ToolMessage)]


@pytest.mark.parametrize("kind", ["delegate", "tool", "both"])
async def test_each_call_of_a_delegate_is_answered_once_where_patched_guards_end_it(
    kind: str,
) -> None:
    """The guards are those of the graph around the agent, which has none of its own."""
    below, other = solo(looping(), guards=None), solo(ScriptedModel(["b speaks"]), name="b")
    calls = [call("transfer_to_a"), call("transfer_to_b")]
    agents: list[Any] = [below, other]
    if kind == "tool":
        calls, agents = [call("a", request="go"), call("b", request="go")], []
    if kind == "both":
        calls, agents = [call("a", request="go"), call("transfer_to_b")], [other]
    tools = [] if kind == "delegate" else [below.as_tool()]
    tools += [other.as_tool()] if kind == "tool" else []
    model = ScriptedModel([calls, "Well."])
    boss = Agent("root", model=model, tools=tools, agents=agents, handoff="delegate", guards=None)
    graph = patched(around(boss), watched(steps=3))
    result = await graph.ainvoke(GO, ON_T)
    made, answered = calls_and_answers(result)
    assert answered == made
    assert stopped_by(result) == "max_steps"
    assert len([m for m in result["messages"] if stopped_by({"messages": [m]})]) == 1
    again = await graph.ainvoke({"messages": "once more"}, ON_T)
    assert again["messages"][-1].text == "Well."


@pytest.mark.parametrize("place", ["root", "node with a memory"])
async def test_a_call_of_a_delegate_that_was_cut_off_is_answered_by_the_next_input(
    place: str,
) -> None:
    async def wait(state: MessagesState) -> dict[str, Any]:
        await current_clock().sleep(1_000_000)
        return {}

    theirs: Any = StateGraph(MessagesState).add_node("wait", wait).add_edge(START, "wait")
    model = ScriptedModel([call("transfer_to_theirs"), "Well."])
    boss = Agent(
        "root",
        model=model,
        agents=[theirs.compile(name="theirs")],
        handoff="delegate",
        guards=Guards.interactive(deadlines=Deadlines(None, 100, None)),
    )
    graph = boss.graph.copy({"checkpointer": InMemorySaver()})
    if place != "root":
        graph = boss.graph.copy({"checkpointer": True})
        builder = StateGraph(MessagesState).add_node("desk", graph).add_edge(START, "desk")
        graph = builder.compile(checkpointer=InMemorySaver())
    # Ids of its own: the process keeps the account of a failed run until it is collected.
    with Driven(seed=len(place)).installed() as clock:
        with pytest.raises(ModelError, match="by the deadline of the stage"):
            await clock.drive(graph.ainvoke(GO, ON_T))
        result = await clock.drive(graph.ainvoke({"messages": "once more"}, ON_T))
    made, answered = calls_and_answers(result)
    assert len(made) == 1
    assert answered == made
    assert result["messages"][-1].text == "Well."


async def test_calls_of_other_agents_that_are_still_open_are_left_to_them() -> None:
    """A supervisor of others answers its own call, once the agent has answered it."""
    theirs = AIMessage("", id="1", name="chief", tool_calls=[ToolCall(name="ask", args={}, id="c")])
    agent = solo(ScriptedModel(["It is so."]))
    result = await agent.graph.ainvoke({"messages": [theirs, HumanMessage("look", id="2")]})
    assert [m.type for m in result["messages"]] == ["ai", "human", "ai"]


async def test_an_agent_whose_run_was_ended_still_has_the_conversation() -> None:
    below = solo(ScriptedModel([*[call("look", what="it")] * 2, "Here again."]), name="a")
    graph = around(above(below, guards=watched(steps=calls(3))))
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
    assert text.startswith(
        "Stopped by max_steps: 3 model calls were made since the last new result"
    )


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
