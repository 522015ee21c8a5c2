"""A run does not load its thread's last checkpoint once more; it sees the thread as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.storage import open_saver, with_first_read
from agentgraph.testing import ScriptedModel, call

T: RunnableConfig = {"configurable": {"thread_id": "t"}}


class CountingSaver(InMemorySaver):
    """Counts how often the last checkpoint of a thread is read."""

    reads: ClassVar[list[str]] = []

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        if not config["configurable"].get("checkpoint_id"):
            self.reads.append(config["configurable"]["thread_id"])
        return super().get_tuple(config)


class SlottedSaver(InMemorySaver):
    __slots__ = ("mark",)


class ClosingSaver(InMemorySaver):
    def __del__(self) -> None:
        self.storage.clear()


@pytest.fixture
def saver() -> CountingSaver:
    CountingSaver.reads.clear()
    return CountingSaver()


async def put(saver: Any, thread_id: str = "t", ns: str = "") -> CheckpointTuple:
    config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}
    stored = await saver.aput(config, empty_checkpoint(), {"step": 1}, {})
    found: CheckpointTuple = await saver.aget_tuple(stored)
    return found


def asking() -> str:
    """Ask a human."""
    return f"decided {interrupt('which?')}"


async def test_a_turn_reads_the_last_checkpoint_once(saver: CountingSaver) -> None:
    agent = Agent("solo", model=ScriptedModel(["one", "two"]), checkpointer=saver)
    await agent.ainvoke("hi", thread_id="t")
    saver.reads.clear()
    assert (await agent.ainvoke("again", thread_id="t")).text == "two"
    assert saver.reads == ["t"]
    assert [m.text for m in await agent.ahistory("t")] == ["hi", "one", "again", "two"]


async def test_a_decision_reads_it_no_more_often_than_is_needed(saver: CountingSaver) -> None:
    model = ScriptedModel([call("asking"), "done"])
    agent = Agent("solo", model=model, tools=[asking], checkpointer=saver)
    (question,) = (await agent.ainvoke("hi", thread_id="t")).interrupts
    saver.reads.clear()
    assert (await agent.aresume("t", {question.id: "blue"})).text == "done"
    assert saver.reads == ["t", "t"]  # the question, and where the run goes on


@pytest.mark.parametrize("store", ["sqlite", "sync only", "bound to a loop"])
async def test_every_kind_of_saver_goes_on_from_the_last_turn(store: str, tmp_path: Path) -> None:
    file = str(tmp_path / "threads.db")

    async def talk(saver: Any) -> None:
        agent = Agent("solo", model=ScriptedModel(["one", "two", "three"]), checkpointer=saver)
        for text in ("hi", "again", "more"):
            await agent.ainvoke(text, thread_id="t")
        texts = [m.text for m in await agent.ahistory("t")]
        assert texts == ["hi", "one", "again", "two", "more", "three"]

    if store == "sqlite":
        await talk(open_saver(f"sqlite:///{file}"))
    elif store == "sync only":
        with SqliteSaver.from_conn_string(file) as saver:
            await talk(saver)
    else:
        async with AsyncSqliteSaver.from_conn_string(file) as loop_saver:
            await talk(loop_saver)


async def test_only_the_first_request_for_the_last_one_is_answered(saver: CountingSaver) -> None:
    first = await put(saver)
    second = await put(saver)
    begun = with_first_read(saver, first)  # not the last one: so that the answers can be told apart
    assert await begun.aget_tuple(T) is first
    assert (await begun.aget_tuple(T)).config == second.config  # type: ignore[union-attr]


async def test_a_copy_of_the_saver_does_not_answer_it_again(saver: CountingSaver) -> None:
    first, _ = await put(saver), await put(saver)
    begun = with_first_read(saver, first)
    copy = begun.with_allowlist([("datetime", "date")])
    assert await copy.aget_tuple(T) is first
    assert await begun.aget_tuple(T) is not first


async def test_other_requests_go_to_the_store(saver: CountingSaver) -> None:
    first, other, nested = await put(saver), await put(saver, "other"), await put(saver, "t", "sub")
    begun = with_first_read(saver, first)
    for found in (other, nested, first):
        read = await begun.aget_tuple(found.config)
        assert read is not first
        assert read is not None and read.config == found.config


async def test_it_writes_to_the_same_store(saver: CountingSaver) -> None:
    begun = with_first_read(saver, await put(saver))
    assert isinstance(begun, CountingSaver)
    written = await put(begun)
    read = await saver.aget_tuple(T)
    assert read is not None and read.config == written.config


@pytest.mark.parametrize("kind", [SlottedSaver, ClosingSaver])
async def test_a_saver_that_cannot_be_copied_is_used_as_it_is(kind: type[InMemorySaver]) -> None:
    saver = kind()
    assert with_first_read(saver, await put(saver)) is saver
