"""Calls that never run, for whatever reason: whoever makes them again and again is stopped too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId
from langgraph.types import Command
from pydantic import BaseModel

from agentgraph import Handoff, Team, patched
from agentgraph.guards import FanOutLimit, Gate, MemorySink, Subject
from agentgraph.phases import ConversationRouter
from agentgraph.stream import Event, FinalStateEvent
from agentgraph.testing import ScriptedModel, bad_call, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import (
    Told,
    audited,
    corrections,
    decided,
    for_ever,
    is_legal,
    look,
    solo,
    streamed,
    watched,
)

STOPPED = [("a", "loop_detector", "correct"), ("a", "loop_detector", "abort")]


def closed_by(events: list[Event]) -> str | None:
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    return final.close_reason


def loops(events: list[Event]) -> list[Told]:
    """Return what loop detectors have decided."""
    return [one for one in decided(events) if one[1] == "loop_detector"]


class Page(BaseModel):
    """What an answer looks like."""

    number: int


def forbidden(subject: Subject) -> bool:
    """Let no tool run."""
    return subject.tool is None


UNRUN: dict[str, tuple[Scripted, dict[str, Any]]] = {
    "denied by a gate": (call("look", what="it"), {"gates": Gate(policy=forbidden)}),
    "malformed": ([bad_call("look")], {}),
    "too many hops": (call("transfer_to_sub"), {"hops": 0}),
    "too deep for a delegate": (call("transfer_to_sub"), {"depth": 0}),
    "too deep for an agent as a tool": (call("sub", request="do it"), {"depth": 0}),
    "too many at a time": (call("sub", request="do it"), {"fan_out": 0}),
    "a wish to go too far": (call("move_on"), {"hops": 0}),
}
"""What a model asks for again and again, and the limits that keep it from that."""


def unrun(kind: str) -> tuple[Scripted, dict[str, Any], dict[str, Any]]:
    """Return such a call, the agent that makes it, and its limits."""

    def move_on() -> Handoff:
        """Move on."""
        return Handoff("sub")

    asks, policy = UNRUN[kind]
    sub = solo(ScriptedModel(lambda _: "Done."), name="sub")
    if kind == "a wish to go too far":
        return asks, {"agents": [sub], "tools": [move_on]}, policy
    if "too" not in kind:
        return asks, {}, policy
    is_transfer = kind in ("too many hops", "too deep for a delegate")
    fields: dict[str, Any] = {"agents": [sub if is_transfer else sub.as_tool()]}
    return asks, fields | ({"handoff": "delegate"} if "delegate" in kind else {}), policy


@pytest.mark.parametrize("kind", UNRUN)
async def test_an_agent_whose_calls_never_run_is_corrected_then_stopped(kind: str) -> None:
    asks, fields, policy = unrun(kind)
    model, sink = for_ever(asks), MemorySink()
    agent = solo(model, guards=watched(sink, **policy), **fields)
    events = await streamed(agent)
    assert loops(events) == STOPPED
    assert (closed_by(events), len(model.requests)) == ("loop_detector", 6)
    assert corrections(model, "has failed 2 times with the same arguments") == [2]
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert {m.status for m in history if isinstance(m, ToolMessage)} == {"error"}


@pytest.mark.parametrize("kind", UNRUN)
async def test_an_agent_that_heeds_the_correction_of_such_calls_goes_on(kind: str) -> None:
    asks, fields, policy = unrun(kind)
    model = ScriptedModel([asks, asks, "I give up."])
    agent = solo(model, guards=watched(**policy), **fields)
    events = await streamed(agent)
    assert loops(events) == STOPPED[:1]
    assert (closed_by(events), len(model.requests)) == (None, 3)
    assert is_legal(await agent.ahistory("t"))


async def test_calls_that_are_refused_whatever_they_ask_for_have_failed() -> None:
    pages = iter(range(100))
    model = ScriptedModel(lambda messages: call("look", what=f"page {next(pages)}"))
    agent = solo(model, guards=watched(gates=Gate(policy=forbidden)))
    reply = await agent.ainvoke("go", thread_id="t")
    assert corrections(model, "`look` has failed 3 times in a row") == [3]
    # Other arguments each time may be attempts to find what is allowed.
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 50)
    assert is_legal(await agent.ahistory("t"))


async def test_calls_that_never_run_beside_each_other_are_a_loop_too() -> None:
    asks: Scripted = [bad_call("look"), call("look", what="it"), call("sub", request="do it")]
    sub = solo(ScriptedModel(lambda _: "Done."), name="sub").as_tool()
    model = for_ever(asks)
    agent = solo(model, agents=[sub], guards=watched(gates=Gate(policy=forbidden), depth=0))
    events = await streamed(agent)
    assert (closed_by(events), len(model.requests)) == ("loop_detector", 6)
    assert is_legal(await agent.ahistory("t"))


async def test_a_regulated_run_whose_calls_never_run_asks_a_human(tmp_path: Path) -> None:
    asks, fields, _ = unrun("malformed")
    url = f"sqlite:///{tmp_path / 'a.db'}"
    model = ScriptedModel([*[asks] * 6, "I have it."])
    agent = solo(model, guards=watched(tier="regulated"), checkpointer=url, **fields)
    (question,) = (await agent.ainvoke("go", thread_id="t")).interrupts
    assert question.payload["guard"] == "loop_detector"
    reply = await agent.aresume("t", {question.id: "approve"})
    assert (reply.text, reply.close_reason) == ("I have it.", None)
    assert is_legal(await agent.ahistory("t"))


async def test_tools_that_wish_to_move_where_nobody_is_have_failed() -> None:
    reasons = iter(range(100))

    def escalate(reason: str) -> Handoff:
        """Give it to somebody else."""
        return Handoff("nobody", reason)

    model = ScriptedModel(lambda messages: call("escalate", reason=f"{next(reasons)}"))
    agent = solo(model, escalate)
    reply = await agent.ainvoke("go", thread_id="t")
    assert corrections(model, "`escalate` has failed 3 times in a row") == [3]
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 50)
    assert is_legal(await agent.ahistory("t"))


class Veto(AgentMiddleware[Any, Any]):
    """Middleware that answers calls itself, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        if self.error is not None:
            raise self.error
        return ToolMessage("No.", tool_call_id=request.tool_call["id"], status="error")


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_calls_that_middleware_keeps_from_running_are_a_loop_too(
    error: Exception | None,
) -> None:
    model = for_ever(call("look", what="it"))
    agent = solo(model, middleware=[Veto(error)], guards=watched())
    events = await streamed(agent)
    assert (decided(events), closed_by(events)) == (STOPPED, "loop_detector")
    assert len(model.requests) == 6
    assert is_legal(await agent.ahistory("t"))


