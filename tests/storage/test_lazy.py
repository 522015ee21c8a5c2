"""A lazy saver opens, closes, and says what has failed."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from agentgraph import Agent
from agentgraph.errors import StorageError
from agentgraph.running import Run, inside_run
from agentgraph.storage import LazySaver, open_saver
from agentgraph.testing import ScriptedModel

T: RunnableConfig = {"configurable": {"thread_id": "t"}}


def solo(saver: LazySaver) -> Agent:
    model = ScriptedModel(lambda messages: f"answer {len(messages) // 2}")
    return Agent("Solo", model=model, checkpointer=saver)


def lazy(url: str) -> LazySaver:
    saver = open_saver(url)
    assert isinstance(saver, LazySaver)
    return saver


async def test_file_that_loses_its_tables_is_named(tmp_path: Path) -> None:
    agent = solo(lazy(f"sqlite:///{tmp_path / 'a.db'}"))
    await agent.ainvoke("hi", thread_id="t")
    with closing(sqlite3.connect(tmp_path / "a.db")) as other:
        other.execute("DROP TABLE checkpoints")

    with pytest.raises(StorageError, match=r"a\.db' cannot be used \(OperationalError") as caught:
        await agent.ainvoke("hi", thread_id="t")

    assert caught.value.code == "storage"


async def test_error_that_is_not_the_stores_is_left_as_it_is(tmp_path: Path) -> None:
    saver = lazy(f"sqlite:///{tmp_path / 'a.db'}")

    with pytest.raises(KeyError, match="thread_id"):
        await saver.aget_tuple({"configurable": {}})


async def test_saver_opens_at_once_when_asked(tmp_path: Path) -> None:
    await lazy(f"sqlite:///{tmp_path / 'a.db'}").aopen()

    assert (tmp_path / "a.db").exists()


async def test_saver_that_cannot_open_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot open the SQLite file"):
        await lazy(f"sqlite:///{tmp_path / 'nowhere' / 'a.db'}").aopen()


async def test_closed_saver_is_opened_again_by_its_next_use(tmp_path: Path) -> None:
    saver = lazy(f"sqlite:///{tmp_path / 'a.db'}")
    await solo(saver).ainvoke("hi", thread_id="t")
    assert (tmp_path / "a.db-wal").exists()

    await saver.aclose()
    await saver.aclose()

    assert not (tmp_path / "a.db-wal").exists()  # SQLite takes it away with the last connection
    assert (await solo(saver).ainvoke("hi", thread_id="t")).text == "answer 2"


async def test_saver_that_could_not_be_opened_can_be_closed(tmp_path: Path) -> None:
    saver = lazy(f"sqlite:///{tmp_path / 'nowhere' / 'a.db'}")
    with pytest.raises(StorageError):
        await saver.aopen()

    await saver.aclose()


async def test_operation_that_meets_the_close_is_told_to_call_again(tmp_path: Path) -> None:
    saver = lazy(f"sqlite:///{tmp_path / 'a.db'}")
    await saver.aopen()
    reads = [asyncio.ensure_future(saver.aget_tuple(T)) for _ in range(9)]

    await asyncio.gather(saver.aclose(), asyncio.wait(reads))

    failures = [failure for read in reads if (failure := read.exception()) is not None]
    assert failures
    assert {str(failure).partition("was ")[2] for failure in failures} == {
        "closed meanwhile: call again"
    }


async def test_reader_of_a_listing_may_ask_something_else(tmp_path: Path) -> None:
    saver = lazy(f"sqlite:///{tmp_path / 'a.db'}")
    await solo(saver).ainvoke("hi", thread_id="t")

    async for found in saver.alist(T):
        assert await saver.aget_tuple(found.config) is not None


async def test_write_that_is_cancelled_leaves_the_file_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    saver, committing, go_on = lazy(f"sqlite:///{path}"), asyncio.Event(), asyncio.Event()
    await solo(saver).ainvoke("hi", thread_id="t")
    commit = aiosqlite.Connection.commit

    async def slow(connection: aiosqlite.Connection) -> None:
        committing.set()
        await go_on.wait()
        await commit(connection)

    monkeypatch.setattr(aiosqlite.Connection, "commit", slow)
    config: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    writing = asyncio.create_task(saver.aput(config, empty_checkpoint(), {}, {}))
    await committing.wait()
    writing.cancel()
    go_on.set()
    await asyncio.wait([writing])

    assert writing.cancelled()
    with closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


async def test_late_write_of_a_run_whose_turn_is_over_does_not_reach_the_store(
    tmp_path: Path,
) -> None:
    saver = lazy(f"sqlite:///{tmp_path / 'a.db'}")
    late: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    run = Run("r", "t")

    with inside_run(run):
        kept = await saver.aput(late, empty_checkpoint(), {}, {})
        run.has_ended = True
        with pytest.raises(asyncio.CancelledError):
            await saver.aput(late, empty_checkpoint(), {}, {})
        with pytest.raises(asyncio.CancelledError):
            await saver.aput_writes(kept, [("messages", "late")], "task")

    stored = [found async for found in saver.alist(late)]
    assert [one.config["configurable"]["checkpoint_id"] for one in stored] == [
        kept["configurable"]["checkpoint_id"]
    ]
    assert not stored[0].pending_writes
