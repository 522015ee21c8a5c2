"""One run at a time on a thread, among processes that share a store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgraph import Agent
from agentgraph.clock import clock
from agentgraph.errors import StorageError
from agentgraph.storage import LazySaver, open_saver
from agentgraph.testing import ScriptedModel, call
from tests.postgres import Database
from tests.processes import (
    PATIENCE_S,
    Refusals,
    asking,
    in_another,
    is_free,
    lazy,
    let_go,
    once,
    other,
    solo,
    states,
    working,
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    database: Database = request.getfixturevalue("postgres")
    return database.url


async def test_call_waits_for_the_turn_of_another_process_and_sees_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(lazy(url), monkeypatch)
    with working(url) as process:
        mine = asyncio.create_task(solo(url).ainvoke("mine", thread_id="t"))
        await asyncio.wait_for(refusals.seen.wait(), PATIENCE_S)
        assert not mine.done()
        let_go(process)

        assert (await mine).text == "work mine"
        assert process.communicate(timeout=PATIENCE_S)[0] == "work\n"


async def test_thread_of_a_killed_process_is_free_at_once(url: str) -> None:
    with working(url) as process:
        assert not await is_free(url)
        process.kill()
        process.wait(PATIENCE_S)

        async with asyncio.timeout(PATIENCE_S):
            reply = await solo(url).ainvoke("mine", thread_id="t")

    assert reply.text == "work mine"
    assert await is_free(url)


async def test_other_threads_do_not_wait(url: str) -> None:
    with working(url) as process:
        reply = await solo(url).ainvoke("mine", thread_id="other")
        assert process.poll() is None

    assert reply.text == "mine"


async def test_call_that_is_cancelled_while_it_waits_leaves_nothing_taken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(lazy(url), monkeypatch)
    with working(url) as process:
        waiting = asyncio.create_task(solo(url).ainvoke("mine", thread_id="t"))
        await asyncio.wait_for(refusals.seen.wait(), PATIENCE_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        let_go(process)
        process.wait(PATIENCE_S)

    assert await is_free(url)
    assert (await solo(url).ainvoke("again", thread_id="t")).text == "work again"


async def test_take_that_is_cancelled_at_any_point_leaves_nothing_taken(url: str) -> None:
    saver = lazy(url)
    await saver.aopen()
    for steps in range(12):
        taking = asyncio.create_task(saver.atake("t"))
        for _ in range(steps):
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0)
        taking.cancel()
        await asyncio.wait([taking])
        if not taking.cancelled() and (claim := taking.result()) is not None:
            await claim.release()

        assert await is_free(url)


async def test_turn_that_is_cancelled_gives_its_thread_back(url: str) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        """Work for ever."""
        begun.set()
        await asyncio.Event().wait()

    agent = Agent("a", model=ScriptedModel([call("work")]), tools=[work], checkpointer=url)
    turn = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    await begun.wait()
    assert not await is_free(url)

    turn.cancel()
    await asyncio.wait([turn])

    assert await is_free(url)


async def test_thread_is_taken_from_a_stranger_until_it_is_given_back_as_often(url: str) -> None:
    saver = lazy(url)
    outer, inner = await saver.atake("t"), await saver.atake("t")
    assert outer is not None
    assert inner is not None

    await inner.release()
    await inner.release()
    assert not await is_free(url)

    await outer.release()
    assert await is_free(url)


async def test_fifty_threads_at_once_in_two_processes(url: str) -> None:
    agent = solo(url)
    with other(url, "many") as process:
        replies = await asyncio.gather(
            *(agent.ainvoke("mine", thread_id=str(n)) for n in range(50))
        )
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0

    assert {reply.text for reply in replies} <= {"mine", "theirs mine"}
    for n in range(50):
        said = [m.text for m in await agent.ahistory(str(n)) if m.type == "human"]
        assert sorted(said) == ["mine", "theirs"]


async def test_thread_that_another_process_deleted_stays_deleted(url: str) -> None:
    agent = asking(url)
    assert (await agent.ainvoke("old", thread_id="t")).interrupts

    in_another(url, "forget")

    assert await agent.ahistory("t") == []
    assert (await agent.ainvoke("new", thread_id="t")).text == "new"


async def test_thread_that_another_process_deleted_and_began_anew_has_nothing_old(
    url: str,
) -> None:
    agent = asking(url)
    assert (await agent.ainvoke("old", thread_id="t")).interrupts

    in_another(url, "forget")
    in_another(url, "theirs")

    assert [m.text for m in await agent.ahistory("t")] == ["theirs", "theirs"]
    assert (await agent.ainvoke("new", thread_id="t")).text == "theirs new"


async def test_thread_deleted_elsewhere_after_a_first_turn_was_cut_off_stays_deleted(
    url: str,
) -> None:
    begun = asyncio.Event()

    async def stick() -> None:
        """Work for ever."""
        begun.set()
        await asyncio.Event().wait()

    model = ScriptedModel(once("stick"))
    agent = Agent("a", model=model, tools=[stick], checkpointer=url, durability="sync")
    turn = asyncio.create_task(agent.ainvoke("old", thread_id="t"))
    await begun.wait()
    turn.cancel()
    await asyncio.wait([turn])

    in_another(url, "forget")

    assert await agent.ahistory("t") == []
    assert (await agent.ainvoke("new", thread_id="t")).text == "new"


async def test_first_turn_that_no_checkpoint_has_is_not_forgotten(url: str) -> None:
    saver = lazy(url)
    agent = solo(url).replace(durability="exit")

    async def refuse(*_: object) -> None:
        raise StorageError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LazySaver, "aput", refuse)
        with pytest.raises(StorageError):
            await agent.ainvoke("old", thread_id="t")
    assert await saver.aget_tuple({"configurable": {"thread_id": "t"}}) is None

    assert (await agent.ainvoke("new", thread_id="t")).text == "old new"


async def test_killed_connection_wedges_nothing(postgres: Database) -> None:
    agent = solo(postgres.url)
    saver = lazy(postgres.url)
    claims = [await saver.atake("t"), await saver.atake("u")]
    assert postgres.kill_connections() > 0
    assert await is_free(postgres.url)  # it had it

    third = await saver.atake("v")  # has the others taken again

    assert not await is_free(postgres.url)
    for claim in (*claims, third):
        assert claim is not None
        await claim.release()
    for thread_id in "tuv":
        assert await is_free(postgres.url, thread_id)
        assert (await agent.ainvoke("hi", thread_id=thread_id)).text == "hi"


async def test_claim_whose_connection_was_killed_is_given_back_without_a_word(
    postgres: Database,
) -> None:
    claim = await lazy(postgres.url).atake("t")
    assert claim is not None
    postgres.kill_connections()

    await claim.release()

    assert await is_free(postgres.url)


async def test_connection_of_the_locks_is_in_a_transaction_only_while_a_thread_is_taken(
    postgres: Database,
) -> None:
    claim = await lazy(postgres.url).atake("t")
    assert claim is not None
    assert states(postgres)["idle in transaction"] == 1
    await claim.release()
    with working(postgres.url):
        assert await lazy(postgres.url).atake("t") is None
        assert states(postgres)["idle in transaction"] == 1  # the other's

    deadline = clock().monotonic() + PATIENCE_S
    while "idle in transaction" in states(postgres):
        assert clock().monotonic() < deadline


async def test_loops_of_one_process_keep_each_other_out(url: str) -> None:
    claim = await lazy(url).atake("t")
    assert claim is not None

    assert not await asyncio.to_thread(lambda: asyncio.run(is_free(url)))

    await claim.release()
    assert await asyncio.to_thread(lambda: asyncio.run(is_free(url)))


async def test_locks_keep_no_file_open(tmp_path: Path) -> None:
    def descriptors() -> list[str]:
        folder = Path("/proc/self/fd")
        return [os.readlink(at) for at in folder.iterdir() if at.is_symlink()]

    url = f"sqlite:///{tmp_path}/a.db"
    await solo(url).ainvoke("hi", thread_id="t")

    assert (tmp_path / "a.db-threads").exists()
    assert not [name for name in descriptors() if name.endswith("-threads")]


def test_forked_worker_answers(tmp_path: Path) -> None:
    script = """
import os, sys
from agentgraph import Agent
from agentgraph.testing import ScriptedModel
agent = Agent("solo", model=ScriptedModel(lambda _: "here"), checkpointer=sys.argv[1])
agent.invoke("before", thread_id="t")
child = os.fork()
if not child:
    os._exit(0 if agent.invoke("in the child", thread_id="u").text == "here" else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", script, f"sqlite:///{tmp_path / 'a.db'}"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=40)

    assert done.returncode == 0, done.stderr


async def test_whoever_may_write_a_file_may_take_its_threads(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    path.chmod(0o666)
    saver = open_saver(f"sqlite:///{path}")
    assert isinstance(saver, LazySaver)

    claim = await saver.atake("t")

    assert claim is not None
    assert (tmp_path / "a.db-threads").stat().st_mode & 0o777 == 0o666
    await claim.release()
