"""Every call that a run tells has one `tool_usage`, and after it one `tool_response`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.types import Command, interrupt

from agentgraph import Agent, Finish, Guards, Handoff, Intent
from agentgraph.stream import Event, InterruptEvent, ToolResponseEvent, ToolUsageEvent
from agentgraph.testing import ScriptedModel, call


def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


def fails() -> str:
    """Fail."""
    raise ValueError("no")


def pay() -> str:
    """Pay, if a human agrees."""
    return f"paid: {interrupt('Pay?')}"


def pass_on(target: str) -> Handoff:
    """Pass the conversation on."""
    return Handoff(target)


def finish() -> Finish:
    """End the turn."""
    return Finish("That is all.")


TOOLS: list[Any] = [refund, fails, pay, pass_on, finish]
MALFORMED = AIMessage(
    "",
    invalid_tool_calls=[
        {"name": "refund", "args": "{", "id": "bad", "error": None, "type": "invalid_tool_call"}
    ],
)
NATIVE = AIMessage(
    [
        {"type": "server_tool_call", "id": "n", "name": "web_search", "args": {"query": "tide"}},
        {"type": "server_tool_result", "tool_call_id": "n", "status": "success", "output": "high"},
        {"type": "text", "text": "The tide is high."},
    ],
    response_metadata={"output_version": "v1"},
)


def tree(turns: Sequence[Any], **fields: Any) -> Agent:
    below = ScriptedModel([call("refund", order="b"), "below answers", "again"])
    worker = Agent("worker", model=below, tools=[refund])
    other = Agent("other", model=ScriptedModel(["other answers"]))
    clerk = Agent("clerk", model=ScriptedModel([call("refund", order="c"), "ok"]), tools=[refund])
    foreign = create_agent(ScriptedModel([call("refund", order="f"), "ok"]), [refund], name="graph")
    agents: list[Any] = [worker, other, clerk.as_tool(), foreign]
    model = ScriptedModel([*turns, "done"])
    return Agent("root", model=model, tools=TOOLS, agents=agents, **fields)


async def events_of(agent: Agent, text: str = "go") -> list[Event]:
    """Return the events of a turn, with those after a human's decisions."""
    events: list[Event] = []
    message: Any = text
    while message is not None:
        new = [event async for event in agent.astream(message, thread_id="t")]
        events += new
        ids = [event.id for event in new if isinstance(event, InterruptEvent)]
        message = Command(resume=dict.fromkeys(ids, "yes")) if ids else None
    return events


def check_pairs(events: Sequence[Event]) -> list[str]:
    """Check that usages and responses are in pairs; return the tools in their order."""
    seen: Counter[str] = Counter()
    tools: dict[str, tuple[str, str]] = {}
    for event in events:
        if isinstance(event, ToolUsageEvent):
            assert event.call_id not in tools, "told twice"
            tools[event.call_id] = event.agent, event.tool
        elif isinstance(event, ToolResponseEvent):
            assert tools.get(event.call_id) == (event.agent, event.tool), "a response alone"
            seen[event.call_id] += 1
    assert seen == dict.fromkeys(tools, 1), "a usage without its response"
    return [tool for _, tool in tools.values()]


@pytest.mark.parametrize("handoff", ["sticky", "delegate"])
@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([call("refund", order="1")], ["refund"]),
        ([[call("refund", order="1"), call("refund", order="2")]], ["refund", "refund"]),
        ([call("fails")], ["fails"]),
        ([call("refund", wrong=1)], ["refund"]),
        ([call("nothing")], ["nothing"]),
        ([MALFORMED], ["refund"]),
        ([NATIVE], ["web_search"]),
        ([[call("pay"), call("refund", order="1")]], ["pay", "refund"]),
        ([call("finish")], ["finish"]),
        ([call("clerk", request="x")], ["clerk", "refund"]),
        ([call("pass_on", target="nobody")], ["pass_on"]),
    ],
    ids=lambda value: None,
)
async def test_calls_are_told_in_pairs(handoff: Any, turns: Sequence[Any], told: list[str]) -> None:
    assert check_pairs(await events_of(tree(turns, handoff=handoff))) == told


async def test_transfer_is_told_as_a_move_and_not_as_a_tool() -> None:
    events = await events_of(tree([call("transfer_to_worker")]))

    assert check_pairs(events) == ["refund"]
    assert [event.type for event in events].count("routing") == 1


async def test_delegations_are_told_in_pairs() -> None:
    turns = [[call("transfer_to_worker", reason="r"), call("transfer_to_graph")]]

    events = await events_of(tree(turns, handoff="delegate"))

    assert sorted(check_pairs(events)) == [
        "refund",
        "refund",
        "transfer_to_graph",
        "transfer_to_worker",
    ]
    answers = {e.tool: e.content for e in events if isinstance(e, ToolResponseEvent)}
    assert answers["transfer_to_worker"] == "below answers"


@pytest.mark.parametrize("handoff", ["sticky", "delegate"])
@pytest.mark.parametrize(
    "turn",
    [
        call("pass_on", target="worker"),
        [call("pass_on", target="worker"), call("pass_on", target="other")],
        [call("pass_on", target="worker"), call("finish")],
        [call("pass_on", target="worker"), call("transfer_to_other")],
    ],
)
async def test_handoffs_by_tools_are_told_once_with_what_became_of_them(
    handoff: Any, turn: Any
) -> None:
    agent = tree([turn], handoff=handoff)

    events = await events_of(agent)

    check_pairs(events)
    told = {e.call_id: e.content for e in events if isinstance(e, ToolResponseEvent)}
    stored = {m.tool_call_id: m.text for m in await agent.ahistory("t") if m.type == "tool"}
    assert all(stored[key] == text for key, text in told.items() if key in stored)


async def test_calls_of_intents_are_told_in_pairs() -> None:
    intents = [Intent("fail", "tool", "fails"), Intent("refund it", "tool", "refund")]
    agent = tree(["failed", call("refund", order="1")], intents=intents)

    assert check_pairs(await events_of(agent, "fail")) == ["fails"]
    assert check_pairs(await events_of(agent, "refund it")) == ["refund"]


async def test_calls_that_guards_refuse_or_stop_are_told_in_pairs() -> None:
    guards = Guards.interactive(fan_out=1, depth=1, steps=2)
    two = [call("clerk", request="x"), call("clerk", request="y"), call("refund", order="1")]
    agent = tree([two, call("refund", order="2"), call("refund", order="3")], guards=guards)

    events = await events_of(agent)

    assert "clerk" in check_pairs(events)
    assert "guard" in {event.type for event in events}
