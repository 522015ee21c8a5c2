"""Many runs at a time: in order on one thread, independent on several."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph import Agent
from agentgraph.errors import AgentGraphError
from agentgraph.testing import ScriptedModel, call

LIMIT_S = 10
"""How long a test waits for what must not hang."""


def echo(messages: list[BaseMessage]) -> str:
    """Answer with all that humans have said."""
    return " ".join(m.text for m in messages if m.type == "human")


async def test_three_calls_on_one_thread_at_once_are_all_kept_in_order() -> None:
    agent = Agent("a", model=ScriptedModel(echo))

    replies = await asyncio.gather(*(agent.ainvoke(n, thread_id="t") for n in "123"))

    assert [reply.text for reply in replies] == ["1", "1 2", "1 2 3"]


async def test_agents_on_one_saver_share_the_queue_of_a_thread(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = Agent("a", model=ScriptedModel(echo), checkpointer=url)
    second = Agent("a", model=ScriptedModel(echo), checkpointer=url)

    replies = await asyncio.gather(
        *((first, second)[n % 2].ainvoke(str(n), thread_id="t") for n in range(4))
    )

    assert [reply.text for reply in replies] == ["0", "0 1", "0 1 2", "0 1 2 3"]


async def test_thirty_threads_at_once_do_not_mix() -> None:
    def remember(messages: list[BaseMessage]) -> str:
        said = [m.text for m in messages if m.type == "human"]
        tools = [m.text for m in messages if m.type == "tool"]
        return " ".join([*said, *tools])

    turns = 3
    leaf = Agent("leaf", model=ScriptedModel(remember))
    agent = Agent("root", model=ScriptedModel(lambda _: call("transfer_to_leaf")), agents=[leaf])

    async def converse(name: str) -> str:
        for turn in range(turns):
            reply = await agent.ainvoke(f"{name}.{turn}", thread_id=name)
        return reply.text

    texts = await asyncio.gather(*(converse(f"n{n}") for n in range(30)))

    for n, text in enumerate(texts):
        assert text == f"n{n}.0 n{n}.1 n{n}.2 Conversation transferred to leaf"


async def test_a_run_cannot_wait_for_its_own_thread() -> None:
    async def again() -> str:
        """Ask oneself on the same thread."""
        return (await agent.ainvoke("inner", thread_id="t")).text

    model = ScriptedModel([call("again"), "done"])
    agent = Agent("a", model=model, tools=[again])

    reply = await agent.ainvoke("outer", thread_id="t")

    assert reply.text == "done"
    assert any("same thread" in m.text for m in reply.messages if m.type == "tool")


async def test_a_tool_may_run_the_agent_on_another_thread() -> None:
    async def aside() -> str:
        """Ask oneself elsewhere."""
        return (await agent.ainvoke("inner")).text

    def turn(messages: list[BaseMessage]) -> object:
        if messages[-1].text == "outer":
            return call("aside")
        return echo(messages)

    agent = Agent("a", model=ScriptedModel(turn), tools=[aside])  # type: ignore[arg-type]

    reply = await agent.ainvoke("outer", thread_id="t")

    assert reply.text == "outer"
    assert any(m.text == "inner" for m in reply.messages if m.type == "tool")


async def test_waiting_call_that_is_cancelled_gives_up_its_place() -> None:
    gate = asyncio.Event()
    begun = asyncio.Event()

    async def hold() -> str:
        """Hold the thread."""
        begun.set()
        await gate.wait()
        return "held"

    def turn(messages: list[BaseMessage]) -> object:
        return call("hold") if messages[-1].text == "1" else echo(messages)

    agent = Agent("a", model=ScriptedModel(turn), tools=[hold])  # type: ignore[arg-type]
    first = asyncio.create_task(agent.ainvoke("1", thread_id="t"))
    await begun.wait()
    second = asyncio.create_task(agent.ainvoke("2", thread_id="t"))
    third = asyncio.create_task(agent.ainvoke("3", thread_id="t"))
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.set()

    assert (await first).text == "1"
    assert (await third).text == "1 3"


def calling(ask: Callable[[str], Any]) -> Agent:
    """Return an agent whose tool is `ask`, called with all words of the prompt but the first."""

    def turn(messages: list[BaseMessage]) -> Any:
        first, _, rest = messages[-1].text.partition(" ")
        return call("ask", rest=rest) if first == "ask" else messages[-1].text

    return Agent("a", model=ScriptedModel(turn), tools=[ask])


async def ended(*runs: Any) -> list[str]:
    """Return the texts of runs that must end."""
    return [reply.text for reply in await asyncio.wait_for(asyncio.gather(*runs), LIMIT_S)]


def in_a_thread(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that might block its event loop for ever."""
    results: Queue[BaseException | None] = Queue()

    def run() -> None:
        try:
            results.put(asyncio.run(work))
        except BaseException as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    error = results.get(timeout=LIMIT_S)
    if error is not None:
        raise error


