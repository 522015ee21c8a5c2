"""Writes to a SQLite file: each is whole, and locks the file only while SQLite works on it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph.errors import StorageError
from agentgraph.storage import open_saver
from agentgraph.storage.threaded import with_async_methods

Saver = BaseCheckpointSaver[str]

CHECKPOINT = empty_checkpoint()
CONFIG: RunnableConfig = {
    "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": CHECKPOINT["id"]}
}
WRITES = [("first", 1), ("second", 2)]

OPERATIONS: dict[str, Callable[[Saver], Awaitable[Any]]] = {
    "checkpoint": lambda saver: saver.aput(CONFIG, CHECKPOINT, {}, {}),
    "writes": lambda saver: saver.aput_writes(CONFIG, WRITES, "task"),
    "copy": lambda saver: saver.acopy_thread("t", "other"),
    "pruning": lambda saver: saver.aprune(["t"], strategy="delete"),
    "deletion": lambda saver: saver.adelete_thread("t"),
}


def write_from_elsewhere(path: Path) -> None:
    """Write over another connection, which waits a moment for the file."""
    with closing(sqlite3.connect(path, timeout=3)) as connection:
        connection.execute("BEGIN IMMEDIATE")


async def filled(path: Path) -> Saver:
    saver = open_saver(f"sqlite:///{path}")
    await saver.aput(CONFIG, CHECKPOINT, {}, {})
    await saver.aput_writes(CONFIG, WRITES, "task")
    return saver


@pytest.mark.parametrize("kind", OPERATIONS)
async def test_a_write_does_not_lock_the_file_while_its_loop_is_blocked(
    kind: str, tmp_path: Path
) -> None:
    saver = await filled(tmp_path / "a.db")

    write = asyncio.ensure_future(OPERATIONS[kind](saver))
    while not write.done():
        await asyncio.wait([write], timeout=0)
        write_from_elsewhere(tmp_path / "a.db")  # blocks the loop between two steps of the write

    assert write.exception() is None


@pytest.mark.parametrize("kind", ["writes", "deletion", "copy"])
async def test_a_write_that_fails_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    saver = await filled(tmp_path / "a.db")
    statement = {"writes": "INSERT", "deletion": "DELETE", "copy": "INSERT"}[kind]
    place = "OLD" if statement == "DELETE" else "NEW"
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute(
            f"CREATE TRIGGER refuse BEFORE {statement} ON writes WHEN {place}.idx = 1 "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        before = list(connection.iterdump())

    other: RunnableConfig = {"configurable": {**CONFIG["configurable"], "checkpoint_id": "other"}}
    operation = OPERATIONS[kind]
    with pytest.raises(StorageError, match="refused"):
        await (saver.aput_writes(other, WRITES, "task") if kind == "writes" else operation(saver))

    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert list(connection.iterdump()) == before
    await saver.aput(CONFIG, CHECKPOINT, {}, {})


@pytest.mark.parametrize("kind", ["checkpoint", "writes", "deletion"])
async def test_a_write_cut_off_leaves_no_lock_on_the_file_of_a_users_saver(
    kind: str, tmp_path: Path
) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "a.db")) as own:
        saver = with_async_methods(own)
        await saver.aput(CONFIG, CHECKPOINT, {}, {})

        write = asyncio.ensure_future(OPERATIONS[kind](saver))
        while not own.conn.in_transaction:
            await asyncio.wait([write], timeout=0)
        write.cancel()
        await asyncio.wait([write])

        assert write.cancelled()
        write_from_elsewhere(tmp_path / "a.db")
