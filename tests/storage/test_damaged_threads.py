"""A thread whose stored bytes are damaged: a typed error names it, and it can be deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.errors import StorageError
from agentgraph.storage import Note, open_saver, with_async_methods
from agentgraph.testing import ScriptedModel, call

SAVERS = ["by URL", "asynchronous", "synchronous"]
THREAD: Any = {"configurable": {"thread_id": "t-1"}}
TORN = "substr({0}, 1, length({0}) - 3)"
DAMAGES = {
    "a torn checkpoint": ("checkpoints", "checkpoint", TORN),
    "an empty checkpoint": ("checkpoints", "checkpoint", "x''"),
    "a checkpoint of noise": ("checkpoints", "checkpoint", "x'ff00c1c1'"),
    "a checkpoint that is a number": ("checkpoints", "checkpoint", "x'01'"),
    "torn metadata": ("checkpoints", "metadata", TORN),
    "a torn write": ("writes", "value", TORN),
    "a write of noise": ("writes", "value", "x'ff00c1c1'"),
}
OPERATIONS: dict[str, Any] = {
    "ainvoke": lambda agent: agent.ainvoke("again", thread_id="t-1"),
    "ahistory": lambda agent: agent.ahistory("t-1"),
    "ainterrupts": lambda agent: agent.ainterrupts("t-1"),
    "acontinue": lambda agent: agent.acontinue("t-1"),
    "aresume": lambda agent: agent.aresume("t-1", {"0" * 32: "yes"}),
    "state": lambda agent: agent.graph.aget_state(THREAD, subgraphs=True),
    "state history": lambda agent: states_of(agent),
    "update": lambda agent: agent.graph.aupdate_state(THREAD, {"messages": ["again"]}),
    "graph": lambda agent: agent.graph.ainvoke({"messages": [HumanMessage("again")]}, THREAD),
}


async def states_of(agent: Agent) -> list[Any]:
    return [state async for state in agent.graph.aget_state_history(THREAD)]


@asynccontextmanager
async def opened(kind: str, file: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    if kind == "by URL":
        yield open_saver(f"sqlite:///{file}")
    elif kind == "synchronous":
        with SqliteSaver.from_conn_string(file) as saver:
            yield saver
    else:
        async with AsyncSqliteSaver.from_conn_string(file) as loop_saver:
            yield loop_saver


def asking(saver: BaseCheckpointSaver[Any]) -> Agent:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("which?"))

    return Agent("Solo", model=ScriptedModel([call("ask")]), tools=[ask], checkpointer=saver)


def damage(file: str, table: str, column: str, value: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {value.format(column)}")
        connection.commit()


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("fault", DAMAGES)
async def test_a_damaged_thread_is_a_typed_error_that_names_it(
    kind: str, fault: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "a.db")
    async with opened(kind, file) as saver:
        await asking(saver).ainvoke("hi", thread_id="t-1")
    damage(file, *DAMAGES[fault])

    async with opened(kind, file) as saver:
        for operation in OPERATIONS.values():
            with pytest.raises(StorageError, match=r"thread 't-1' .*aforget\('t-1'\)") as raised:
                await operation(asking(saver))
            assert raised.value.code == "damaged_thread"

        await asking(saver).aforget("t-1")
        assert (await asking(saver).ainvoke("hi", thread_id="t-1")).interrupts


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("value", [TORN, """replace({0}, '"msgpack", "', '"msgpack", "_')"""])
async def test_a_damaged_note_is_a_typed_error_that_names_its_thread(
    kind: str, value: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "a.db")
    async with opened(kind, file) as saver:
        await Note(with_async_methods(saver), "t-1", "spend").write({"tokens": 5})
    damage(file, "checkpoints", "metadata", value)

    async with opened(kind, file) as saver:
        with pytest.raises(StorageError, match="thread 't-1'"):
            await Note(with_async_methods(saver), "t-1", "spend").read()


async def test_a_saver_that_was_closed_is_no_damaged_thread(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        agent = asking(saver)
        await agent.ainvoke("hi", thread_id="t-1")

    with pytest.raises(ValueError, match="no active connection"):
        await agent.ahistory("t-1")
