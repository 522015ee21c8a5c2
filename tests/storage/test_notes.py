"""Notes of a thread, in every store: stored at once, replaced, deleted and copied with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent
from agentgraph.storage import Note, open_saver, with_async_methods
from agentgraph.testing import ScriptedModel


@pytest.fixture(params=["memory", "sqlite", "postgres", "langgraph"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "sqlite":
            return open_saver(f"sqlite:///{tmp_path / 'threads.db'}")
        case "postgres":
            return open_saver(str(request.getfixturevalue("postgres").url))
        case "langgraph":
            return with_async_methods(InMemorySaver())
    return open_saver("memory")


async def test_note_has_what_was_written_last(saver: Any) -> None:
    note = Note(saver, "t", "effects")
    assert await note.read() is None
    messages = {None: [HumanMessage("go", id="1"), AIMessage("done 🍵", id="2")]}
    for value in ({"turn": "a", "journal": messages}, {"turn": "b", "journal": {}}):
        await note.write(value)
        assert await note.read() == value
    assert await Note(saver, "t", "other").read() is None
    assert await Note(saver, "u", "effects").read() is None


async def test_note_is_no_part_of_the_history_of_its_thread(saver: Any) -> None:
    agent = Agent("a", model=ScriptedModel(["Hello!", "Bye."]), checkpointer=saver)
    note = Note(saver, "t", "effects")
    await note.write(["before"])
    assert await agent.ahistory("t") == []
    await agent.ainvoke("hi", thread_id="t")
    await note.write(["after"])
    reply = await agent.ainvoke("bye", thread_id="t")
    assert reply.text == "Bye."
    config: Any = {"configurable": {"thread_id": "t"}}
    states = [
        state
        async for state in agent.graph.copy({"checkpointer": saver}).aget_state_history(config)
    ]
    assert len(states) > 4 and states[0].values["messages"]
    assert await note.read() == ["after"]


async def test_note_is_deleted_with_its_thread(saver: Any) -> None:
    note = Note(saver, "t", "effects")
    await note.write(["kept"])
    await saver.adelete_thread("t")
    assert await note.read() is None


async def test_note_is_copied_and_pruned_with_its_thread(tmp_path: Path) -> None:
    saver: Any = open_saver(f"sqlite:///{tmp_path / 'threads.db'}")
    await Note(saver, "t", "effects").write(["kept"])
    await saver.acopy_thread("t", "copy")
    await saver.aprune(["t"])
    for thread_id in ("t", "copy"):
        assert await Note(saver, thread_id, "effects").read() == ["kept"]
