"""Guards in graphs within graphs: supervisors, swarms, and nodes that call graphs or models."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm

from agentgraph import Agent, Guards, Team, patched
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Gate, Subject
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import calls, is_legal, stopped_by, watched

# langgraph-supervisor uses what LangGraph has moved elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent")
GO = {"messages": [HumanMessage("go")]}
ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


def wipe(disk: str) -> str:
    """Wipe a disk."""
    ran.append(disk)
    return "wiped"


def is_allowed(subject: Subject) -> bool:
    return subject.tool != "wipe"


def clerk() -> Any:
    return create_agent(ScriptedModel([call("wipe", disk="c"), "Done."]), [wipe], name="clerk")


def supervisor() -> Any:
    boss = ScriptedModel([call("transfer_to_clerk"), "All done."])
    office = create_supervisor([clerk()], model=boss, output_mode="full_history")
    return office.compile(name="office")


def swarm() -> Any:
    tools: Any = [create_handoff_tool(agent_name="clerk")]
    first = create_agent(ScriptedModel([call("transfer_to_clerk")]), tools, name="first")
    return create_swarm([first, clerk()], default_active_agent="first").compile(name="office")


async def test_a_node_below_an_agent_may_run_another_agent() -> None:
    helper = Agent("helper", model=ScriptedModel(["It is so."]))

    async def ask(state: MessagesState) -> dict[str, Any]:
        reply = await helper.ainvoke("is it so?")
        return {"messages": [("ai", reply.text)]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    theirs: Any = builder.compile(name="theirs")
    boss = Agent("boss", model=ScriptedModel([call("transfer_to_theirs")]), agents=[theirs])
    with pytest.warns(UserWarning, match="runs without guards"):
        reply = await boss.ainvoke("go")
    assert reply.text == "It is so."


def calling() -> Any:
    """Return a graph with a node that calls another graph."""
    inner = clerk()

    async def enter(state: MessagesState) -> Any:
        return await inner.ainvoke({"messages": state["messages"]})

    graph = StateGraph(MessagesState).add_node("enter", enter)
    return graph.add_edge(START, "enter").compile(name="office")


def thinking() -> Any:
    """Return an agent whose model's node has a name of its own."""
    model = ScriptedModel([call("wipe", disk="c"), "Done."])

    async def think(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", ToolNode([wipe]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition, {"tools": "act", "__end__": "__end__"})
    graph.add_edge("act", "think")
    return graph.compile(name="office")


MADE = pytest.mark.parametrize("made", [supervisor, swarm, calling, thinking])


@MADE
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_forbidden_tool_does_not_run_at_any_level(made: Any, is_async: bool) -> None:
    graph = patched(made(), watched(gates=Gate(policy=is_allowed)))
    result = await graph.ainvoke(GO) if is_async else graph.invoke(GO)
    assert ran == []
    assert any("Not executed" in m.text for m in result["messages"])
    assert is_legal(result["messages"])


@MADE
async def test_an_agent_above_guards_it(made: Any) -> None:
    boss = ScriptedModel([call("transfer_to_office")])
    guards = watched(gates=Gate(policy=is_allowed))
    await Agent("boss", model=boss, agents=[made()], guards=guards).ainvoke("go")
    assert ran == []


@MADE
async def test_a_team_around_it_guards_it(made: Any) -> None:
    guards = watched(gates=Gate(policy=is_allowed))
    await Team([made()], sequence(["office"]), guards=guards).arun("go")
    assert ran == []


@pytest.mark.parametrize("made", [supervisor, swarm])
async def test_all_levels_share_one_limit(made: Any) -> None:
    graph = patched(made(), watched(steps=calls(2)))
    result = await graph.ainvoke(GO)
    assert (ran, stopped_by(result)) == (["c"], "max_steps")


async def test_the_nodes_can_be_named() -> None:
    class Mind:
        model = ScriptedModel([call("wipe", disk="c"), "Done."])

        async def think(self, state: MessagesState) -> Any:
            return {"messages": [await self.model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", Mind().think)
    graph.add_edge(START, "think")
    compiled = graph.compile(name="office")
    with pytest.raises(ConfigurationError, match="model='<node>'"):
        patched(compiled, Guards.interactive())
    with pytest.raises(ConfigurationError, match="no node thinks"):
        patched(compiled, Guards.interactive(), model="thinks")
    copy = patched(compiled, watched(steps=1), model="think")
    await copy.ainvoke(GO)
    assert len(Mind.model.requests) == 1


async def test_model_calls_that_no_guarded_node_makes_are_limited_and_warned_of() -> None:
    class Mind:
        model = ScriptedModel(["again"] * 9)

        async def think(self, state: MessagesState) -> Any:
            return {"messages": [await self.model.ainvoke("go")]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", Mind().think)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda _: "think")
    boss = ScriptedModel([call("transfer_to_office")])
    agent = Agent(
        "boss", model=boss, agents=[graph.compile(name="office")], guards=watched(steps=4)
    )
    with pytest.warns(UserWarning, match="without guards"):
        reply = await agent.ainvoke("go")
    assert (reply.close_reason, len(Mind.model.requests)) == ("max_steps", 3)


def test_a_graph_that_is_guarded_already_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="guarded already"):
        patched(patched(supervisor(), Guards.interactive()), Guards.interactive())
