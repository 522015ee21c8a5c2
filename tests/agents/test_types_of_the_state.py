"""What does not fit the declared state of an agent is refused when it is written."""

from __future__ import annotations

import operator
import typing
from typing import Annotated, Any, Literal, NotRequired

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware import AgentState as LangChainState
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Overwrite
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Agent, Guards, Patcher, patched
from agentgraph.errors import ConfigurationError
from agentgraph.patching import insert_node
from agentgraph.testing import ScriptedModel, call

THREAD: Any = {"configurable": {"thread_id": "t"}}


class Person(BaseModel):
    name: str


class Address(TypedDict):
    street: str


class OldAddress(typing.TypedDict):  # pydantic reads it from Python 3.12 on only
    street: str


def add(old: list[str], new: str | list[str]) -> list[str]:
    return [*old, *([new] if isinstance(new, str) else new)]


class Declared(TypedDict, total=False):
    count: int
    person: Person
    address: Address
    addresses: list[OldAddress]
    mood: Literal["good", "bad"]
    note: str | None
    total: Annotated[int, operator.add]
    names: Annotated[list[str], add]
    anything: Any


MISFITS: list[dict[str, Any]] = [
    {"count": "many"},
    {"count": "5"},
    {"person": {"name": 1}},
    {"person": "ann"},
    {"address": {"street": 1}},
    {"address": {}},
    {"addresses": [{"street": 1}]},
    {"mood": "so so"},
    {"note": 1},
    {"total": "one"},
    {"total": Overwrite("one")},
    {"names": 1},
    {"count": 1, "mood": "so so"},
]
FITTING: list[dict[str, Any]] = [
    {"count": 5},
    {"person": {"name": "ann"}},
    {"address": {"street": "a", "town": "b"}},
    {"addresses": [{"street": "a"}]},
    {"note": None},
    {"total": 1},
    {"names": ["a"]},
    {"names": ["ann", "bob"]},
    {"anything": {"x": 1}},
]


def by_tool(update: dict[str, Any], model: ScriptedModel) -> Agent:
    @tool
    def note(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Note something."""
        messages = [ToolMessage("noted", tool_call_id=tool_call_id)]
        return Command(update={**update, "messages": messages})

    return Agent(
        "a", model=model, tools=[note], patcher=Patcher(lambda graph: graph, state=Declared)
    )


def by_sub_agent(update: dict[str, Any], model: ScriptedModel) -> Agent:
    sub = by_tool(update, model).replace(name="sub", patcher=())
    patcher = Patcher(lambda graph: graph, state=Declared)
    return Agent("a", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub], patcher=patcher)


def by_node(update: dict[str, Any], model: ScriptedModel) -> Agent:
    node = insert_node(
        "look",
        lambda state: update,
        after="continue_conversation",
        before="call_model",
        state=Declared,
    )
    return Agent("a", model=model, tools=[look], patcher=node)


def by_middleware(update: dict[str, Any], model: ScriptedModel) -> Agent:
    class State(LangChainState[Any], Declared, total=False):
        hidden: NotRequired[int]

    class Notes(AgentMiddleware[Any, Any]):
        state_schema = State

        def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
            return update

    return Agent("a", model=model, tools=[look], middleware=[Notes()])


def look() -> str:
    """Look."""
    return "seen"


WRITERS = [by_tool, by_sub_agent, by_node, by_middleware]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("update", MISFITS, ids=str)
async def test_misfit_is_refused_and_the_thread_goes_on_without_it(
    write: Any, update: dict[str, Any]
) -> None:
    tool_name = "look" if write in (by_node, by_middleware) else "note"
    agent = write(update, ScriptedModel([call(tool_name), "done"]))
    agent = agent.replace(checkpointer=InMemorySaver())

    with pytest.raises(ConfigurationError, match="channel") as refused:
        await agent.ainvoke("go", thread_id="t")

    assert refused.value.code == "state"
    values = (await agent.graph.aget_state(THREAD)).values
    assert not any(values.get(key) for key in Declared.__annotations__)
    if write in (by_tool, by_sub_agent):
        assert (await agent.ainvoke("again", thread_id="t")).text == "done"


@pytest.mark.parametrize("write", [by_tool, by_sub_agent])
@pytest.mark.parametrize("update", FITTING, ids=str)
async def test_what_fits_is_stored_as_it_was_given(write: Any, update: dict[str, Any]) -> None:
    agent = write(update, ScriptedModel([call("note"), "done"]))
    agent = agent.replace(checkpointer=InMemorySaver())

    await agent.ainvoke("go", thread_id="t")

    values = (await agent.graph.aget_state(THREAD)).values
    assert {key: values.get(key) for key in update} == update


@pytest.mark.parametrize("update", MISFITS, ids=str)
async def test_misfit_is_refused_as_an_input_and_by_update_state(update: dict[str, Any]) -> None:
    agent = by_tool({}, ScriptedModel(["hello", "hello again"]))
    agent = agent.replace(checkpointer=InMemorySaver())
    await agent.ainvoke("hi", thread_id="t")
    before = await agent.graph.aget_state(THREAD)

    for node in ("call_model", "call_tools"):
        with pytest.raises(ConfigurationError):
            await agent.graph.aupdate_state(THREAD, update, as_node=node)
    assert await agent.graph.aget_state(THREAD) == before
    with pytest.raises(ConfigurationError):
        await agent.graph.ainvoke({"messages": ["hi"], **update}, THREAD)

    assert (await agent.ainvoke("hi", thread_id="t")).text == "hello again"


async def test_unknown_keys_are_ignored_as_by_langgraph() -> None:
    agent = by_tool({"unknown": 1}, ScriptedModel([call("note"), "done"]))
    agent = agent.replace(checkpointer=InMemorySaver())

    assert (await agent.ainvoke("go", thread_id="t")).text == "done"
    assert "unknown" not in (await agent.graph.aget_state(THREAD)).values


async def test_misfit_is_refused_in_a_patched_copy_of_the_graph() -> None:
    agent = by_tool({"count": "many"}, ScriptedModel([call("note"), "done"])).replace(guards=None)
    graph = patched(agent.graph, Guards.interactive())

    with pytest.raises(ConfigurationError, match="'count'"):
        await graph.ainvoke({"messages": ["go"]})
