"""Which saver a graph has: the user's where one is given, else none; runs always have one."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent, Team, sequence
from agentgraph.testing import ScriptedModel, call

CONFIG: Any = {"configurable": {"thread_id": "t"}}


def counting(**fields: Any) -> Agent:
    """Return an agent that answers with the number of the turn."""
    model = ScriptedModel(lambda messages: f"answer {len(messages) // 2}")
    return Agent("Solo", model=model, **fields)


async def test_a_graph_has_a_saver_only_where_the_agent_has_one() -> None:
    saver = InMemorySaver()
    assert counting().graph.checkpointer is None
    agent = counting(checkpointer=saver)
    await agent.graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    assert len(await agent.ahistory("t")) == 2
    assert saver.get_tuple(CONFIG) is not None


async def test_an_agents_own_runs_have_a_saver_though_its_graph_has_none() -> None:
    agent = counting()
    _ = agent.graph
    await agent.ainvoke("one", thread_id="t")
    assert (await agent.ainvoke("two", thread_id="t")).text == "answer 2"


async def test_a_user_gives_the_graph_a_saver() -> None:
    saver = InMemorySaver()
    graph = counting().graph.copy({"checkpointer": saver})
    await graph.ainvoke({"messages": [HumanMessage("one")]}, CONFIG)
    result = await graph.ainvoke({"messages": [HumanMessage("two")]}, CONFIG)
    assert result["messages"][-1].text == "answer 2"


async def test_the_saver_of_a_sub_agent_does_not_count() -> None:
    saver = InMemorySaver()
    below = counting(checkpointer=saver)
    root = Agent("root", model=ScriptedModel([call("transfer_to_Solo")]), agents=[below])
    await root.ainvoke("one", thread_id="t")
    assert not list(saver.list(None))
    assert root.graph.checkpointer is None


def test_the_graph_of_a_team_has_no_saver() -> None:
    team = Team([counting()], sequence(["Solo"]))
    assert team.graph.checkpointer is None
