"""A patched graph does what the graph itself does: its results, streams, states and drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentState, HumanInTheLoopMiddleware, before_model
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Guards, patched
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import look

GO = {"messages": [HumanMessage("go", id="1")]}
ON_T: Any = {"configurable": {"thread_id": "t"}}
TURNS: Any = [call("look", what="it"), "Done."]


class Own(AgentState[Any], total=False):
    """A state with the keys that guards have used in a state of their own."""

    human: str
    guarded: str
    stopped_by: str
    turn: str


OWN = {"human": "me", "guarded": "no", "stopped_by": "nobody", "turn": "left"}


@before_model(can_jump_to=["end"])
def jump(state: Any, runtime: Any) -> Any:
    return {"jump_to": "end"} if len(state["messages"]) > 2 else None


def plain(**fields: Any) -> Any:
    return create_agent(ScriptedModel(list(TURNS)), [look], name="clerk", **fields)


def with_own_keys() -> Any:
    return plain(state_schema=Own)


def with_jumps() -> Any:
    return plain(middleware=[jump])


MADE = pytest.mark.parametrize("made", [plain, with_own_keys, with_jumps])


def types_only(value: Any) -> Any:
    """Return the keys of an update and the types of its messages."""
    if isinstance(value, dict):
        return {key: types_only(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [types_only(part) for part in value]
    return getattr(value, "type", value)


async def seen(graph: Any, mode: str, is_async: bool) -> Any:
    given = {**GO, **(OWN if "stopped_by" in graph.channels else {})}
    if is_async:
        return [types_only(part) async for part in graph.astream(given, stream_mode=mode)]
    return [types_only(part) for part in graph.stream(given, stream_mode=mode)]


@MADE
@pytest.mark.parametrize("mode", ["values", "updates", "messages"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_streams_are_those_of_the_graph(
    made: Callable[[], Any], mode: str, is_async: bool
) -> None:
    graph = made()
    parts = await seen(graph, mode, is_async)
    copy = await seen(patched(made(), Guards.interactive()), mode, is_async)
    if mode == "messages":  # beside each chunk stands what LangGraph knows of its task
        parts, copy = ([part[0] for part in some] for some in (parts, copy))
    assert copy == parts


async def stored(graph: Any) -> Any:
    """Run a graph; return its result, its state, and what its saver has stored."""
    graph.checkpointer = saver = InMemorySaver()
    given = {**GO, **(OWN if "stopped_by" in graph.channels else {})}
    result, saved = await graph.ainvoke(given, ON_T), saver.get(ON_T)
    assert saved is not None
    state = (await graph.aget_state(ON_T)).values
    return [types_only(values) for values in (result, state, saved["channel_values"])]


@MADE
async def test_results_states_and_checkpoints_are_those_of_the_graph(
    made: Callable[[], Any],
) -> None:
    assert await stored(patched(made(), Guards.interactive())) == await stored(made())


@MADE
def test_a_drawing_has_its_edges_and_await_human(made: Callable[[], Any]) -> None:
    def edges(graph: Any) -> set[tuple[str, str]]:
        return {(edge.source, edge.target) for edge in graph.get_graph(xray=True).edges}

    more = edges(patched(made(), Guards.interactive())) - edges(made())
    assert more == {("model", "await_human"), ("await_human", "model")}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_human_decides_on_a_tool_as_without_guards(is_async: bool) -> None:
    hooks: Any = [HumanInTheLoopMiddleware(interrupt_on={"look": True})]
    graph = patched(plain(middleware=hooks), Guards.interactive())
    graph.checkpointer = InMemorySaver()
    decision: Any = Command(resume={"decisions": [{"type": "approve"}]})
    if is_async:
        waiting = await graph.ainvoke(GO, ON_T)
        result = await graph.ainvoke(decision, ON_T)
    else:
        waiting, result = graph.invoke(GO, ON_T), graph.invoke(decision, ON_T)
    assert waiting["__interrupt__"][0].value["action_requests"][0]["name"] == "look"
    assert [m.type for m in result["messages"]] == ["human", "ai", "tool", "ai"]


async def test_an_interrupt_in_a_parallel_tool_runs_the_others_once() -> None:
    ran: list[str] = []

    def ask(what: str) -> str:
        """Ask."""
        return str(interrupt(what))

    def note(what: str) -> str:
        """Note."""
        ran.append(what)
        return what

    turns: Any = [[call("ask", what="a"), call("note", what="b")], "Done."]
    graph = patched(create_agent(ScriptedModel(turns), [ask, note]), Guards.interactive())
    graph.checkpointer = InMemorySaver()
    await graph.ainvoke(GO, ON_T)
    result = await graph.ainvoke(Command(resume="yes"), ON_T)
    assert ([m.text for m in result["messages"]][-1], ran) == ("Done.", ["b"])


class AsTypedDict(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class AsModel(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]


@dataclass
class AsDataclass:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


@pytest.mark.parametrize("schema", [AsTypedDict, AsModel, AsDataclass])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_any_kind_of_state_is_guarded(schema: Any, is_async: bool) -> None:
    model = ScriptedModel(["again"] * 9)
    kinds: list[type] = []

    def think(state: Any) -> Any:
        kinds.append(type(state))
        return {"messages": [model.invoke("go")]}

    graph = StateGraph(schema)
    graph.add_node("think", think)
    graph.add_node("again", lambda state: None)
    graph.add_edge(START, "think")
    graph.add_edge("think", "again")
    graph.add_edge("again", "think")
    copy = patched(graph.compile(), Guards.interactive(steps=3))
    result = await copy.ainvoke(GO) if is_async else copy.invoke(GO)
    assert len(model.requests) == 3
    assert result["messages"][-1].text.startswith("Stopped by max_steps")
    assert kinds == [dict if schema is AsTypedDict else schema] * 3
