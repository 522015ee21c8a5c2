"""Synchronous calls: nested, in threads, mixed with asynchronous ones, and broken off."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, Tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph import Agent
from agentgraph.errors import AgentGraphError
from agentgraph.testing import ScriptedModel, call

LIMIT_S = 60
"""How long a test waits for what must not hang."""


def in_parallel(work: Callable[[int], Any], threads: int) -> list[Any]:
    """Do the work in threads, all at once, and return the results."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> Any:
        barrier.wait(LIMIT_S)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return [
            future.result(LIMIT_S) for future in [pool.submit(begin, n) for n in range(threads)]
        ]


def asker(messages: Any) -> Any:
    """Call the tool that the prompt names first, with the rest of it; then answer as the tool."""
    name, _, rest = messages[-1].text.partition(" ")
    if messages[-1].type == "human" and name != "hello":
        return call(name, rest=rest) if rest else call(name)
    return messages[-1].text


def chain(depth: int, thread_id: str | None = None, checkpointer: str | None = None) -> Agent:
    """Return an agent whose tools call the next agent in three ways, and so on."""
    if depth == 0:
        return Agent("leaf", model=ScriptedModel(asker), checkpointer=checkpointer)
    below = chain(depth - 1, thread_id, checkpointer)

    def synchronous(rest: str) -> str:
        """Call in a thread."""
        return below.invoke(rest, thread_id=thread_id).text

    async def blocking(rest: str) -> str:
        """Call synchronously, on the event loop."""
        return below.invoke(rest, thread_id=thread_id).text

    async def awaiting(rest: str) -> str:
        """Call asynchronously."""
        return (await below.ainvoke(rest, thread_id=thread_id)).text

    tools = [synchronous, blocking, awaiting]
    return Agent(
        f"level{depth}", model=ScriptedModel(asker), tools=tools, checkpointer=checkpointer
    )


WAYS = ("synchronous", "blocking", "awaiting")


