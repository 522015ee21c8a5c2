"""A human decides: at any depth, in any process, with nothing run twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from agentgraph import Agent
from agentgraph.clock import use_clock
from agentgraph.errors import AlreadyDecided, ConfigurationError, RoutingError
from agentgraph.stream import FinalStateEvent, ToolResponseEvent
from agentgraph.testing import FakeClock, ScriptedModel, call


class Number(BaseModel):
    value: int


def ask(question: str) -> str:
    """Ask a human."""
    return f"human said {interrupt({'question': question})}"


def tree(depth: int, saver: InMemorySaver, ran: list[str]) -> Agent:
    """Make a chain of agents whose lowest has tools that ask and count."""

    def count(name: str) -> str:
        """Count."""
        ran.append(name)
        return f"counted {name}"

    calls = [call("ask", question="one"), call("count", name="x"), call("ask", question="two")]
    agent = Agent(
        f"level{depth}", model=ScriptedModel([calls, "all is decided"]), tools=[ask, count]
    )
    for level in reversed(range(depth)):
        transfer = call(f"transfer_to_{agent.name}")
        agent = Agent(
            f"level{level}",
            model=ScriptedModel([transfer]),
            agents=[agent],
            checkpointer=saver if level == 0 else None,
        )
    return agent if depth else agent.replace(checkpointer=saver)


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_two_interrupts_beside_a_plain_tool_surface_together(depth: int) -> None:
    ran: list[str] = []
    agent = tree(depth, InMemorySaver(), ran)

    reply = await agent.ainvoke("go")

    assert {json.dumps(i.payload) for i in reply.interrupts} == {
        '{"question": "one"}',
        '{"question": "two"}',
    }
    assert reply.text == ""
    assert ran == ["x"]


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_resume_runs_finished_tools_once_and_answers(depth: int) -> None:
    ran: list[str] = []
    agent = tree(depth, InMemorySaver(), ran)
    asked = await agent.ainvoke("go")

    reply = await agent.aresume(asked.thread_id, {i.id: "yes" for i in asked.interrupts})

    assert reply.text == "all is decided"
    assert reply.agent == "/".join(f"level{n}" for n in range(depth + 1))
    assert reply.interrupts == ()
    assert ran == ["x"]
    answers = [m.text for m in await agent.ahistory(asked.thread_id) if isinstance(m, ToolMessage)]
    assert answers[-3:] == ["human said yes", "counted x", "human said yes"]


async def test_decisions_can_be_given_one_after_the_other() -> None:
    ran: list[str] = []
    agent = tree(1, InMemorySaver(), ran)
    asked = await agent.ainvoke("go")
    first, second = asked.interrupts

    between = await agent.aresume(asked.thread_id, {first.id: "yes"})
    reply = await agent.aresume(asked.thread_id, {second.id: "no"})

    assert [i.id for i in between.interrupts] == [second.id]
    assert reply.text == "all is decided"
    assert ran == ["x"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_nested_namespaces_hold_nothing_of_the_parent(depth: int) -> None:
    saver = InMemorySaver()
    agent = tree(depth, saver, [])

    await agent.ainvoke("a secret of the parent", thread_id="t")

    nested = {namespace for namespace in saver.storage["t"] if namespace}
    assert nested
    texts = [
        m.text
        for saved in saver.list({"configurable": {"thread_id": "t"}})
        if saved.config["configurable"]["checkpoint_ns"]
        for _, channel, value in saved.pending_writes or ()
        if channel == "messages"
        for m in _flat(value)
    ]
    assert "counted x" in texts
    assert not any("secret" in text for text in texts)
    blobs = [
        blob
        for (thread, namespace, _, _), (_, blob) in saver.blobs.items()
        if thread == "t" and namespace
    ]
    assert not any(b"secret" in blob for blob in blobs)


def _flat(value: object) -> Sequence[AnyMessage]:
    return value if isinstance(value, list) else []


async def test_unknown_decision_is_refused_with_what_is_awaited() -> None:
    agent = tree(0, InMemorySaver(), [])
    asked = await agent.ainvoke("go")

    with pytest.raises(RoutingError) as refused:
        await agent.aresume(asked.thread_id, {"nonsense": True})

    assert refused.value.code == "unknown_interrupt"
    assert all(i.id in str(refused.value) for i in asked.interrupts)
    reply = await agent.aresume(asked.thread_id, {i.id: "yes" for i in asked.interrupts})
    assert reply.text == "all is decided"


async def test_a_decision_that_cannot_be_stored_is_refused_and_the_question_stays() -> None:
    agent = tree(0, InMemorySaver(), [])
    asked = await agent.ainvoke("go")
    decisions: dict[str, object] = {one.id: "yes" for one in asked.interrupts}
    last = asked.interrupts[-1].id

    with pytest.raises(ConfigurationError, match=f"decision on {last} cannot be stored: object"):
        await agent.aresume(asked.thread_id, {**decisions, last: object()})

    assert (await agent.aresume(asked.thread_id, decisions)).text == "all is decided"


async def test_no_decision_is_refused() -> None:
    agent = tree(0, InMemorySaver(), [])
    asked = await agent.ainvoke("go")

    with pytest.raises(RoutingError, match="was given no decision: it waits for"):
        await agent.aresume(asked.thread_id, {})


async def test_resuming_into_an_agent_that_is_gone_raises() -> None:
    agent = tree(1, InMemorySaver(), [])
    asked = await agent.ainvoke("go")
    without = agent.replace(agents=[], model=ScriptedModel(["never"]))

    with pytest.raises(RoutingError) as refused:
        await without.aresume(asked.thread_id, {i.id: "yes" for i in asked.interrupts})

    assert refused.value.code == "agent_gone"


async def test_new_message_while_a_decision_is_pending_goes_on_without_it() -> None:
    ran: list[str] = []
    agent = tree(0, InMemorySaver(), ran)
    asked = await agent.ainvoke("go")

    reply = await agent.ainvoke("never mind", thread_id=asked.thread_id)

    assert reply.text == "all is decided"
    model = agent.model
    assert isinstance(model, ScriptedModel)
    seen = [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert seen[1] == "counted x"
    assert seen[0].startswith("Outcome unknown")
    assert seen[2].startswith("Outcome unknown")


async def test_parallel_delegates_ask_together_and_resume() -> None:
    def worker(name: str) -> Agent:
        model = ScriptedModel([call("ask", question=name), f"{name} is done"])
        return Agent(name, model=model, tools=[ask])

    calls = [call("transfer_to_a"), call("transfer_to_b")]
    agent = Agent(
        "boss",
        model=ScriptedModel([calls, "both are done"]),
        agents=[worker("a"), worker("b")],
        handoff="delegate",
    )
    asked = await agent.ainvoke("go")

    reply = await agent.aresume(asked.thread_id, {i.id: "yes" for i in asked.interrupts})

    assert len(asked.interrupts) == 2
    assert reply.text == "both are done"
    assert [m.text for m in reply.messages if isinstance(m, ToolMessage)] == [
        "a is done",
        "b is done",
    ]


async def test_decision_can_be_followed_as_a_stream() -> None:
    ran: list[str] = []
    agent = tree(1, InMemorySaver(), ran)
    asked = await agent.ainvoke("go")
    given: Command[str] = Command(resume={i.id: "yes" for i in asked.interrupts})

    events = [event async for event in agent.astream(given, thread_id=asked.thread_id)]

    answers = [e.content for e in events if isinstance(e, ToolResponseEvent)]
    final = events[-1]
    assert answers == ["human said yes", "human said yes"]
    assert isinstance(final, FinalStateEvent)
    assert (final.text, final.agent) == ("all is decided", "level0/level1")
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    assert ran == ["x"]


@pytest.mark.parametrize(
    "command",
    [Command(goto="call_model"), Command(update={"messages": []}), Command(graph=Command.PARENT)],
    ids=["goto", "update", "graph"],
)
async def test_command_that_is_no_decision_is_refused(command: Command[str]) -> None:
    agent = tree(0, InMemorySaver(), [])
    asked = await agent.ainvoke("go")

    with pytest.raises(ConfigurationError, match="only `resume` is an input") as refused:
        await agent.ainvoke(command, thread_id=asked.thread_id)
    with pytest.raises(ConfigurationError, match="only `resume` is an input"):
        async for _ in agent.astream(command, thread_id=asked.thread_id):
            pass

    assert refused.value.code == "input"
    assert await agent.ainterrupts(asked.thread_id) == asked.interrupts


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_questions_that_wait_can_be_read(depth: int) -> None:
    agent = tree(depth, InMemorySaver(), [])
    before = await agent.ainterrupts("t")
    asked = await agent.ainvoke("go", thread_id="t")
    first, second = asked.interrupts

    waiting = await agent.ainterrupts("t")
    await agent.aresume("t", {first.id: "yes"})
    left = await agent.ainterrupts("t")
    await agent.aresume("t", {second.id: "yes"})

    assert before == ()
    assert sorted(i.id for i in waiting) == sorted(i.id for i in asked.interrupts)
    assert [(i.id, i.payload) for i in left] == [(second.id, second.payload)]
    assert await agent.ainterrupts("t") == ()


PROCESS = """
import sys
from pathlib import Path
from langgraph.types import interrupt
from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call

