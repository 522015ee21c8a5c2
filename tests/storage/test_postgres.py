"""Checkpoints on a real Postgres: shared by processes and loops, in order on each thread."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from agentgraph import Agent
from agentgraph.clock import clock
from agentgraph.graphs.public_graph import whole_state
from agentgraph.storage import LazySaver
from agentgraph.storage.postgres import SAVERS, open_postgres
from agentgraph.testing import ScriptedModel
from tests.postgres import Database, Way, new_database, new_server, ways

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40

SOLO = """
import sys
from agentgraph import Agent
from agentgraph.testing import ScriptedModel

text, *url = sys.argv[1:]
model = ScriptedModel(lambda m: f"answer {len(m) // 2}")
agent = Agent("Solo", model=model, checkpointer=url[0] if url else None)
print(agent.invoke(text, thread_id="t").text)
"""

TREE = """
import asyncio, json, sys
from langgraph.types import interrupt
from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call

def approve(what: str) -> str:
    "Ask a human."
    return f"{what}: {interrupt(what)}"

decisions = json.loads(sys.argv[1])
leaf = Agent("leaf", model=ScriptedModel(["done"] if decisions else [call("approve", what="pay")]),
             tools=[approve])
mid = Agent("mid", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf])
root = Agent("root", model=ScriptedModel([call("transfer_to_mid")]), agents=[mid])
reply = root.resume("t", decisions) if decisions else root.invoke("go", thread_id="t")
texts = [m.text for m in asyncio.run(root.ahistory("t"))]
print(json.dumps([reply.text, reply.agent, [i.id for i in reply.interrupts], texts]))
"""

SERVER = """
import signal
from tests.postgres import new_server

with new_server() as server:
    # Blocked, so that one that is sent at once is not lost before this process waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    print(server.folder, flush=True)
    signal.sigwait([signal.SIGINT])
"""


def solo(saver: LazySaver | str | None) -> Agent:
    model = ScriptedModel(lambda messages: f"answer {len(messages) // 2}")
    return Agent("Solo", model=model, checkpointer=saver)


def begin(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "LANGGRAPH_STRICT_MSGPACK": "true",
            **environment,
        },
    )


def run(script: str, *arguments: str, **environment: str) -> str:
    process = begin(script, *arguments, **environment)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    return out.strip()


def on(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


async def put(saver: LazySaver, thread_id: str) -> None:
    await saver.aput(on(thread_id), empty_checkpoint(), {}, {})


@asynccontextmanager
async def opened(url: str, lanes: int = SAVERS) -> AsyncIterator[LazySaver]:
    saver = LazySaver(lambda: open_postgres(url, savers=lanes))
    yield saver
    await saver.aclose()


@contextmanager
def rows_held(database: Database, thread_id: str) -> Iterator[None]:
    """Let whoever would change a thread's rows wait."""
    with psycopg.connect(database.url) as connection:
        query = "SELECT 1 FROM checkpoints WHERE thread_id = %s FOR UPDATE"
        assert connection.execute(query, [thread_id]).fetchall()
        yield


async def neighbours(saver: LazySaver) -> tuple[str, str]:
    """Return two threads on different lanes."""
    store = await saver._store()
    first = store.saver_for("0", frozenset())
    return "0", next(t for t in map(str, range(99)) if store.saver_for(t, frozenset()) is not first)


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.name)
def test_server_starts_in_every_way_this_user_has_and_leaves_nothing(way: Way) -> None:
    with new_server(way) as server:
        with new_database(server.url) as database:
            assert database.execute("SELECT current_user") == [("zaphod",)]
        connection = psycopg.connect(server.url)

    assert not server.folder.exists()
    with connection, pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_server_ends_with_the_process_that_started_it(sent: signal.Signals) -> None:
    process = begin(SERVER)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.exists()

    process.send_signal(sent)
    process.communicate(timeout=PATIENCE_S)

    deadline = clock().monotonic() + PATIENCE_S
    while folder.exists():
        assert clock().monotonic() < deadline


def test_conversation_goes_on_in_a_new_process(postgres: Database) -> None:
    assert run(SOLO, "first", postgres.url) == "answer 1"
    assert run(SOLO, "second", postgres.url) == "answer 2"


def test_environment_names_the_database(postgres: Database) -> None:
    assert run(SOLO, "first", POSTGRES_URL=postgres.url) == "answer 1"
    assert run(SOLO, "second", POSTGRES_URL=postgres.url) == "answer 2"


def test_decision_on_a_nested_interrupt_is_taken_in_a_new_process(postgres: Database) -> None:
    text, _, ids, _ = json.loads(run(TREE, "{}", POSTGRES_URL=postgres.url))
    assert (text, len(ids)) == ("", 1)

    decisions = json.dumps({ids[0]: "yes"})
    text, agent, ids, texts = json.loads(run(TREE, decisions, POSTGRES_URL=postgres.url))

    assert (text, agent, ids) == ("done", "root/mid/leaf", [])
    assert texts[0] == "go"
    assert texts.count("pay: yes") == 1


