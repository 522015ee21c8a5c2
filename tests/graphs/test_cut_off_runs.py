"""A run that is cut off ends after its last write: its caller may close the saver then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from aiosqlite import Connection
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph import Agent, patched
from agentgraph.testing import ScriptedModel, call

INPUT = {"messages": [HumanMessage("hi")]}
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


class SlowSaver(AsyncSqliteSaver):
    """Its writes of errors, which LangGraph makes last, take several turns of the loop."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.under_way: list[str] = []  # shared with the copies that LangGraph makes

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self.under_way.append(task_id)
        if writes[-1][0] == "__error__":
            for _ in range(20):
                await asyncio.wait([asyncio.ensure_future(self.conn.commit())])
        await super().aput_writes(config, writes, task_id, task_path)
        self.under_way.remove(task_id)

    async def rest(self) -> None:
        """Wait until nothing more is written."""
        for _ in range(20):
            await asyncio.wait([asyncio.ensure_future(self.conn.commit())])
        while self.under_way:
            await asyncio.wait([asyncio.ensure_future(self.conn.commit())])


class Stuck:
    """A step that never ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def wait(self) -> str:
        """Wait for ever."""
        self.begun.set()
        await asyncio.Event().wait()
        return ""


def graph_of_agent(saver: SlowSaver, stuck: Stuck) -> Any:
    def greet() -> str:
        """Greet."""
        return "hello"

    model = ScriptedModel([[call("wait"), call("greet")]])
    return Agent("Solo", model=model, tools=[stuck.wait, greet], checkpointer=saver).graph


def patched_graph(saver: SlowSaver, stuck: Stuck) -> Any:
    async def wait(state: MessagesState) -> MessagesState:
        return {"messages": [AIMessage(await stuck.wait())]}

    async def greet(state: MessagesState) -> MessagesState:
        return {"messages": [AIMessage("hello")]}

    builder = StateGraph(MessagesState)
    for node in (wait, greet):
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    return patched(builder.compile(checkpointer=saver), lambda graph: graph)


GRAPHS = {"agent": graph_of_agent, "patched": patched_graph}


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[SlowSaver]:
    async with SlowSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        yield cast("SlowSaver", saver)


async def until_greeted(graph: Any, saver: SlowSaver) -> None:
    """Read a stream until one node has ended and its result is stored; then leave the stream."""
    async with aclosing(graph.astream(INPUT, CONFIG, stream_mode="updates")) as parts:
        async for part in parts:
            if "hello" in str(part):
                await saver.rest()
                return


async def to_the_end(graph: Any) -> None:
    async for _ in graph.astream(INPUT, CONFIG):
        pass


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("way", ["ainvoke", "astream"])
async def test_a_cancelled_run_ends_after_its_last_write(
    kind: str, way: str, saver: SlowSaver
) -> None:
    stuck = Stuck()
    graph = GRAPHS[kind](saver, stuck)
    work = graph.ainvoke(INPUT, CONFIG) if way == "ainvoke" else to_the_end(graph)
    run = asyncio.ensure_future(work)
    await stuck.begun.wait()
    await saver.rest()

    run.cancel()
    await asyncio.wait([run])

    assert run.cancelled()
    assert saver.under_way == []


@pytest.mark.parametrize("kind", GRAPHS)
async def test_a_stream_that_is_left_early_ends_after_its_last_write(
    kind: str, saver: SlowSaver
) -> None:
    await until_greeted(GRAPHS[kind](saver, Stuck()), saver)

    assert saver.under_way == []
