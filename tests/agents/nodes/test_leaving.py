"""Tools that leave their agent's graph by `Command(graph=Command.PARENT)`."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send
from langgraph_swarm import create_handoff_tool, create_swarm

from agentgraph import Agent, Guards
from agentgraph.errors import RoutingError
from agentgraph.testing import ScriptedModel, call

CONFIG: Any = {"configurable": {"thread_id": "t"}}
HI: Any = {"messages": [("user", "hi")]}


@pytest.fixture(params=[None, "guarded"])
def guards(request: pytest.FixtureRequest) -> Any:
    return Guards.interactive() if request.param else None


def leaving(target: Any, name: str = "leave", **update: Any) -> BaseTool:
    """Return a tool that leaves for a node of the graph around its own."""

    @tool(name)
    def leave(call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Leave."""
        message = ToolMessage(f"left by {name}", tool_call_id=call_id)
        goto = target if isinstance(target, str) else [target]
        messages = {"messages": [message], **update}
        return Command(graph=Command.PARENT, goto=goto, update=messages)

    return leave


def add(x: int) -> str:
    """Add a number."""
    return f"got {x}"


def answered_once(messages: list[AnyMessage]) -> bool:
    """Tell whether each call has exactly one answer."""
    calls = [c["id"] for m in messages if isinstance(m, AIMessage) for c in m.tool_calls]
    return sorted(map(str, calls)) == sorted(
        m.tool_call_id for m in messages if isinstance(m, ToolMessage)
    )


def texts(result: Any) -> list[str]:
    return [str(message.text) for message in result["messages"]]


async def test_an_agent_of_a_swarm_hands_over_with_the_swarms_own_tool(guards: Any) -> None:
    to_bob, to_alice = (create_handoff_tool(agent_name=name) for name in ("bob", "alice"))
    script: list[Any] = [[call("add", x=1), call("add", x=2)], call(to_bob.name), "alice again"]
    alice_model = ScriptedModel(script)
    bob_model = ScriptedModel(["bob speaks", call(to_alice.name)])
    alice = Agent("alice", model=alice_model, tools=[add, to_bob], guards=guards)
    bob = Agent("bob", model=bob_model, tools=[to_alice], guards=guards)
    builder: Any = create_swarm([alice.graph, bob.graph], default_active_agent="alice")
    swarm = builder.compile(InMemorySaver())

    result = await swarm.ainvoke(HI, CONFIG)
    handed = "Successfully transferred to bob"
    assert texts(result) == ["hi", "", "got 1", "got 2", "", handed, "bob speaks"]
    assert result["active_agent"] == "bob"
    assert answered_once(result["messages"])

    result = await swarm.ainvoke({"messages": [("user", "and back?")]}, CONFIG)
    handed = "Successfully transferred to alice"
    assert texts(result)[7:] == ["and back?", "", handed, "alice again"]
    assert answered_once(result["messages"])
    ids = [message.id for message in result["messages"]]
    assert len(ids) == len(set(ids))


class Own(MessagesState):
    note: str


def around(agent: Agent) -> Any:
    """Return a user's graph in which an agent is a node."""
    builder = StateGraph(Own)
    builder.add_node(agent.name, agent.graph)
    builder.add_node("archive", lambda state: {"messages": [("ai", f"filed: {state.get('note')}")]})
    builder.add_edge(START, agent.name)
    return builder.compile(InMemorySaver())


async def test_a_tool_leaves_for_a_node_of_a_users_graph(guards: Any) -> None:
    model = ScriptedModel([call("add", x=1), call("leave")])
    agent = Agent("desk", model=model, tools=[add, leaving("archive", note="A7")], guards=guards)
    result = await around(agent).ainvoke(HI, CONFIG)
    assert texts(result) == ["hi", "", "got 1", "", "left by leave", "filed: A7"]
    assert answered_once(result["messages"])
    assert result["note"] == "A7"


async def test_parallel_calls_are_answered_before_a_tool_leaves(guards: Any) -> None:
    model = ScriptedModel([[call("add", x=1), call("leave"), call("add", x=2)]])
    agent = Agent("desk", model=model, tools=[add, leaving("archive", note="A7")], guards=guards)
    result = await around(agent).ainvoke(HI, CONFIG)
    assert texts(result) == ["hi", "", "got 1", "left by leave", "got 2", "filed: A7"]
    assert answered_once(result["messages"])


