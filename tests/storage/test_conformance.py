"""Our savers pass LangGraph's conformance suite, and their threads survive what it does to them."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.storage import LazySaver, open_saver, with_async_methods
from agentgraph.testing import ScriptedModel, call

OPTIONAL = {"delete_for_runs", "copy_thread", "prune"}


async def failures(saver: BaseCheckpointSaver[Any], without: frozenset[str] = frozenset()) -> str:
    """Return what of the suite a saver fails or lacks."""

    async def lend() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield saver

    suite = checkpointer_test(name=type(saver).__name__, skip_capabilities=set(without))(lend)
    report = await validate(suite)
    missing = [c.value for c in Capability if c.value not in without]
    missing = [name for name in missing if not report.results[name].detected]
    failed = [failure for result in report.results.values() for failure in result.failures or ()]
    return "\n".join([*missing, *failed])


async def test_memory_conforms() -> None:
    assert await failures(open_saver("memory")) == ""


async def test_sqlite_conforms(tmp_path: Path) -> None:
    saver = open_saver(f"sqlite:///{tmp_path / 'a.db'}")
    assert await failures(saver) == ""
    await close(saver)


async def test_postgres_conforms(postgres_url: str) -> None:
    saver = open_saver(postgres_url)
    assert await failures(saver) == ""
    await close(saver)


async def test_synchronous_saver_conforms_as_far_as_it_goes(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", check_same_thread=False)) as connection:
        saver = with_async_methods(SqliteSaver(connection))
        assert await failures(saver, frozenset(OPTIONAL)) == ""


async def close(saver: BaseCheckpointSaver[Any]) -> None:
    if isinstance(saver, LazySaver):
        await saver.aclose()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
    urls = {"memory": "memory", "sqlite": f"sqlite:///{tmp_path / 'a.db'}"}
    url = urls.get(request.param) or request.getfixturevalue("postgres_url")
    saver = open_saver(url)
    yield saver
    await close(saver)


@pytest.fixture
def t() -> str:
    """Return a thread of this test alone: all tests share one Postgres."""
    return token_hex(4)


def pair(saver: BaseCheckpointSaver[Any]) -> Agent:
    """Return a supervisor whose sub-agent counts the messages that it sees."""
    leaf = Agent("leaf", "Counts", model=ScriptedModel(lambda messages: f"seen {len(messages)}"))
    return Agent("root", agents=[leaf], model=ScriptedModel(lambda _: "x"), checkpointer=saver)


async def talk(agent: Agent, thread_id: str, turns: int) -> list[str]:
    await agent.ainvoke("@leaf hello", thread_id=thread_id)
    return [(await agent.ainvoke(f"turn {n}", thread_id=thread_id)).text for n in range(turns)]


async def texts(agent: Agent, thread_id: str) -> list[str]:
    return [str(message.text) for message in await agent.ahistory(thread_id)]


async def rows(saver: BaseCheckpointSaver[Any], thread_id: str) -> int:
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    return len([row async for row in saver.alist(config)])


@pytest.mark.parametrize("turns", [1, 7, 23])
async def test_pruned_thread_keeps_its_conversation(
    saver: BaseCheckpointSaver[Any], t: str, turns: int
) -> None:
    agent, whole = pair(saver), pair(open_saver("memory"))
    await talk(whole, t, turns)
    await talk(agent, t, turns)
    before, stored = await texts(agent, t), await rows(saver, t)

    await saver.aprune([t])

    assert await texts(agent, t) == before
    assert await rows(saver, t) < stored
    expected = (await whole.ainvoke("go on", thread_id=t)).text
    assert (await agent.ainvoke("go on", thread_id=t)).text == expected


def waiting(saver: BaseCheckpointSaver[Any]) -> Agent:
    """Return an agent that asks a human at the word "pay": its checkpoints then are changes."""

    def pay() -> str:
        """Pay."""
        return str(interrupt("pay?"))

    model = ScriptedModel(
        lambda messages: call("pay") if messages[-1].text == "pay" else f"{len(messages)}"
    )
    return Agent("payer", model=model, tools=[pay], checkpointer=saver)


async def test_pruned_thread_still_waits_for_its_answer(
    saver: BaseCheckpointSaver[Any], t: str
) -> None:
    agent = waiting(saver)
    for n in range(6):
        await agent.ainvoke(f"turn {n}", thread_id=t)
    reply = await agent.ainvoke("pay", thread_id=t)
    before = (await texts(agent, t))[:13]

    await saver.aprune([t])

    assert (await texts(agent, t))[:13] == before
    await agent.aresume(t, {reply.interrupts[0].id: "yes"})
    assert (await texts(agent, t))[:13] == before
    assert "yes" in await texts(agent, t)


async def test_deleted_runs_leave_what_a_waiting_run_needs(
    saver: BaseCheckpointSaver[Any], t: str
) -> None:
    agent = waiting(saver)
    for n in range(6):
        await agent.ainvoke(f"turn {n}", thread_id=t, config={"metadata": {"run_id": t}})
    await agent.ainvoke("pay", thread_id=t)
    before, stored = await texts(agent, t), await rows(saver, t)

    await saver.adelete_for_runs([t])

    assert await texts(agent, t) == before
    assert await rows(saver, t) < stored


async def test_copied_thread_goes_on_by_itself(saver: BaseCheckpointSaver[Any], t: str) -> None:
    agent = pair(saver)
    await talk(agent, t, 9)
    before = await texts(agent, t)

    await saver.acopy_thread(t, f"{t}-copy")
    reply = await agent.ainvoke("go on", thread_id=f"{t}-copy")

    assert reply.agent == "root/leaf"
    assert await texts(agent, f"{t}-copy") == [*before, "go on", reply.text]
    assert await texts(agent, t) == before


async def test_copy_to_a_thread_with_a_history_is_refused(
    saver: BaseCheckpointSaver[Any], t: str
) -> None:
    agent = pair(saver)
    await talk(agent, t, 1)
    await talk(agent, f"{t}-b", 1)

    with pytest.raises(ValueError, match="-b' has checkpoints"):
        await saver.acopy_thread(t, f"{t}-b")


async def test_deleted_runs_leave_what_later_runs_need(
    saver: BaseCheckpointSaver[Any], t: str
) -> None:
    agent = pair(saver)
    for n in range(5):
        await agent.ainvoke(f"turn {n}", thread_id=t, config={"metadata": {"run_id": f"{t}-{n}"}})
    before = await texts(agent, t)

    await saver.adelete_for_runs([f"{t}-{n}" for n in range(4)])

    assert await texts(agent, t) == before


async def test_deleted_last_run_is_gone(saver: BaseCheckpointSaver[Any], t: str) -> None:
    agent = pair(saver)
    await agent.ainvoke("one", thread_id=t, config={"metadata": {"run_id": f"{t}-1"}})
    before = await texts(agent, t)
    await agent.ainvoke("two", thread_id=t, config={"metadata": {"run_id": f"{t}-2"}})

    await saver.adelete_for_runs([f"{t}-2"])

    assert await texts(agent, t) == before


@pytest.mark.parametrize("wrong", [{"strategy": "keep"}, {}])
async def test_wrong_arguments_are_refused(
    saver: BaseCheckpointSaver[Any], t: str, wrong: dict[str, str]
) -> None:
    thread_ids: Any = [t] if wrong else t
    with pytest.raises((ValueError, TypeError), match=r"keep_latest or delete|list of ids"):
        await saver.aprune(thread_ids, **wrong)


def test_synchronous_methods_do_the_same(tmp_path: Path) -> None:
    for url in ("memory", f"sqlite:///{tmp_path / 'a.db'}"):
        saver = open_saver(url)
        agent = pair(saver)
        agent.invoke("one", thread_id="t", config={"metadata": {"run_id": "run1"}})
        saver.copy_thread("t", "copy")
        saver.prune(["t"])
        saver.delete_for_runs(["run1"])
        config: RunnableConfig = {"configurable": {"thread_id": "copy"}}
        assert [*saver.list(config)] == []


async def test_agent_runs_on_a_synchronous_saver_at_all_levels(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", check_same_thread=False)) as connection:
        agent = pair(SqliteSaver(connection))
        await talk(agent, "t", 3)
        assert (await agent.ainvoke("go on", thread_id="t")).agent == "root/leaf"
        assert len(await texts(agent, "t")) == 10
        await agent.aforget("t")
        assert await texts(agent, "t") == []
