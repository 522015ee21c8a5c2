"""A run that was cut off: the next turn knows all that finished, and what it cannot know."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.agents.spec.values import Durability
from agentgraph.errors import RoutingError
from agentgraph.history import OUTCOME_UNKNOWN
from agentgraph.testing import ScriptedModel, call, check_history

DURABILITIES: list[Durability] = ["sync", "async", "exit"]


class Stuck:
    """A tool that never returns, and says when it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def tool(self) -> Callable[[], Awaitable[str]]:
        async def wait() -> str:
            """Wait for ever."""
            self.begun.set()
            await asyncio.Event().wait()
            return "never"

        return wait


async def quick() -> str:
    """Return at once."""
    return "quick is done"


async def cancel_in(agent: Agent, stuck: Stuck, thread_id: str = "t", siblings: int = 1) -> None:
    """Cancel a run once the stuck tool has begun and its siblings have answered."""
    answered = 0
    stream = agent.astream("go", thread_id=thread_id)

    async def follow() -> None:
        nonlocal answered
        async for event in stream:
            answered += event.type == "tool_response"
            if answered >= siblings:
                enough.set()

    enough = asyncio.Event()
    run = asyncio.create_task(follow())
    await stuck.begun.wait()
    if siblings:
        await enough.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


def answers(messages: Iterable[BaseMessage]) -> list[str]:
    return [m.text for m in messages if isinstance(m, ToolMessage)]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_cancel_in_a_tool_whose_sibling_finished(durability: Durability) -> None:
    stuck = Stuck()
    model = ScriptedModel([[call("wait"), call("quick")], "I see"])
    agent = Agent("a", model=model, tools=[stuck.tool(), quick], durability=durability)
    await cancel_in(agent, stuck)

    reply = await agent.ainvoke("what happened?", thread_id="t")

    assert reply.text == "I see"
    seen = model.requests[-1].messages
    assert answers(list(seen)) == [OUTCOME_UNKNOWN, "quick is done"]
    assert [m.text for m in seen if m.type == "human"] == ["go", "what happened?"]
    history = await agent.ahistory("t")
    check_history(history[:-1])


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("depth", [1, 2])
async def test_cancel_in_a_sub_agent_keeps_what_it_did(depth: int, durability: Durability) -> None:
    stuck = Stuck()
    leaf_model = ScriptedModel([call("quick"), [call("wait"), call("quick")], "I see"])
    agent = Agent("leaf", model=leaf_model, tools=[stuck.tool(), quick])
    for name in ["mid", "root"][2 - depth :]:
        model = ScriptedModel([call(f"transfer_to_{agent.name}")])
        agent = Agent(name, model=model, agents=[agent], durability=durability)
    await cancel_in(agent, stuck, siblings=2)

    reply = await agent.ainvoke("what happened?", thread_id="t")

    assert reply.text == "I see"
    assert reply.agent == ("root/leaf" if depth == 1 else "root/mid/leaf")
    seen = list(leaf_model.requests[-1].messages)
    assert answers(seen)[-3:] == ["quick is done", OUTCOME_UNKNOWN, "quick is done"]


