"""Which saver a graph has: the user's where one is given, else none; runs always have one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

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


@pytest.mark.parametrize("through", ["agent", "graph"])
async def test_a_run_cut_off_ends_after_its_last_write(through: str, tmp_path: Path) -> None:
    waits = asyncio.Event()

    @tool
    async def buy(item: str) -> str:
        """Buy something."""
        if item == "milk":
            waits.set()
            await asyncio.Event().wait()
        return item

    async with aiosqlite.connect(tmp_path / "t.db") as connection:
        saver = SlowSaver(connection)
        turn = [call("buy", item="tea"), call("buy", item="milk")]
        agent = Agent(
            "solo", model=ScriptedModel([turn]), tools=[buy], checkpointer=saver, durability="sync"
        )
        said = {"messages": [HumanMessage("go")]}
        work = (
            agent.ainvoke("go", thread_id="t")
            if through == "agent"
            else agent.graph.ainvoke(said, CONFIG, durability="sync")
        )
        run = asyncio.ensure_future(work)
        await waits.wait()
        run.cancel()
        await asyncio.wait([run])

        assert run.cancelled()
        assert saver.begun and saver.begun == saver.ended


class SlowSaver(AsyncSqliteSaver):
    """Takes many turns of the loop for the writes of a task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begun, self.ended = list[str](), list[str]()

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        self.begun.append(task_id)
        for _ in range(50):
            await asyncio.wait([asyncio.ensure_future(nothing())])
        await super().aput_writes(config, writes, task_id, task_path)
        self.ended.append(task_id)


async def nothing() -> None:
    pass