@pytest.mark.parametrize("target", ["b", "nobody"])
async def test_handoffs_that_a_team_refuses_are_a_loop(target: str) -> None:
    reasons = iter(range(100))
    model = ScriptedModel(
        lambda messages: call("handoff_conversation", target=target, reason=f"{next(reasons)}")
    )
    agents = [solo(model), solo(ScriptedModel(lambda _: "Here."), name="b")]
    routes = ConversationRouter([], default_agent_id="a")
    sink = MemorySink()
    team = Team(agents, routes, expectations=(), guards=watched(sink, hops=0))
    assert (await team.arun("go")).close_reason == "loop_detector"
    assert [one for one in audited(sink) if one[1] == "loop_detector"] == STOPPED
    assert len(model.requests) == 6  # another reason does not make it another wish


async def test_calls_that_a_gate_denies_in_a_graph_of_others_are_a_loop() -> None:
    model, sink = for_ever(call("look", what="it")), MemorySink()
    guards = watched(sink, "batch", gates=Gate(policy=forbidden))
    graph = patched(create_agent(model, [look]), guards)
    result = await graph.ainvoke({"messages": [HumanMessage("go")]})
    told = [(guard, action) for _, guard, action in audited(sink) if guard == "loop_detector"]
    assert told == [("loop_detector", "correct"), ("loop_detector", "abort")]
    assert len(model.requests) == 6
    assert is_legal(result["messages"])