async def test_cancel_in_parallel_delegates_tells_what_each_did() -> None:
    stuck = Stuck()
    finished = Agent("finished", model=ScriptedModel([call("quick"), "all done"]), tools=[quick])
    turns = [call("quick"), call("wait")]
    cut = Agent("cut", model=ScriptedModel(turns), tools=[quick, stuck.tool()])
    calls = [call("transfer_to_finished"), call("transfer_to_cut")]
    model = ScriptedModel([calls, "I see"])
    agent = Agent("boss", model=model, agents=[finished, cut], handoff="delegate")
    await cancel_in(agent, stuck, siblings=3)

    await agent.ainvoke("what happened?", thread_id="t")

    first, second = answers(list(model.requests[-1].messages))
    assert first == "all done"
    assert second.startswith(OUTCOME_UNKNOWN)
    assert "quick is done" in second
    named = [m.name for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert named == ["transfer_to_finished", "transfer_to_cut"]


async def test_what_was_taken_over_is_not_taken_over_again() -> None:
    stuck = Stuck()
    model = ScriptedModel([[call("wait"), call("quick")], "one", "two"])
    agent = Agent("a", model=model, tools=[stuck.tool(), quick])
    await cancel_in(agent, stuck)
    await agent.ainvoke("first", thread_id="t")

    await agent.ainvoke("second", thread_id="t")

    assert answers(list(model.requests[-1].messages)) == [OUTCOME_UNKNOWN, "quick is done"]


async def test_twice_cancelled_run_is_whole() -> None:
    first, second = Stuck(), Stuck()

    async def wait_again() -> str:
        """Wait again."""
        second.begun.set()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([[call("wait"), call("quick")], [call("wait_again")], "I see"])
    agent = Agent("a", model=model, tools=[first.tool(), wait_again, quick])
    await cancel_in(agent, first)
    await cancel_in(agent, second, siblings=0)

    await agent.ainvoke("what happened?", thread_id="t")

    seen = list(model.requests[-1].messages)
    assert answers(seen) == [OUTCOME_UNKNOWN, "quick is done", OUTCOME_UNKNOWN]
    assert [m.text for m in seen if m.type == "human"] == ["go", "go", "what happened?"]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_input_of_a_run_cancelled_at_once_is_kept(durability: Durability) -> None:
    stuck = Stuck()
    prompt = stuck.tool()
    model = ScriptedModel(["hello"])
    agent = Agent(
        "a",
        model=model,
        system_prompt=lambda _: prompt(),
        durability=durability,
        checkpointer=InMemorySaver(),
    )
    await cancel_in(agent, stuck, siblings=0)

    await agent.replace(system_prompt="").ainvoke("second", thread_id="t")

    humans = [m.text for m in model.requests[-1].messages if m.type == "human"]
    assert humans == ["go", "second"]


async def test_abandoned_stream_loses_nothing_and_leaks_nothing() -> None:
    model = ScriptedModel([call("quick"), "one two three four", "second answer"])
    agent = Agent("a", model=model, tools=[quick], checkpointer=InMemorySaver())
    before = asyncio.all_tasks()
    stream = agent.astream("go", thread_id="t")
    async for event in stream:
        if event.type == "tool_response":
            break
    await stream.aclose()

    reply = await agent.ainvoke("again", thread_id="t")

    assert reply.text in ("one two three four", "second answer")
    assert "quick is done" in answers(list(model.requests[-1].messages))
    assert asyncio.all_tasks() == before


KILLED = """
import os, sys
from pathlib import Path
from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call

def quick() -> str:
    "Return at once."
    return "quick is done"

def die() -> str:
    "Kill the process."
    os.kill(os.getpid(), 9)

def turn(messages):
    asked = [m.text for m in messages if m.type == "human"][-1]
    done = [m for m in messages if m.type == "tool" and m.name == "quick"]
    if asked != "go":
        return "seen: " + " / ".join(m.text.split(":")[0] for m in messages if m.type == "tool")
    return call("die") if done else call("quick")

leaf = Agent("leaf", model=ScriptedModel(turn), tools=[quick, die])
root = Agent("root", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf],
             checkpointer=f"sqlite:///{sys.argv[1]}", durability="sync")
print(root.invoke(sys.argv[2], thread_id="t").text)
"""


def test_a_killed_process_is_taken_over_by_the_next(tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(KILLED)

    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), str(tmp_path / "a.db"), text]
        return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)

    assert run("go").returncode == -9
    told = run("what happened?")

    assert told.stdout.strip() == (
        "seen: Conversation transferred to leaf / quick is done / Outcome unknown"
    ), told.stderr


