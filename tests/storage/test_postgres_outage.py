"""A Postgres that ends connections, goes away and comes back."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import traceback
from collections.abc import Iterator

import psycopg
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig

from agentgraph import Agent
from agentgraph.agents.spec.values import Durability
from agentgraph.errors import StorageError
from agentgraph.storage import LazySaver, open_saver
from agentgraph.storage.postgres import SAVERS, open_postgres
from agentgraph.testing import ScriptedModel, call
from tests.postgres import PASSWORD, SUPERUSER, Database, Server

BOUND_S = 20

QUICK = "&connect_timeout=1"
T: RunnableConfig = {"configurable": {"thread_id": "t"}}


def solo(saver: LazySaver | str) -> Agent:
    model = ScriptedModel(lambda messages: f"answer {len(messages) // 2}")
    return Agent("Solo", model=model, checkpointer=saver)


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Walk along what an error carries, shown in a traceback or not."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def fill(agent: Agent) -> None:
    """Open as many connections as there may be."""
    await asyncio.gather(*(agent.ainvoke("hi", thread_id=str(n)) for n in range(50)))


async def test_connections_killed_between_turns_cost_nothing(postgres: Database) -> None:
    agent = solo(postgres.url)
    await fill(agent)
    assert postgres.kill_connections() > 1

    reply = await agent.ainvoke("hi", thread_id="0")

    assert reply.text == "answer 2"
    await fill(agent)
    assert postgres.connections() <= SAVERS + 1


async def test_connections_killed_while_nothing_is_written_cost_nothing(
    postgres: Database,
) -> None:
    def kill() -> str:
        """Kill."""
        return f"killed {postgres.kill_connections() > 0}"

    model = ScriptedModel([call("kill"), "done"])
    agent = Agent("a", model=model, tools=[kill], checkpointer=postgres.url, durability="sync")

    assert (await agent.ainvoke("go", thread_id="t")).text == "done"
    assert [m.text for m in await agent.ahistory("t")] == ["go", "", "killed True", "done"]


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_operation_cut_off_in_mid_turn_costs_that_call_and_loses_nothing(
    postgres: Database, durability: Durability
) -> None:
    ran: list[str] = []
    locked = threading.Event()

    def count() -> str:
        """Count."""
        ran.append("count")
        return "counted"

    def block() -> str:
        """Let the next operation wait."""
        held.execute("LOCK TABLE checkpoints, checkpoint_writes IN ACCESS EXCLUSIVE MODE")
        locked.set()
        return "blocked"

    model = ScriptedModel([call("count"), call("block"), "I see", "I see"])
    agent = Agent(
        "a",
        model=model,
        tools=[count, block],
        checkpointer=postgres.url,
        durability=durability,
    )
    await agent.aforget("nobody")
    with psycopg.connect(postgres.url) as held:
        turn = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
        # The lock itself may have to wait, for what is still being written of the call before.
        assert await asyncio.to_thread(locked.wait, BOUND_S)
        await postgres.blocked()
        await asyncio.to_thread(postgres.kill_connections)
        with pytest.raises(StorageError, match="lost or is out of reach"):
            await turn
        held.close()

    reply = await agent.ainvoke("what happened?", thread_id="t")

    assert reply.text == "I see"
    seen = [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert (ran, seen) == (["count"], ["counted", "blocked"])


async def test_statement_that_is_refused_is_no_riddle(postgres: Database) -> None:
    agent = solo(postgres.url)
    await agent.ainvoke("heart of gold", thread_id="t")
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DROP TABLE checkpoints")

    with pytest.raises(StorageError, match=r"refused an operation \(UndefinedTable\)") as caught:
        await agent.ainvoke("heart of gold", thread_id="t")

    assert list(chain_of(caught.value)) == [caught.value]


async def test_lost_server_is_told_in_time_and_names_no_part_of_its_url(
    postgres_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_server.url + QUICK
    parts = (url, SUPERUSER, PASSWORD, str(postgres_server.folder))
    agent = solo(url)
    for name in (None, "psycopg"):
        caplog.set_level(logging.DEBUG, name)
    await fill(agent)
    postgres_server.stop()

    for operation in (agent.ainvoke("hi", thread_id="0"), agent.ahistory("0")):
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(StorageError, match="check that the server runs") as caught:
                await operation

        assert list(chain_of(caught.value)) == [caught.value]
        told = "".join(traceback.format_exception(caught.value))
        assert [part for part in parts if part in told or part in caplog.text] == []
    assert "error connecting in 'agentgraph': OperationalError" in caplog.text
    postgres_server.start()
    assert (await agent.ainvoke("hi", thread_id="0")).text == "answer 2"
    await fill(agent)
    assert [part for part in parts if part in caplog.text] == []


async def test_those_who_queue_for_a_lost_server_give_up_together(postgres_server: Server) -> None:
    saver = open_saver(postgres_server.url + QUICK)
    await saver.aget_tuple(T)
    postgres_server.stop()

    async with asyncio.timeout(BOUND_S):
        ended = await asyncio.gather(
            *(saver.aget_tuple(T) for _ in range(50)),
            return_exceptions=True,
        )

    assert {type(error) for error in ended} == {StorageError}


def test_loop_can_end_while_the_server_does_not_answer(postgres_server: Server) -> None:
    saver = open_saver(postgres_server.url)

    async def leave(mute: socket.socket) -> None:
        await saver.aget_tuple(T)
        postgres_server.stop()
        mute.bind(str(postgres_server.folder / ".s.PGSQL.5432"))
        mute.listen()
        read = asyncio.create_task(saver.aget_tuple(T))
        caller, _ = await asyncio.to_thread(mute.accept)
        callers.append(caller)
        assert not read.done()

    callers: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as mute:
        loop = threading.Thread(target=lambda: asyncio.run(leave(mute)), daemon=True)
        loop.start()
        loop.join(BOUND_S)
        assert not loop.is_alive()
    for caller in callers:
        caller.close()


async def test_server_that_is_down_at_first_is_used_once_it_is_up(postgres_server: Server) -> None:
    agent = solo(postgres_server.url)
    postgres_server.stop()
    for _ in range(2):
        with pytest.raises(StorageError, match="check POSTGRES_URL"):
            await agent.ainvoke("hi", thread_id="t")
    postgres_server.start()

    assert (await agent.ainvoke("hi", thread_id="t")).text == "answer 1"


async def test_server_fails_at_start_if_the_database_is_not_there(postgres: Database) -> None:
    saver = LazySaver(lambda: open_postgres(postgres.url.replace("/test_", "/no_such_")))

    with pytest.raises(StorageError) as caught:
        await saver.aopen()

    assert "no_such_" not in "".join(map(str, chain_of(caught.value)))


async def test_store_that_was_closed_is_opened_again_by_its_next_use(postgres: Database) -> None:
    saver = LazySaver(lambda: open_postgres(postgres.url))
    await saver.aopen()
    assert postgres.connections() > 0

    await saver.aclose()
    await saver.aclose()

    await postgres.deserted()
    assert (await solo(saver).ainvoke("hi", thread_id="t")).text == "answer 1"
    assert postgres.connections() > 0
    await saver.aclose()


async def test_operation_that_meets_the_close_ends(postgres: Database) -> None:
    saver = LazySaver(lambda: open_postgres(postgres.url))
    await saver.aopen()
    with psycopg.connect(postgres.url) as held:
        held.execute("LOCK TABLE checkpoints IN ACCESS EXCLUSIVE MODE")
        first, second = (asyncio.create_task(saver.aget_tuple(T)) for _ in range(2))
        await postgres.blocked()
        await saver.aclose()

    assert await first is None
    with pytest.raises(StorageError, match="PoolClosed"):
        await second


async def test_logs_of_other_connections_are_left_alone(
    postgres_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (None, "psycopg"):
        caplog.set_level(logging.DEBUG, name)
    await solo(postgres_server.url).ainvoke("hi", thread_id="t")
    assert str(postgres_server.folder) not in caplog.text

    connection = await psycopg.AsyncConnection.connect(postgres_server.url)
    await connection.close()

    assert str(postgres_server.folder) in caplog.text


async def test_limit_on_transactions_does_not_end_a_claim(postgres: Database) -> None:
    mine, theirs = (LazySaver(lambda: open_postgres(postgres.url)) for _ in range(2))
    try:
        # Beforehand: on a busy machine the migration takes longer than the limit. What takes
        # threads connects with the first of them, and so under the limit.
        await mine.aopen()
        await theirs.aopen()
        limit = f"ALTER DATABASE {postgres.name} SET transaction_timeout = '100ms'"
        await asyncio.to_thread(postgres.execute, limit)
        claim = await mine.atake("t")
        assert claim is not None
        await asyncio.to_thread(postgres.execute, "SELECT pg_sleep(0.5)")

        assert await theirs.atake("t") is None
        await claim.release()
        again = await theirs.atake("t")
        assert again is not None
        await again.release()
    finally:
        await mine.aclose()
        await theirs.aclose()