async def test_of_two_tools_that_leave_only_one_does(guards: Any) -> None:
    model = ScriptedModel([[call("leave"), call("flee")]])
    tools = [leaving("archive"), leaving("desk", "flee")]
    agent = Agent("desk", model=model, tools=tools, guards=guards)
    result = await around(agent).ainvoke(HI, CONFIG)
    refusal = "Not executed: another call has left for archive"
    assert texts(result) == ["hi", "", "left by leave", refusal, "filed: None"]
    assert answered_once(result["messages"])


async def test_a_transfer_beside_a_tool_that_leaves_is_refused(guards: Any) -> None:
    model = ScriptedModel([[call("transfer_to_clerk"), call("leave")]])
    clerk = Agent("clerk", model=ScriptedModel([]))
    tools = [leaving("archive")]
    agent = Agent("desk", model=model, tools=tools, agents=[clerk], guards=guards)
    result = await around(agent).ainvoke(HI, CONFIG)
    assert "a tool of the same message has decided otherwise" in " ".join(texts(result))
    assert texts(result)[-1] == "filed: None"
    assert answered_once(result["messages"])


async def test_a_tool_sends_a_task_to_a_users_graph(guards: Any) -> None:
    send = Send("archive", {"note": "sent"})
    model = ScriptedModel([call("leave")])
    agent = Agent("desk", model=model, tools=[leaving(send)], guards=guards)
    assert texts(await around(agent).ainvoke(HI, CONFIG))[-1] == "filed: sent"


# In an agent's own tree.


def tree(*script: Any, target: str = "tech", guards: Any = None, **settings: Any) -> Agent:
    tools: list[Any] = [add, leaving(target)]
    billing = Agent("billing", "Knows bills.", model=ScriptedModel([*script]), tools=tools)
    tech = Agent("tech", "Knows wires.", model=ScriptedModel(["tech speaks", "tech again"]))
    model = ScriptedModel([call("transfer_to_billing"), "the desk speaks"])
    return Agent("desk", model=model, agents=[billing, tech], guards=guards, **settings)


async def test_a_sub_agents_tool_leaves_for_another_sub_agent(guards: Any) -> None:
    agent = tree(call("add", x=1), call("leave"), guards=guards)
    reply = await agent.ainvoke("hi", thread_id="t")
    assert (reply.agent, reply.text) == ("desk/tech", "tech speaks")
    assert [m.text for m in reply.messages if isinstance(m, ToolMessage)][1:] == [
        "got 1",
        "left by leave",
    ]
    assert answered_once(list(reply.messages))
    again = await agent.ainvoke("again", thread_id="t")
    assert (again.agent, again.text) == ("desk/tech", "tech again")


async def test_a_sub_agents_tool_leaves_for_the_model_above(guards: Any) -> None:
    reply = await tree(call("leave"), target="call_model", guards=guards).ainvoke("hi")
    assert (reply.agent, reply.text) == ("desk", "the desk speaks")
    assert answered_once(list(reply.messages))


async def test_a_delegates_tool_leaves_for_a_node_above(guards: Any) -> None:
    agent = tree(call("leave"), guards=guards, handoff="delegate")
    reply = await agent.ainvoke("hi")
    assert reply.text == "tech speaks"
    assert answered_once(list(reply.messages))


async def test_an_unknown_target_above_raises(guards: Any) -> None:
    agent = tree(call("leave"), target="nobody", guards=guards)
    fault = r"'nobody', which is no node of 'desk'.*billing.*tech.*PARENT leads to the agent above"
    with pytest.raises(RoutingError, match=fault):
        await agent.ainvoke("hi")


async def test_moves_to_agents_by_commands_are_hops() -> None:
    agent = tree(call("leave"), "I stay", guards=Guards.interactive(hops=1))
    reply = await agent.ainvoke("hi")
    assert (reply.agent, reply.text) == ("desk/billing", "I stay")
    assert answered_once(list(reply.messages))


async def test_without_a_parent_the_error_says_so(guards: Any) -> None:
    tools = [leaving("archive")]
    agent = Agent("desk", model=ScriptedModel([call("leave")] * 2), tools=tools, guards=guards)
    with pytest.raises(RoutingError, match="has no parent graph"):
        await agent.ainvoke("hi")
    with pytest.raises(RoutingError, match="has no parent graph"):
        await agent.graph.ainvoke(HI, CONFIG)


async def test_a_graph_that_is_named_otherwise_raises() -> None:
    @tool
    def leave() -> Any:
        """Leave."""
        return Command(graph="elsewhere", goto="x")

    agent = Agent("desk", model=ScriptedModel([call("leave")]), tools=[leave])
    with pytest.raises(RoutingError, match=r"only Command\.PARENT"):
        await around(agent).ainvoke(HI, CONFIG)