@pytest.mark.parametrize("is_synchronous", [False, True])
async def test_runs_whose_tools_wait_for_each_others_threads_all_end(is_synchronous: bool) -> None:
    begun = threading.Barrier(3)

    def ask(rest: str) -> str:
        """Ask on another thread, once all threads are taken."""
        begun.wait(LIMIT_S)
        return agent.invoke("hello", thread_id=rest).text

    async def ask_later(rest: str) -> str:
        """Ask on another thread, once all threads are taken."""
        await asyncio.to_thread(begun.wait, LIMIT_S)
        return (await agent.ainvoke("hello", thread_id=rest)).text

    ask_later.__name__ = "ask"
    agent = calling(ask if is_synchronous else ask_later)
    threads = {"x": "y", "y": "z", "z": "x"}

    texts = await ended(
        *(
            asyncio.to_thread(agent.invoke, f"ask {other}", thread_id=own)
            if is_synchronous
            else agent.ainvoke(f"ask {other}", thread_id=own)
            for own, other in threads.items()
        )
    )

    refusals = [text for text in texts if "would wait for ever" in text]
    assert len(refusals) == 1
    assert all(f"the run on thread {own!r} waits for" in refusals[0] for own in threads)
    assert sorted(texts)[-2:] == ["hello", "hello"]


async def test_a_run_inside_another_cannot_wait_for_the_thread_of_the_outermost() -> None:
    async def ask(rest: str) -> str:
        """Ask on the thread that is named first."""
        thread_id, _, prompt = rest.partition(" ")
        try:
            return (await agent.ainvoke(prompt, thread_id=thread_id)).text
        except AgentGraphError as error:
            return f"{error.code}: {error}"

    agent = calling(ask)
    (text,) = await ended(agent.ainvoke("ask y ask x hello", thread_id="x"))

    assert text.startswith("inside_run: ")
    assert "thread 'x'" in text


def test_a_call_that_blocks_the_loop_cannot_wait_for_a_run_on_that_loop() -> None:
    async def check() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def ask(rest: str) -> str:
            """Wait for the other run, or block the loop."""
            if rest == "wait":
                begun.set()
                await go_on.wait()
                return "waited"
            await begun.wait()
            try:
                return agent.invoke("hello", thread_id=rest).text
            except AgentGraphError as error:
                return f"{error.code}: {error}"
            finally:
                go_on.set()

        agent = calling(ask)
        texts = await ended(
            agent.ainvoke("ask wait", thread_id="x"), agent.ainvoke("ask x", thread_id="y")
        )

        assert texts[0] == "waited"
        assert texts[1].startswith("inside_run: ")
        assert "event loop of the run on thread 'x' is blocked by this call" in texts[1]

    in_a_thread(check())


def test_a_call_that_blocks_the_loop_cannot_wait_behind_a_waiter_on_that_loop() -> None:
    async def check() -> None:
        begun, release = threading.Event(), threading.Event()

        def ask(rest: str) -> str:
            """Hold the thread."""
            begun.set()
            release.wait(LIMIT_S)
            return "held"

        agent = calling(ask)
        holding = asyncio.create_task(asyncio.to_thread(agent.invoke, "ask hold", thread_id="x"))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        waiting = asyncio.create_task(agent.ainvoke("hello", thread_id="x"))
        await asyncio.wait([waiting], timeout=0)

        with pytest.raises(AgentGraphError, match="is blocked by this call") as refusal:
            agent.invoke("hello", thread_id="x")
        release.set()

        assert refusal.value.code == "inside_run"
        assert await ended(holding, waiting) == ["held", "hello"]

    in_a_thread(check())


async def test_a_thread_is_free_again_after_a_refused_call() -> None:
    async def ask(rest: str) -> str:
        """Ask oneself on the same thread."""
        return (await agent.ainvoke("hello", thread_id=rest)).text

    agent = calling(ask)
    (text,) = await ended(agent.ainvoke("ask x", thread_id="x"))

    assert "same thread" in text
    assert await ended(agent.ainvoke("hello", thread_id="x")) == ["hello"]


def test_sync_calls_of_several_threads_take_their_turns() -> None:
    agent = Agent("a", model=ScriptedModel(echo))
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(agent.invoke("x", thread_id="t").text))
        for _ in range(5)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(texts, key=len) == [" ".join("x" * n) for n in range(1, 6)]


async def test_forget_deletes_a_thread() -> None:
    agent = Agent("a", model=ScriptedModel(echo))
    await agent.ainvoke("1", thread_id="t")

    await agent.aforget("t")

    assert await agent.ahistory("t") == []
    assert (await agent.ainvoke("2", thread_id="t")).text == "2"


async def test_an_asynchronous_tool_may_call_synchronously() -> None:
    inner = Agent("inner", model=ScriptedModel(["from inside"] * 2))

    async def blocking() -> str:
        """Block the loop."""
        return inner.invoke("inner").text

    model = ScriptedModel([call("blocking"), "done"] * 2)
    agent = Agent("a", model=model, tools=[blocking])

    replies = [await asyncio.to_thread(agent.invoke, "outer"), await agent.ainvoke("outer")]

    answers = [m.text for reply in replies for m in reply.messages if m.type == "tool"]
    assert answers == ["from inside"] * 2
