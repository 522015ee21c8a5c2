"""Agents that keep their threads in one store."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot, interrupt

from agentgraph import Agent
from agentgraph.agents.run.recovery import recover
from agentgraph.errors import RoutingError
from agentgraph.testing import ScriptedModel, call, check_history


def approve() -> str:
    """Ask a human."""
    return str(interrupt("may I?"))


async def test_decision_goes_to_the_agent_that_asked_where_others_share_its_store() -> None:
    saver = InMemorySaver()
    script = ScriptedModel([call("approve"), "Paid."])
    payer = Agent("payer", model=script, tools=[approve], checkpointer=saver)
    other = Agent("other", model=ScriptedModel(["hello"]), checkpointer=saver)
    [question] = (await payer.ainvoke("pay", thread_id="t")).interrupts

    with pytest.raises(RoutingError, match="payer") as caught:
        await other.aresume("t", {question.id: "yes"})

    assert caught.value.code == "other_agent"
    assert (await payer.aresume("t", {question.id: "yes"})).text == "Paid."


def seen_by_another_process(saver: InMemorySaver) -> InMemorySaver:
    """Return a saver on the same store, of which this process's turns know nothing."""
    other = InMemorySaver()
    other.storage, other.writes, other.blobs = saver.storage, saver.writes, saver.blobs
    return other


async def test_run_that_was_cut_off_is_not_told_again_once_another_process_has_gone_on() -> None:
    working = asyncio.Event()

    async def other() -> str:
        """Do something else."""
        return "fine"

    async def work() -> str:
        """Work for ever."""
        working.set()
        await asyncio.Event().wait()
        return "done"

    here = InMemorySaver()
    both = [call("other"), call("work")]
    mine = Agent("solo", model=ScriptedModel([both, "a2"]), tools=[other, work], checkpointer=here)
    theirs = Agent(
        "solo",
        model=ScriptedModel(["b1"]),
        tools=[other, work],
        checkpointer=seen_by_another_process(here),
    )
    running = asyncio.create_task(mine.ainvoke("work", thread_id="t"))
    await working.wait()
    running.cancel()
    await asyncio.wait([running])

    await theirs.ainvoke("b", thread_id="t")
    await mine.ainvoke("a", thread_id="t")

    messages = await mine.ahistory("t")
    check_history([*messages, HumanMessage("next")])
    assert [m.text for m in messages if m.type == "human"] == ["work", "b", "a"]
    assert [m.type for m in messages if m.type == "tool"] == ["tool", "tool"]


def test_answer_to_a_call_that_another_process_has_answered_is_not_given_again() -> None:
    asked = AIMessage("", id="a", tool_calls=[{"name": "pay", "args": {}, "id": "1"}])
    paid = ToolMessage("paid", id="theirs", tool_call_id="1")
    known = [HumanMessage("pay", id="h"), asked, paid, AIMessage("Paid.", id="b")]
    snapshot = StateSnapshot({"messages": known}, (), {}, None, None, None, (), ())
    unknown = ToolMessage("Outcome unknown", id="mine", tool_call_id="1")

    left = recover(snapshot, {None: [unknown, HumanMessage("work", id="w")]})

    assert [message.id for message in left.messages] == ["w"]
    check_history([*known, *left.messages])