def test_processes_that_open_a_new_database_at_once_all_succeed(postgres: Database) -> None:
    processes = [begin(SOLO, "hi", postgres.url) for _ in range(3)]

    ended = [process.communicate(timeout=PATIENCE_S) for process in processes]

    assert {err for _, err in ended} == {""}
    assert [process.returncode for process in processes] == [0, 0, 0]


async def test_savers_that_open_a_new_database_at_once_all_succeed(postgres: Database) -> None:
    savers = [LazySaver(lambda: open_postgres(postgres.url)) for _ in range(6)]

    await asyncio.gather(*(saver.aopen() for saver in savers))

    assert [await saver.aget_tuple(on("t")) for saver in savers] == [None] * 6


async def test_fifty_threads_at_once_share_a_few_connections(postgres: Database) -> None:
    agent = solo(postgres.url)
    # The connection that finds out whether there is a server has to be gone before they count.
    await agent.ainvoke("hi", thread_id="first")
    most = 0

    for turn in (1, 2):
        replies = asyncio.gather(*(agent.ainvoke("hi", thread_id=str(n)) for n in range(50)))
        while not replies.done():
            most = max(most, await asyncio.to_thread(postgres.connections))
        assert {reply.text for reply in await replies} == {f"answer {turn}"}

    assert 1 < most <= SAVERS + 1  # and the one that takes threads


def test_loops_of_one_process_share_a_conversation(postgres: Database) -> None:
    agent = solo(postgres.url)
    texts: list[str] = []

    def ask() -> None:
        texts.append(asyncio.run(agent.ainvoke("hi", thread_id="t")).text)

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    texts.append(agent.invoke("hi", thread_id="t").text)

    assert texts == ["answer 1", "answer 2", "answer 3"]


async def test_loops_use_one_database_at_the_same_time(postgres: Database) -> None:
    agent = solo(postgres.url)

    replies = await asyncio.gather(
        *(agent.ainvoke("hi", thread_id="t") for _ in range(3)),
        *(asyncio.to_thread(agent.invoke, "hi", thread_id="t") for _ in range(3)),
    )

    assert sorted(reply.text for reply in replies) == [f"answer {n}" for n in range(1, 7)]


async def test_forgotten_thread_leaves_no_row(postgres: Database) -> None:
    agent = solo(postgres.url)
    for thread_id in ("kept", "gone"):
        await agent.ainvoke("hi", thread_id=thread_id)

    await agent.aforget("gone")

    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    with psycopg.connect(postgres.url) as connection:
        for table in tables:
            rows = connection.execute(f"SELECT DISTINCT thread_id FROM {table}").fetchall()
            assert rows == [("kept",)]


async def test_thread_does_not_wait_for_one_on_another_lane(postgres: Database) -> None:
    async with opened(postgres.url) as saver:
        held, free = await neighbours(saver)
        await put(saver, held)
        with rows_held(postgres, held):
            delete = asyncio.create_task(saver.adelete_thread(held))
            await postgres.blocked()

            async with asyncio.timeout(PATIENCE_S):
                assert await saver.aget_tuple(on(free)) is None

            assert not delete.done()
        await delete


async def test_operations_on_a_thread_keep_their_order(postgres: Database) -> None:
    async with opened(postgres.url) as saver:
        other = saver.with_allowlist([("builtins", "complex")])
        held, free = await neighbours(saver)
        await put(saver, held)
        await asyncio.gather(*(put(saver, str(n)) for n in range(50, 99)))
        with rows_held(postgres, held):
            delete = asyncio.create_task(saver.adelete_thread(held))
            await postgres.blocked()
            read = asyncio.create_task(other.aget_tuple(on(held)))
            for _ in range(9):
                await other.aget_tuple(on(free))
            assert not read.done()
        await delete

        assert await read is None


async def test_cancelled_operation_leaves_its_lane_free(postgres: Database) -> None:
    async with opened(postgres.url) as saver:
        await put(saver, "t")
        with rows_held(postgres, "t"):
            delete = asyncio.create_task(saver.adelete_thread("t"))
            await postgres.blocked()

            delete.cancel()
            with pytest.raises(asyncio.CancelledError):
                await delete

            assert await saver.aget_tuple(on("t")) is not None


async def test_prompt_with_what_postgres_cannot_hold_is_stored(postgres: Database) -> None:
    model = ScriptedModel(lambda messages: "answer")
    odd = "\0 and \ud800"
    async with opened(postgres.url) as saver:
        agent = Agent("Solo", model=model, checkpointer=saver, system_prompt=lambda _: odd)
        await agent.ainvoke("first", thread_id="t")
        state = await whole_state(agent.graph, {"configurable": {"thread_id": "t"}})

    assert state.values["system_prompt"].startswith("\ufffd and ?")
