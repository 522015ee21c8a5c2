"""What LangGraph users do to an agent's graph: `update_state`, forks and time travel."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain.agents.middleware import AgentMiddleware, after_model
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, StateSnapshot, interrupt

from agentgraph import Agent, Finish, Guards, effect
from agentgraph.errors import RoutingError
from agentgraph.testing import ScriptedModel, call

CONFIG: Any = {"configurable": {"thread_id": "t"}}
HI: Any = {"messages": [("user", "hi")]}
runs: list[int] = []


@pytest.fixture(autouse=True)
def no_runs() -> None:
    runs.clear()


@tool
def add(x: int) -> str:
    """Add a number."""
    runs.append(x)
    return f"got {x}"


@pytest.fixture(params=[None, "guarded"])
def guards(request: pytest.FixtureRequest) -> Any:
    return Guards.interactive() if request.param else None


def desk(*script: Any, guards: Any = None, **settings: Any) -> Agent:
    model = ScriptedModel([*script])
    settings = {"tools": [add], **settings}
    return Agent("desk", model=model, guards=guards, checkpointer=InMemorySaver(), **settings)


async def before_tools(agent: Agent) -> StateSnapshot:
    """Run an agent until its calls, and return the state there."""
    await agent.graph.ainvoke(HI, CONFIG, interrupt_before=["call_tools"])
    return await agent.graph.aget_state(CONFIG)


def with_calls(message: AIMessage, *args: dict[str, Any], **changes: Any) -> AIMessage:
    """Return a message whose calls have other arguments; calls without any are left out."""
    calls = [{**c, "args": a, **changes} for c, a in zip(message.tool_calls, args, strict=False)]
    return message.model_copy(update={"tool_calls": calls})


def texts(result: Any) -> list[str]:
    messages: list[AnyMessage] = result["messages"]
    return [str(message.text) for message in messages]


async def written(agent: Agent, message: AnyMessage, node: str, at: Any = CONFIG) -> Any:
    """Write a message as a node, and go on from there."""
    fork = await agent.graph.aupdate_state(at, {"messages": [message]}, as_node=node)
    return await agent.graph.ainvoke(None, CONFIG if at is CONFIG else fork)


# One call.


async def test_an_edited_call_runs(guards: Any) -> None:
    agent = desk(call("add", x=1), "done", guards=guards)
    message = (await before_tools(agent)).values["messages"][-1]
    result = await written(agent, with_calls(message, {"x": 42}), "call_model")
    assert runs == [42]
    assert texts(result) == ["hi", "", "got 42", "done"]


async def test_an_edited_call_runs_after_an_interrupt_at_compile_time(guards: Any) -> None:
    agent = desk(call("add", x=1), "done", guards=guards)
    graph = agent.graph.builder.compile(InMemorySaver(), interrupt_before=["call_tools"])
    await graph.ainvoke(HI, CONFIG)
    message = (await graph.aget_state(CONFIG)).values["messages"][-1]
    edit = {"messages": [with_calls(message, {"x": 42})]}
    await graph.aupdate_state(CONFIG, edit, as_node="call_model")
    assert texts(await graph.ainvoke(None, CONFIG)) == ["hi", "", "got 42", "done"]
    assert runs == [42]


async def test_an_answer_written_by_hand_brings_the_model_back(guards: Any) -> None:
    agent = desk(call("add", x=1), "done", guards=guards)
    message = (await before_tools(agent)).values["messages"][-1]
    answer = ToolMessage("by hand", tool_call_id=message.tool_calls[0]["id"])
    result = await written(agent, answer, "call_tools")
    assert (runs, texts(result)) == ([], ["hi", "", "by hand", "done"])


async def test_an_edited_final_text_ends(guards: Any) -> None:
    agent = desk(call("add", x=1), "never", guards=guards)
    message = (await before_tools(agent)).values["messages"][-1]
    final = message.model_copy(update={"content": "enough", "tool_calls": []})
    await agent.graph.aupdate_state(CONFIG, {"messages": [final]}, as_node="call_model")
    state = await agent.graph.aget_state(CONFIG)
    assert (state.next, texts(state.values)) == ((), ["hi", "enough"])


async def test_a_fork_is_routed_as_the_thread_itself(guards: Any) -> None:
    agent = desk(call("add", x=1), "first", "second", "third", guards=guards)
    await agent.graph.ainvoke(HI, CONFIG)
    history = [state async for state in agent.graph.aget_state_history(CONFIG)]
    older = next(state for state in history if state.next == ("call_tools",))
    message = older.values["messages"][-1]

    result = await written(agent, with_calls(message, {"x": 7}), "call_model", older.config)
    assert (runs, texts(result)) == ([1, 7], ["hi", "", "got 7", "second"])
    answer = ToolMessage("by hand", tool_call_id=message.tool_calls[0]["id"])
    result = await written(agent, answer, "call_tools", older.config)
    assert (runs, texts(result)) == ([1, 7], ["hi", "", "by hand", "third"])


async def test_time_travel_replays_from_an_older_checkpoint(guards: Any) -> None:
    agent = desk(call("add", x=1), "first", "second", guards=guards)
    await agent.graph.ainvoke(HI, CONFIG)
    history = [state async for state in agent.graph.aget_state_history(CONFIG)]
    older = next(state for state in history if state.next == ("call_tools",))
    result = await agent.graph.ainvoke(None, older.config)
    assert (runs, texts(result)) == ([1, 1], ["hi", "", "got 1", "second"])


async def test_on_a_fork_an_action_is_not_repeated_and_an_edited_one_is_another() -> None:
    @effect(compensate=None)
    def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        return f"paid {x}"

    script: list[Any] = [call("pay", x=1), "first", "second", "third"]
    agent = desk(*script, guards=Guards.interactive(), tools=[pay])
    await agent.graph.ainvoke(HI, CONFIG)
    history = [state async for state in agent.graph.aget_state_history(CONFIG)]
    older = [state for state in history if state.next == ("call_tools",)][-1]
    message = older.values["messages"][-1]

    result = await agent.graph.ainvoke(None, older.config)
    assert (runs, texts(result)) == ([1], ["hi", "", "paid 1", "second"])
    result = await written(agent, with_calls(message, {"x": 7}), "call_model", older.config)
    assert (runs, texts(result)) == ([1, 7], ["hi", "", "paid 7", "third"])


# Several calls.


async def test_several_calls_are_interrupted_once(guards: Any) -> None:
    agent = desk([call("add", x=1), call("add", x=2)], "done", guards=guards)
    state = await before_tools(agent)
    assert state.next == ("call_tools", "call_tools")
    result = await agent.graph.ainvoke(None, CONFIG, interrupt_before=["call_tools"])
    assert texts(result) == ["hi", "", "got 1", "got 2", "done"]


async def test_of_several_calls_only_the_open_ones_run(guards: Any) -> None:
    agent = desk([call("add", x=1), call("add", x=2)], "done", guards=guards)
    message = (await before_tools(agent)).values["messages"][-1]
    answer = ToolMessage("by hand", tool_call_id=message.tool_calls[0]["id"])
    result = await written(agent, answer, "call_tools")
    assert (runs, texts(result)) == ([2], ["hi", "", "by hand", "got 2", "done"])


async def test_several_edited_calls_run_and_a_dropped_one_does_not(guards: Any) -> None:
    script = [call("add", x=1), call("add", x=2), call("add", x=3)]
    agent = desk(script, "done", guards=guards)
    message = (await before_tools(agent)).values["messages"][-1]
    result = await written(agent, with_calls(message, {"x": 5}, {"x": 6}), "call_model")
    assert sorted(runs) == [5, 6]
    assert texts(result) == ["hi", "", "got 5", "got 6", "done"]


async def test_an_edit_beside_an_answer_runs_what_is_open(guards: Any) -> None:
    agent = desk([call("add", x=1), call("add", x=2)], "done", guards=guards)
    message = (await before_tools(agent)).values["messages"][-1]
    answer = ToolMessage("by hand", tool_call_id=message.tool_calls[0]["id"])
    edit = {"messages": [with_calls(message, {"x": 5}, {"x": 6}), answer]}
    await agent.graph.aupdate_state(CONFIG, edit, as_node="call_model")
    result = await agent.graph.ainvoke(None, CONFIG)
    assert (runs, texts(result)) == ([6], ["hi", "", "by hand", "got 6", "done"])


# Sub-agents and hooks.


def tree(guards: Any, handoff: Any = "sticky") -> Agent:
    members = [
        Agent(name, f"Knows {name}.", model=ScriptedModel([f"{name} speaks"]), tools=[add])
        for name in ("billing", "tech")
    ]
    return desk(call("transfer_to_billing"), "done", guards=guards, agents=members, handoff=handoff)


async def test_an_edited_transfer_goes_to_the_edited_sub_agent(guards: Any) -> None:
    agent = tree(guards)
    message = (await before_tools(agent)).values["messages"][-1]
    edit = with_calls(message, {}, name="transfer_to_tech")
    result = await written(agent, edit, "call_model")
    assert texts(result)[-1] == "tech speaks"
    assert result["current_active_agent"] == "tech"


async def test_an_edited_delegation_goes_to_the_edited_sub_agent(guards: Any) -> None:
    agent = tree(guards, "delegate")
    message = (await before_tools(agent)).values["messages"][-1]
    edit = with_calls(message, {}, name="transfer_to_tech")
    assert texts(await written(agent, edit, "call_model")) == ["hi", "", "tech speaks", "done"]


async def test_a_transfer_answered_by_hand_brings_the_model_back(guards: Any) -> None:
    agent = tree(guards)
    message = (await before_tools(agent)).values["messages"][-1]
    answer = ToolMessage("stay here", tool_call_id=message.tool_calls[0]["id"])
    result = await written(agent, answer, "call_tools")
    assert texts(result) == ["hi", "", "stay here", "done"]


async def test_an_answer_written_as_a_delegate_brings_the_model_back(guards: Any) -> None:
    agent = tree(guards, "delegate")
    await agent.graph.ainvoke(HI, CONFIG, interrupt_before=["billing"])
    state = await agent.graph.aget_state(CONFIG)
    assert state.next == ("billing",)
    call_id = state.values["messages"][-1].tool_calls[0]["id"]
    result = await written(agent, ToolMessage("all paid", tool_call_id=call_id), "billing")
    assert texts(result) == ["hi", "", "all paid", "done"]


async def test_an_unknown_sub_agent_in_the_state_raises() -> None:
    agent = tree(None)
    await before_tools(agent)
    edit = {"current_active_agent": "nobody"}
    with pytest.raises(RoutingError, match=r"no sub-agent 'nobody'.*billing, tech"):
        await agent.graph.aupdate_state(CONFIG, edit, as_node="call_tools")


async def test_a_call_that_waits_inside_of_a_sub_agent_can_be_edited(guards: Any) -> None:
    @tool
    def ask(x: int) -> str:
        """Ask a human."""
        return f"{x} {interrupt(x)}"

    model = ScriptedModel([call("ask", x=1), "billing speaks"])
    billing = Agent("billing", "Knows bills.", model=model, tools=[ask, add])
    agent = desk(call("transfer_to_billing"), guards=guards, agents=[billing], tools=[])
    await agent.graph.ainvoke(HI, CONFIG)
    outer = await agent.graph.aget_state(CONFIG, subgraphs=True)
    inner = outer.tasks[0].state
    assert isinstance(inner, StateSnapshot)
    assert inner.next == ("call_tools",)

    edit = {"messages": [with_calls(inner.values["messages"][-1], {"x": 9}, name="add")]}
    await agent.graph.aupdate_state(inner.config, edit, as_node="call_model")
    result = await agent.graph.ainvoke(None, CONFIG)
    assert (runs, texts(result)[-1]) == ([9], "billing speaks")


async def test_time_travel_runs_a_sub_agent_again(guards: Any) -> None:
    model = ScriptedModel([call("add", x=1), "first", call("add", x=2), "second"])
    billing = Agent("billing", "Knows bills.", model=model, tools=[add])
    agent = desk(call("transfer_to_billing"), guards=guards, agents=[billing], tools=[])
    await agent.graph.ainvoke(HI, CONFIG)
    history = [state async for state in agent.graph.aget_state_history(CONFIG)]
    older = next(state for state in history if state.next == ("billing",))
    result = await agent.graph.ainvoke(None, older.config)
    assert (runs, texts(result)[-1]) == ([1, 2], "second")


async def test_an_edited_call_passes_the_hooks_after_the_model(guards: Any) -> None:
    seen: list[Any] = []

    @after_model
    def watch(state: Any, runtime: Any) -> None:
        seen.append(state["messages"][-1].tool_calls)

    middleware: list[AgentMiddleware[Any, Any]] = [watch]
    agent = desk(call("add", x=1), "done", guards=guards, middleware=middleware)
    message = (await before_tools(agent)).values["messages"][-1]
    result = await written(agent, with_calls(message, {"x": 42}), "call_model")
    assert [calls[0]["args"]["x"] if calls else None for calls in seen] == [1, 42, None]
    assert (runs, texts(result)[-1]) == ([42], "done")


async def test_a_state_written_as_a_hook_is_routed_too(guards: Any) -> None:
    @after_model
    def watch(state: Any, runtime: Any) -> None: ...

    middleware: list[AgentMiddleware[Any, Any]] = [watch]
    agent = desk(call("add", x=1), "done", guards=guards, middleware=middleware)
    message = (await before_tools(agent)).values["messages"][-1]
    result = await written(agent, with_calls(message, {"x": 42}), "watch.after_model")
    assert (runs, texts(result)[-1]) == ([42], "done")


async def test_a_state_written_as_the_router_goes_on(guards: Any) -> None:
    agent = desk("first", "second", guards=guards)
    await agent.graph.ainvoke(HI, CONFIG)
    edit: Any = {"messages": [("user", "and now?")]}
    await agent.graph.aupdate_state(CONFIG, edit, as_node="router")
    assert texts(await agent.graph.ainvoke(None, CONFIG))[-1] == "second"


# What tools decide.


async def test_a_finish_that_is_replaced_by_hand_brings_the_model_back(guards: Any) -> None:
    @tool
    def finish() -> Any:
        """Finish the work."""
        return Finish(text="", reason="all is done")

    agent = desk(call("finish"), "not yet", guards=guards, tools=[finish])
    result = await agent.graph.ainvoke(HI, CONFIG)
    assert texts(result) == ["hi", "", "all is done"]
    last = result["messages"][-1]
    replaced = last.model_copy(update={"content": "no, go on"})
    assert texts(await written(agent, replaced, "call_tools"))[-2:] == ["no, go on", "not yet"]


async def test_a_goto_to_the_end_ends_the_turn(guards: Any) -> None:
    @tool
    def stop(call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Stop here."""
        message = ToolMessage("stopped", tool_call_id=call_id)
        return Command(goto="__end__", update={"messages": [message]})

    agent = desk(call("stop"), "never", guards=guards, tools=[stop])
    assert texts(await agent.graph.ainvoke(HI, CONFIG)) == ["hi", "", "stopped"]
