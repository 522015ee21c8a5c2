"""Events reach the stream of the run around them, and LangGraph's `custom` stream is the user's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph import Agent
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph
from agentgraph.stream import Event, emit
from agentgraph.testing import ScriptedModel, call

ASK: Any = {"messages": [("user", "hi")]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Event):
    type: ClassVar[str] = "step"

    done: int


async def work() -> str:
    """Work, and tell of it."""
    await emit(Step(done=1))
    get_stream_writer()({"half": "way"})
    await emit(Step(done=2))
    return "worked"


def desk(*, levels: int = 1, **fields: Any) -> Agent:
    agent = Agent("leaf", model=ScriptedModel([call("work"), "Done."]), tools=[work], **fields)
    for level in range(levels - 1):
        model = ScriptedModel([call(f"transfer_to_{agent.name}")])
        agent = Agent(f"level{level}", model=model, agents=[agent], **fields)
    return agent


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
async def test_events_of_a_tool_reach_the_stream(levels: int, guards: dict[str, Any]) -> None:
    agent = desk(levels=levels, **guards)

    events: list[Event] = [event async for event in agent.astream("hi", thread_id="t")]

    assert [event.done for event in events if isinstance(event, Step)] == [1, 2]
    kinds = [event.type for event in events if event.type in ("tool_usage", "step")]
    assert kinds == ["tool_usage", "step", "step"]
    assert all(e.type and e.agent and e.thread_id == "t" and e.run_id for e in events)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_events_of_parallel_tools_reach_the_stream() -> None:
    model = ScriptedModel([[call("work"), call("work")], "Done."])
    agent = Agent("desk", model=model, tools=[work])

    events: list[Event] = [event async for event in agent.astream("hi")]

    assert sorted(event.done for event in events if isinstance(event, Step)) == [1, 1, 2, 2]


async def test_events_of_a_graph_that_a_tool_runs_are_not_the_runs() -> None:
    async def ask() -> str:
        """Ask another agent."""
        result = await desk(levels=2).graph.ainvoke(ASK)
        await emit(Step(done=3))
        return str(result["messages"][-1].text)

    agent = Agent("desk", model=ScriptedModel([call("ask"), "So it is."]), tools=[ask])

    events: list[Event] = [event async for event in agent.astream("hi")]

    assert [event.done for event in events if isinstance(event, Step)] == [3]
    assert {event.agent for event in events} == {"desk"}


@pytest.mark.parametrize("is_node", [False, True], ids=["root", "node"])
async def test_the_custom_stream_has_only_what_tools_write_to_it(is_node: bool) -> None:
    graph: AnyCompiledGraph = desk(levels=2).graph
    if is_node:
        builder: AnyGraph = StateGraph(MessagesState)
        builder.add_node("desk", graph)
        builder.add_edge(START, "desk")
        graph = builder.compile()

    written = [data async for _, data in graph.astream(ASK, stream_mode="custom", subgraphs=True)]

    assert written == [{"half": "way"}]