def ask(question: str) -> str:
    "Ask a human."
    return f"human said {interrupt(question)}"

def count() -> str:
    "Count."
    with Path(sys.argv[2]).open("a") as file:
        file.write("ran\\n")
    return "counted"

def turn(messages):
    done = any(m.type == "tool" and m.name == "ask" for m in messages)
    return "all is decided" if done else [call("ask", question="sure?"), call("count")]

leaf = Agent("leaf", model=ScriptedModel(turn), tools=[ask, count])
mid = Agent("mid", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf])
root = Agent("root", model=ScriptedModel([call("transfer_to_mid")]), agents=[mid],
             checkpointer=f"sqlite:///{sys.argv[1]}", durability="sync")
if sys.argv[3] == "start":
    reply = root.invoke("go", thread_id="t")
    print(reply.interrupts[0].id)
else:
    reply = root.resume("t", {sys.argv[3]: "yes"})
    print(reply.text, "|", reply.agent, "|", [m.text for m in reply.messages if m.type == "tool"])
"""


def test_a_fresh_process_goes_on_with_the_decision(tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    database, log = tmp_path / "a.db", tmp_path / "ran"

    def run(argument: str) -> str:
        command = [sys.executable, str(script), str(database), str(log), argument]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
        return done.stdout.strip()

    interrupt_id = run("start")
    told = run(interrupt_id)

    assert told.startswith("all is decided | root/mid/leaf | ")
    assert told.endswith("'human said yes', 'counted']")
    assert log.read_text() == "ran\n"


async def test_late_decider_is_told_who_has_decided_what_and_when() -> None:
    model = ScriptedModel([[call("ask", question="one")], "done", "nothing"])
    agent = Agent("a", model=model, tools=[ask], checkpointer=InMemorySaver())
    with use_clock(FakeClock(start=1_000.0)):
        asked = await agent.ainvoke("go", thread_id="t")
        ids = [question.id for question in asked.interrupts]
        await agent.aresume("t", dict.fromkeys(ids, "yes"), sender="ann")
    await agent.ainvoke("and now?", thread_id="t")

    for answer in ("yes", "no"):
        with pytest.raises(AlreadyDecided, match="ann has answered 'yes' at 1970-01-01") as refused:
            await agent.aresume("t", {ids[0]: answer}, sender="bob")
        error = refused.value
        assert isinstance(error, RoutingError) and error.code == "already_decided"
        assert (error.interrupt_id, error.decision, error.sender) == (ids[0], "yes", "ann")
        assert error.decided_at == datetime.fromtimestamp(1_000, UTC)


async def test_question_that_refuses_a_decision_can_be_decided_again() -> None:
    def order(state: MessagesState) -> dict[str, Any]:
        number = interrupt("how many?", response_schema=Number)
        return {"messages": [AIMessage(f"{number.value} it is")]}

    builder = StateGraph(MessagesState)
    builder.add_node("order", order)
    builder.add_edge(START, "order")
    shop = builder.compile(name="shop")
    model = ScriptedModel([call("transfer_to_shop")])
    agent = Agent("a", model=model, agents=[shop], checkpointer=InMemorySaver())
    [question] = (await agent.ainvoke("go", thread_id="t")).interrupts

    for _ in range(2):
        with pytest.raises(Exception, match="Number"):
            await agent.aresume("t", {question.id: "a few"})
        assert [open.id for open in await agent.ainterrupts("t")] == [question.id]

    assert (await agent.aresume("t", {question.id: {"value": 3}})).text == "3 it is"


async def test_decision_of_a_run_that_was_cancelled_counts_when_it_goes_on() -> None:
    tries: list[object] = []
    is_paying = asyncio.Event()

    async def pay() -> str:
        """Pay."""
        tries.append(interrupt("pay?"))
        if len(tries) == 1:
            is_paying.set()
            await asyncio.Event().wait()
        return "paid"

    model = ScriptedModel([call("pay"), "done"])
    agent = Agent("a", model=model, tools=[pay], checkpointer=InMemorySaver())
    [question] = (await agent.ainvoke("go", thread_id="t")).interrupts
    run = asyncio.create_task(agent.aresume("t", {question.id: "yes"}))
    await is_paying.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert await agent.ainterrupts("t") == ()
    with pytest.raises(AlreadyDecided):
        await agent.aresume("t", {question.id: "no"})

    assert (await agent.acontinue("t")).text == "done"
    assert tries == ["yes", "yes"]
