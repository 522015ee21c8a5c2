"""Foreign graphs with a memory of their own keep it between turns; delegates do not."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_swarm import create_handoff_tool, create_swarm

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call


class Counted(MessagesState, total=False):
    visits: int
    seen: int


def counter(checkpointer: Any = None, *, asks: bool = False) -> Any:
    """Return a graph that counts its visits in a channel of its own."""

    def count(state: Counted) -> dict[str, Any]:
        visits = state.get("visits", 0) + 1
        decision = f", decided {interrupt('?')}" if asks else ""
        said = f"visit {visits}, {len(state['messages'])} messages{decision}"
        return {"visits": visits, "messages": [AIMessage(said)]}

    graph = StateGraph(Counted).add_node("count", count).add_edge(START, "count")
    return graph.compile(checkpointer=checkpointer, name="clerk")


def boss(clerk: Any, *turns: Any, **fields: Any) -> Agent:
    model = ScriptedModel(turns or [call("transfer_to_clerk")])
    return Agent("boss", model=model, agents=[clerk], **fields)


@pytest.mark.parametrize("checkpointer", [True, InMemorySaver()])
async def test_a_graph_with_a_saver_keeps_its_state_between_turns(checkpointer: Any) -> None:
    agent = boss(counter(checkpointer))
    texts = [(await agent.ainvoke("hello", thread_id="t")).text for _ in range(3)]
    assert texts == ["visit 1, 3 messages", "visit 2, 5 messages", "visit 3, 7 messages"]
    assert (await agent.ainvoke("@clerk hello", thread_id="u")).text == "visit 1, 1 messages"


def test_a_graph_with_a_saver_keeps_its_state_where_all_is_synchronous() -> None:
    graph = boss(counter(True)).graph.copy({"checkpointer": InMemorySaver()})
    config: Any = {"configurable": {"thread_id": "t"}}
    for visit in (1, 2):
        result = graph.invoke({"messages": [("user", "hello")]}, config)
        assert result["messages"][-1].text == f"visit {visit}, {1 + 2 * visit} messages"


async def test_a_graph_without_a_saver_keeps_nothing() -> None:
    agent = boss(counter())
    texts = [(await agent.ainvoke("hello", thread_id="t")).text for _ in range(2)]
    assert texts == ["visit 1, 3 messages", "visit 1, 5 messages"]


async def test_what_others_say_meanwhile_reaches_a_graph_with_a_memory_once() -> None:
    agent = boss(counter(True), call("transfer_to_clerk"), "Here.")
    await agent.ainvoke("hello", thread_id="t")
    await agent.ainvoke("@boss hello", thread_id="t")
    assert (await agent.ainvoke("@clerk again", thread_id="t")).text == "visit 2, 7 messages"


async def test_a_memory_is_kept_over_a_question() -> None:
    agent = boss(counter(True, asks=True))
    for visit in (1, 2):
        waiting = await agent.ainvoke("hello", thread_id="t")
        reply = await agent.aresume("t", {waiting.interrupts[0].id: "yes"})
        assert reply.text == f"visit {visit}, {1 + 2 * visit} messages, decided yes"


async def test_each_delegate_of_a_graph_with_a_memory_begins_anew() -> None:
    calls = [call("transfer_to_clerk"), call("transfer_to_clerk")]
    saver = InMemorySaver()
    agent = boss(counter(True, asks=True), calls, "Done.", handoff="delegate", checkpointer=saver)
    waiting = await agent.ainvoke("hello", thread_id="t")
    decisions = {question.id: f"yes {at}" for at, question in enumerate(waiting.interrupts)}
    assert len(decisions) == 2
    reply = await agent.aresume("t", decisions)
    answers = [m.text for m in reply.messages if isinstance(m, ToolMessage)]
    assert sorted(answers) == [f"visit 1, 4 messages, decided yes {at}" for at in (0, 1)]


async def test_parallel_delegates_do_not_share_a_memory_inside_of_them() -> None:
    alice = counter(True, asks=True)
    alice.name = "alice"
    swarm = create_swarm([alice], default_active_agent="alice").compile(name="clerk")
    calls = [call("transfer_to_clerk"), call("transfer_to_clerk")]
    agent = boss(swarm, calls, "Done.", calls, "Done.", handoff="delegate")
    for messages in (4, 9):
        waiting = await agent.ainvoke("hello", thread_id="t")
        decisions = {question.id: f"yes {at}" for at, question in enumerate(waiting.interrupts)}
        reply = await agent.aresume("t", decisions)
        answers = [m.text for m in reply.messages if isinstance(m, ToolMessage)]
        given = [f"visit 1, {messages} messages, decided yes {at}" for at in (0, 1)]
        assert sorted(answers) == given


async def test_a_graph_with_a_memory_runs_where_nothing_is_stored() -> None:
    graph = boss(counter(True)).graph
    result = await graph.ainvoke({"messages": [("user", "hello")]})
    assert result["messages"][-1].text == "visit 1, 3 messages"


@pytest.mark.parametrize("checkpointer", [True, InMemorySaver()])
async def test_a_swarm_keeps_its_active_agent_between_turns(checkpointer: Any) -> None:
    handoff = create_handoff_tool(agent_name="bob")
    alice = create_agent(ScriptedModel([call(handoff.name)]), tools=[handoff], name="alice")
    bob = create_agent(ScriptedModel(["Bob here.", "Still Bob."]), name="bob")
    builder = create_swarm([alice, bob], default_active_agent="alice")
    swarm = builder.compile(checkpointer=checkpointer, name="clerk")
    agent = boss(swarm)
    assert (await agent.ainvoke("hello", thread_id="t")).text == "Bob here."
    reply = await agent.ainvoke("and now?", thread_id="t")
    assert (reply.text, reply.agent) == ("Still Bob.", "boss/clerk")
    assert [message.type for message in reply.messages] == ["ai"]