async def test_a_tool_that_writes_the_same_to_the_state_is_a_loop_too() -> None:
    def remember(what: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
        """Remember something."""
        return Command(update={"messages": [ToolMessage("I do.", tool_call_id=call_id)]})

    model = for_ever(call("remember", what="it"))
    agent = solo(model, remember, guards=watched())
    events = await streamed(agent)
    assert (decided(events), closed_by(events)) == (STOPPED, "loop_detector")
    assert len(model.requests) == 7
    assert is_legal(await agent.ahistory("t"))


async def test_a_tool_that_writes_something_else_each_time_is_no_loop() -> None:
    numbers = iter(range(100))

    def remember(what: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
        """Remember something."""
        told = ToolMessage(f"That makes {next(numbers)}.", tool_call_id=call_id)
        return Command(update={"messages": [told]})

    model = ScriptedModel([*[call("remember", what="it")] * 10, "Done."])
    events = await streamed(solo(model, remember, guards=watched()))
    assert (closed_by(events), decided(events)) == (None, [])


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_workers_beyond_the_limit_are_no_loop_while_others_get_on(kind: str) -> None:
    parts = iter(range(100))
    subs = [
        solo(ScriptedModel(lambda _: f"part {next(parts)}"), name=name) for name in ("x", "y", "z")
    ]
    if kind == "delegate":
        asks = [call(f"transfer_to_{sub.name}") for sub in subs]
        fields: dict[str, Any] = {"agents": subs, "handoff": "delegate"}
    else:
        asks = [call(sub.name, request="more") for sub in subs]
        fields = {"agents": [sub.as_tool() for sub in subs]}
    model = ScriptedModel([*[asks] * 8, "Done."])
    agent = solo(model, guards=watched(fan_out=FanOutLimit(2, total=20)), **fields)
    events = await streamed(agent)
    assert (closed_by(events), loops(events)) == (None, [])
    assert is_legal(await agent.ahistory("t"))


async def test_calls_that_are_mended_are_no_loop() -> None:
    asks: list[Scripted] = []
    for n in range(6):
        wrong = [bad_call("look", f'{{"what": {n}{part}}}') for part in ("oops", "!")]
        asks += [*([one] for one in wrong), call("look", what=f"{n}")]
    asks += [call("Page", number="x"), call("Page", number=1)]
    agent = solo(ScriptedModel(asks), guards=watched(), response_format=Page)
    events = await streamed(agent)
    assert (closed_by(events), decided(events)) == (None, [])


async def test_what_a_gate_denies_now_and_then_is_no_loop() -> None:
    gate = Gate(policy=lambda subject: "secret" not in str(subject.args))
    asks: list[Scripted] = []
    for n in range(6):
        asks += [call("look", what=f"secret {n}"), call("look", what=f"{n}")]
    agent = solo(ScriptedModel([*asks, "Done."]), guards=watched(gates=gate))
    events = await streamed(agent)
    assert (closed_by(events), loops(events)) == (None, [])


async def test_a_tool_that_hands_a_part_to_a_worker_ten_times_is_no_loop() -> None:
    parts = iter(range(100))

    def next_part() -> Handoff:
        """Have the worker go on."""
        return Handoff("sub")

    sub = solo(ScriptedModel(lambda _: f"part {next(parts)} is done"), name="sub")
    model = ScriptedModel([*[call("next_part")] * 10, "Done."])
    agent = solo(model, next_part, agents=[sub], handoff="delegate", guards=watched())
    events = await streamed(agent)
    # The brief is the same each time, which is worth a word at every third.
    assert (closed_by(events), loops(events)) == (None, [])
    assert {action for _, _, action in decided(events)} == {"correct"}