def nested_call(top: Agent, depth: int, number: int) -> str:
    """Ask the agent at the bottom of a chain, each number in another combination of ways."""
    prompt = " ".join([WAYS[number // 3**level % 3] for level in range(depth)] + ["hello"])
    if number % 4 == 3:
        return asyncio.run(top.ainvoke(prompt)).text
    return top.invoke(prompt).text


@pytest.mark.parametrize("thread_id", [None, "shared"])
def test_calls_nested_three_deep_in_forty_threads_all_end(thread_id: str | None) -> None:
    top = chain(3, thread_id)
    assert set(in_parallel(lambda number: nested_call(top, 3, number), 40)) == {"hello"}


def test_nested_calls_in_twenty_threads_on_one_sqlite_file_all_end(tmp_path: Path) -> None:
    top = chain(2, checkpointer=f"sqlite:///{tmp_path / 'agents.db'}")
    assert set(in_parallel(lambda number: nested_call(top, 2, number), 20)) == {"hello"}


async def test_blocked_tools_leave_other_tools_of_the_users_loop_their_threads() -> None:
    waiting, release = threading.Barrier(41), threading.Event()

    def block() -> str:
        """Block a thread."""
        waiting.wait(LIMIT_S)
        release.wait(LIMIT_S)
        return "blocked"

    class Custom(BaseTool):
        name: str = "custom"
        description: str = "Block a thread, too."

        def _run(self) -> str:
            return block()

    tools: list[Any] = [block, Tool("single", lambda _: block(), "Block."), Custom()]
    names = ["block", "single", "custom"]
    arguments: list[dict[str, Any]] = [{}, {"__arg1": "x"}, {}]
    agents = [
        Agent(
            "a", model=ScriptedModel([call(names[n % 3], **arguments[n % 3]), "done"]), tools=tools
        )
        for n in range(40)
    ]
    runs = asyncio.gather(*(agent.ainvoke("go") for agent in agents))
    await asyncio.to_thread(waiting.wait, LIMIT_S)
    release.set()

    assert {reply.text for reply in await runs} == {"done"}


class Raising(BaseTool):
    """A tool that raises, synchronously, and has no function."""

    name: str = "leave"
    description: str = "Leave."
    error: Any

    def _run(self) -> str:
        raise self.error


def raising(kind: str, error: BaseException) -> Any:
    def leave() -> str:
        """Leave."""
        raise error

    async def leave_later() -> str:
        """Leave."""
        raise error

    leave_later.__name__ = "leave"
    return {"sync": leave, "async": leave_later, "custom": Raising(error=error)}[kind]


ABORTS = [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit]


@pytest.mark.parametrize("guards", ["default", None])
@pytest.mark.parametrize("kind", ["sync", "async", "custom"])
@pytest.mark.parametrize("error", ABORTS)
async def test_a_tool_that_raises_anything_ends_its_own_run_alone(
    error: type[BaseException], kind: str, guards: Any
) -> None:
    options: dict[str, Any] = {} if guards == "default" else {"guards": guards}
    model = ScriptedModel(asker)
    tool = raising(kind, error("stop"))
    agent = Agent("a", model=model, tools=[tool], **options)

    results = await asyncio.gather(
        agent.ainvoke("leave", thread_id="t"),
        agent.ainvoke("hello"),
        asyncio.to_thread(agent.invoke, "leave"),
        asyncio.to_thread(agent.invoke, "hello"),
        return_exceptions=True,
    )

    assert [getattr(result, "code", None) for result in results] == [
        "aborted",
        None,
        "aborted",
        None,
    ]
    assert error.__name__ in str(results[0])
    assert (await agent.ainvoke("hello", thread_id="t")).text == "hello"


def test_an_abort_in_a_nested_call_is_an_error_of_that_call() -> None:
    def leave() -> str:
        """Leave."""
        raise KeyboardInterrupt

    inner = Agent("inner", model=ScriptedModel([call("leave")]), tools=[leave])

    def ask() -> str:
        """Ask the other agent."""
        return inner.invoke("go").text

    outer = Agent("outer", model=ScriptedModel([call("ask"), "went on"]), tools=[ask])
    assert outer.invoke("go").text == "went on"


def test_ctrl_c_in_the_main_thread_ends_the_run_and_those_inside() -> None:
    ended = threading.Event()

    async def wait() -> str:
        """Wait until it is cancelled."""
        signal.raise_signal(signal.SIGINT) if is_main() else press_ctrl_c()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    def is_main() -> bool:
        return threading.current_thread() is threading.main_thread()

    def press_ctrl_c() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    inner = Agent("inner", model=ScriptedModel([call("wait")]), tools=[wait])

    async def ask() -> str:
        """Ask the other agent, and block the loop."""
        return inner.invoke("go").text

    outer = Agent("outer", model=ScriptedModel([call("ask")]), tools=[ask])
    with pytest.raises(KeyboardInterrupt):
        outer.invoke("go")
    assert ended.wait(LIMIT_S)


def test_a_cancelled_run_cancels_the_calls_in_its_tools() -> None:
    entered, ended = threading.Event(), threading.Event()

    async def wait() -> str:
        """Wait until it is cancelled."""
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    inner = Agent("inner", model=ScriptedModel([call("wait")]), tools=[wait])

    def ask() -> str:
        """Ask the other agent, in a thread."""
        return inner.invoke("go").text

    outer = Agent("outer", model=ScriptedModel([call("ask")]), tools=[ask])

    async def cancel() -> None:
        task = asyncio.create_task(outer.ainvoke("go"))
        await asyncio.to_thread(entered.wait, LIMIT_S)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancel())
    assert ended.wait(LIMIT_S)


def test_threads_and_loops_are_used_again() -> None:
    loops = set()

    def synchronous() -> str:
        """Use a thread."""
        return ""

    async def asynchronous() -> str:
        """Note the loop."""
        loops.add(asyncio.get_running_loop())
        return ""

    model = ScriptedModel([[call("synchronous"), call("asynchronous")], "done"] * 11)
    agent = Agent("a", model=model, tools=[synchronous, asynchronous])

    def run() -> int:
        agent.invoke("go")
        return threading.active_count()

    first = run()
    assert [run() for _ in range(10)] == [first] * 10
    assert len(loops) == 1


async def test_a_stream_is_read_synchronously_in_a_running_loop() -> None:
    agent = Agent("a", model=ScriptedModel(["one two three"]))
    assert "".join(e.text for e in agent.stream("hello") if e.type == "token") == "one two three"


def test_an_error_of_the_run_is_raised_as_it_is() -> None:
    agent = Agent("a", model=ScriptedModel([]))
    with pytest.raises(AgentGraphError):
        agent.invoke("go")


def paying(checkpointer: Any) -> Agent:
    return Agent("a", model=ScriptedModel(asker), checkpointer=checkpointer)


def test_synchronous_calls_share_one_connection_to_a_store(tmp_path: Path) -> None:
    agent = paying(f"sqlite:///{tmp_path / 'agents.db'}")
    in_parallel(lambda n: agent.invoke("hello", thread_id=str(n)).text, 8)
    saver: Any = agent.graph.checkpointer
    assert len(saver._stores) == 1
    assert agent.invoke("hello", thread_id="1").text == "hello"


async def test_a_saver_of_one_loop_serves_calls_from_all_others(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "agents.db")) as saver:
        agent = paying(saver)

        async def ask(thread: str) -> str:
            return (await agent.ainvoke("hello", thread_id=thread)).text

        def work(number: int) -> str:
            if number % 2:
                return asyncio.run(ask(f"{number}"))
            return agent.invoke("hello", thread_id=f"{number}").text

        calls = asyncio.to_thread(in_parallel, work, 8)
        results = await asyncio.gather(calls, *(ask(f"own {n}") for n in range(4)))
        assert results == [["hello"] * 8, *["hello"] * 4]
        # The loop of the saver stands still while it waits for a call.
        assert agent.invoke("hello", thread_id="1").text == "hello"
        assert len(await agent.ahistory("1")) == 4


async def test_tools_that_block_the_loop_of_a_busy_saver_can_use_that_saver(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "agents.db")) as saver:
        inner = paying(saver)

        async def blocking() -> str:
            """Block the loop, maybe amid an operation of another run."""
            return inner.invoke("hello").text

        top = Agent("top", model=ScriptedModel(asker), tools=[blocking], checkpointer=saver)
        replies = await asyncio.gather(*(top.ainvoke("blocking") for _ in range(12)))

        assert {reply.text for reply in replies} == {"hello"}


def test_agents_on_one_saver_of_a_loop_wait_for_each_others_threads(tmp_path: Path) -> None:
    async def check() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "agents.db")) as saver:
            agents = [paying(saver) for _ in range(2)]
            await asyncio.gather(*(agent.ainvoke("hello", thread_id="t") for agent in agents * 3))
            assert len(await agents[0].ahistory("t")) == 12

    asyncio.run(check())
