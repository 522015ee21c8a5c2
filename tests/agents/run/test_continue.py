"""`acontinue` takes up a run that was cut off, without a new message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, effect
from agentgraph.agents.spec.values import Durability
from agentgraph.errors import ModelError, RoutingError
from agentgraph.testing import Fault, ScriptedModel, call

DURABILITIES: list[Durability] = ["sync", "async", "exit"]


class Gate:
    """A tool that waits for ever the first time, and counts how often it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.times = 0

    async def wait(self) -> str:
        """Wait."""
        self.times += 1
        if self.times == 1:
            self.begun.set()
            await asyncio.Event().wait()
        return "waited"


class Counter:
    """A tool that counts its calls."""

    def __init__(self) -> None:
        self.times = 0

    def count(self) -> str:
        """Count."""
        self.times += 1
        return f"counted {self.times}"


async def cut(agent: Agent, gate: Gate) -> None:
    run = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    await gate.begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


def script(messages: list[Any]) -> Any:
    """Call both tools, one after the other, then say what they have answered."""
    answers = [m.text for m in messages if m.type == "tool" and m.name in ("count", "wait")]
    return [call("count"), call("wait"), " ".join(answers[-2:])][min(len(answers), 2)]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_cut_off_run_goes_on_where_it_was(depth: int, durability: Durability) -> None:
    gate, counter = Gate(), Counter()
    agent = Agent("leaf", model=ScriptedModel(script), tools=[gate.wait, counter.count])
    if depth == 2:
        model = ScriptedModel([call("transfer_to_leaf")])
        agent = Agent("root", model=model, agents=[agent])
    agent = agent.replace(durability=durability)
    await cut(agent, gate)

    reply = await agent.acontinue("t")

    assert reply.text == "counted 1 waited"
    assert counter.times == 1
    kinds = [message.type for message in await agent.ahistory("t")]
    assert kinds == ["human", *["ai", "tool"] * (depth + 1), "ai"]
    assert [message.id for message in reply.messages] == [
        message.id for message in (await agent.ahistory("t"))[1:]
    ]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_run_that_was_cancelled_at_its_begin_goes_on(durability: Durability) -> None:
    gate = Gate()

    async def prompt(_: object) -> str:
        return await gate.wait()

    model = ScriptedModel(["done"])
    agent = Agent("a", model=model, system_prompt=prompt, durability=durability)
    await cut(agent, gate)

    assert (await agent.acontinue("t")).text == "done"
    assert [m.text for m in await agent.ahistory("t")] == ["go", "done"]


async def test_failed_model_call_is_made_again() -> None:
    model = ScriptedModel([Fault.rate_limit(), "here"])
    agent = Agent("a", model=model, guards=None)
    with pytest.raises(ModelError):
        await agent.ainvoke("hi", thread_id="t")

    reply = await agent.acontinue("t")

    assert reply.text == "here"
    assert [m.type for m in await agent.ahistory("t")] == ["human", "ai"]


async def test_effect_of_unknown_outcome_is_not_repeated() -> None:
    gate = Gate()

    @effect()
    async def pay() -> str:
        """Pay."""
        return await gate.wait()

    def turn(messages: list[Any]) -> Any:
        return messages[-1].text if messages[-1].type == "tool" else call("pay")

    agent = Agent("a", model=ScriptedModel(turn), tools=[pay], durability="sync")
    await cut(agent, gate)

    reply = await agent.acontinue("t")

    assert gate.times == 1
    payload: Any = reply.interrupts[0].payload  # a human says whether it was paid
    assert payload["evidence"]["tool"] == "a:pay"


async def test_waiting_run_is_not_cut_off() -> None:
    def ask() -> str:
        """Ask."""
        return str(interrupt("well?"))

    agent = Agent("a", model=ScriptedModel([call("ask"), "done"]), tools=[ask])
    asked = await agent.ainvoke("go", thread_id="t")

    with pytest.raises(RoutingError, match=asked.interrupts[0].id) as caught:
        await agent.acontinue("t")

    assert caught.value.code == "waits_for_decisions"
    assert (await agent.aresume("t", {asked.interrupts[0].id: "yes"})).text == "done"


async def test_finished_and_unknown_threads_have_nothing_to_go_on_with() -> None:
    agent = Agent("a", model=ScriptedModel(["done"]))
    await agent.ainvoke("go", thread_id="t")

    for thread_id in ("t", "unknown"):
        with pytest.raises(RoutingError, match="go on with a message") as caught:
            await agent.acontinue(thread_id)
        assert caught.value.code == "not_cut_off"
    assert len(await agent.ahistory("t")) == 2


async def test_run_of_another_agent_is_left_to_it() -> None:
    gate = Gate()
    agent = Agent("a", model=ScriptedModel([call("wait"), "done"]), tools=[gate.wait])
    agent = agent.replace(checkpointer=InMemorySaver())
    other = agent.replace(name="b")
    await cut(agent, gate)

    with pytest.raises(RoutingError, match="let 'a' go on"):
        await other.acontinue("t")

    assert (await agent.acontinue("t")).text == "done"


KILLED = """
import os, sys
from agentgraph import Agent, effect
from agentgraph.testing import ScriptedModel, call

def note(line: str) -> str:
    "Note a line."
    with open(sys.argv[2], "a") as file:
        file.write(line + "\\n")
    if line == "second" and sys.argv[3] == "start":
        os.kill(os.getpid(), 9)
    return line

def turn(messages):
    done = [m.text for m in messages if m.type == "tool" and m.name == "note"]
    if len(done) == 2:
        return " ".join(done)
    return call("note", line=("first", "second")[len(done)])

leaf = Agent("leaf", model=ScriptedModel(turn), tools=[note])
root = Agent("root", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf],
             checkpointer=f"sqlite:///{sys.argv[1]}", durability="sync")
if sys.argv[3] == "start":
    root.invoke("go", thread_id="t")
import asyncio
print(asyncio.run(root.acontinue("t")).text)
"""


def test_killed_process_is_continued_by_the_next(tmp_path: Path) -> None:
    program = tmp_path / "process.py"
    program.write_text(KILLED)
    notes = tmp_path / "notes"

    def run(step: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), str(tmp_path / "a.db"), str(notes), step]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)

    assert run("start").returncode == -9
    assert (told := run("continue")).stdout.strip() == "first second", told.stderr

    assert notes.read_text().split() == ["first", "second", "second"]