async def test_resume_that_was_cut_off_does_not_run_a_finished_tool_again() -> None:
    ran: list[str] = []
    stuck = Stuck()

    async def pay() -> str:
        """Pay, if a human agrees."""
        agreed = interrupt("pay?")
        ran.append(agreed)
        return f"paid: {agreed}"

    def turn(messages: list[BaseMessage]) -> object:
        return "done" if messages[-1].type == "tool" else [call("pay"), call("wait_or_ask")]

    async def wait_or_ask() -> str:
        """Wait for ever once a human has agreed, the first time."""
        interrupt("wait?")
        if not stuck.begun.is_set():
            stuck.begun.set()
            await asyncio.Event().wait()
        return "waited"

    agent = Agent("a", model=ScriptedModel(turn), tools=[pay, wait_or_ask])  # type: ignore[arg-type]
    asked = await agent.ainvoke("go", thread_id="t")
    decisions = {question.id: "yes" for question in asked.interrupts}
    cut = asyncio.create_task(agent.aresume("t", decisions))
    await stuck.begun.wait()
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut

    reply = await agent.aresume("t", decisions)

    assert reply.text == "done"
    assert ran == ["yes"]
    assert answers(await agent.ahistory("t")) == ["paid: yes", "waited"]


async def test_what_a_cut_off_resume_did_is_known_though_no_checkpoint_has_it() -> None:
    ran: list[str] = []
    stuck = Stuck()

    async def ask() -> str:
        """Ask a human."""
        return str(interrupt("sure?"))

    async def work() -> str:
        """Work."""
        ran.append("<work>")
        return "<work>"

    model = ScriptedModel([call("ask"), [call("work"), call("wait")], "I see"])
    sub = Agent("sub", model=model, tools=[ask, work, stuck.tool()])
    agent = Agent("a", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub])
    agent = agent.replace(durability="exit")
    asked = await agent.ainvoke("go", thread_id="t")
    decisions = {question.id: "yes" for question in asked.interrupts}
    cut = asyncio.create_task(agent.aresume("t", decisions))
    await stuck.begun.wait()
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    with pytest.raises(RoutingError, match="decided already"):
        await agent.aresume("t", dict.fromkeys(decisions, "no"))

    await agent.ainvoke("what has been done?", thread_id="t")

    assert ran == ["<work>"]
    assert "<work>" in answers(model.requests[-1].messages)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_history_shows_a_call_that_may_still_end_without_an_answer(
    durability: Durability,
) -> None:
    stuck = Stuck()
    model = ScriptedModel([[call("wait"), call("quick")], "I see"])
    agent = Agent("a", model=model, tools=[stuck.tool(), quick], durability=durability)
    await cancel_in(agent, stuck)

    history = await agent.ahistory("t")

    assert [m.type for m in history] == ["human", "ai", "tool"]
    assert answers(history) == ["quick is done"]


async def test_history_shows_a_call_that_runs_or_waits_in_a_delegate_without_an_answer() -> None:
    def pay() -> str:
        """Pay, if a human agrees."""
        return f"paid: {interrupt('Pay?')}"

    below = Agent("below", model=ScriptedModel([call("quick"), call("pay")]), tools=[quick, pay])
    turns = [[call("transfer_to_below"), call("quick")]]
    agent = Agent(
        "a", model=ScriptedModel(turns), tools=[quick], agents=[below], handoff="delegate"
    )

    reply = await agent.ainvoke("go", thread_id="t")

    assert len(reply.interrupts) == 1
    assert answers(await agent.ahistory("t")) == ["quick is done"]


async def test_history_shows_a_call_while_it_runs_without_an_answer() -> None:
    stuck = Stuck()
    agent = Agent("a", model=ScriptedModel([call("wait")]), tools=[stuck.tool()], durability="sync")
    run = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    await stuck.begun.wait()

    history = await agent.ahistory("t")

    assert [m.type for m in history] == ["human", "ai"]
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
