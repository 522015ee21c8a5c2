"""Flows in their places: below agents, in teams and hubs, as tools; humans in the middle."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Envelope, Hub, Team, effect, sequence
from agentgraph.errors import ConfigurationError, RoutingError
from agentgraph.flow import Flow, Stage
from agentgraph.guards import CostBudget
from agentgraph.sessions import EV_PACKET
from agentgraph.stream import StageEvent
from agentgraph.testing import ScriptedModel, call
from tests.flow.planned_work import flow_of, guarded, plan, verdict, worker


def asking(name: str) -> Agent[Any]:
    """Return a worker whose tool asks a human."""

    def buy(item: str) -> str:
        """Buy something."""
        return f"bought: {interrupt({'buy': item})}"

    return worker(name, call("buy", item=name), f"{name} is done", tools=[buy])


def small(name: str = "flow") -> Flow[Any]:
    return Flow(name, "does small work", work=[worker("a"), worker("b")])


async def test_questions_of_several_workers_are_open_at_once() -> None:
    work = [asking("a"), asking("b")]
    flow = flow_of(plan("a", "b"), "ok", verdict(), work=work)
    result = await flow.ainvoke("go", thread_id="t")
    assert result.status == "waiting"
    assert sorted(question.payload["buy"] for question in result.interrupts) == ["a", "b"]
    first, second = result.interrupts
    result = await flow.aresume("t", {first.id: "yes"})
    assert [question.id for question in result.interrupts] == [second.id]
    result = await flow.aresume("t", {second.id: "no"})
    assert (result.status, result.text) == ("finished", "ok")


async def test_decision_on_a_question_that_is_not_open_is_refused() -> None:
    flow = flow_of(plan("a"), "ok", verdict(), work=[asking("a")])
    await flow.ainvoke("go", thread_id="t")
    with pytest.raises(RoutingError, match="does not wait for nonsense"):
        await flow.aresume("t", {"nonsense": "yes"})


async def test_flow_is_resumed_by_another_one_like_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'flows.db'}"
    first = flow_of(plan("a"), work=[asking("a")], checkpointer=url)
    [question] = (await first.ainvoke("go", thread_id="t")).interrupts
    rest = worker("a", "a is done", tools=asking("a").tools)
    second = flow_of("ok", verdict(), work=[rest], checkpointer=url)
    result = await second.aresume("t", {question.id: "yes"})
    assert (result.status, result.text) == ("finished", "ok")


async def test_flow_works_below_an_agent_as_sub_agent_delegate_and_tool() -> None:
    for turns, fields in (
        ([call("transfer_to_flow")], {"agents": [small()]}),
        ([call("transfer_to_flow"), "done"], {"agents": [small()], "handoff": "delegate"}),
        ([call("flow", request="go"), "done"], {"tools": [small().as_tool()]}),
    ):
        agent: Any = Agent("boss", model=ScriptedModel(turns), default_tools=False, **fields)  # type: ignore[arg-type]
        reply = await agent.ainvoke("go")
        assert "a is done\n\nb is done" in "|".join(str(m.text) for m in reply.messages)


async def test_flow_speaks_in_a_team_and_is_served_alone() -> None:
    team = Team([small(), worker("last", "the end")], sequence(["flow", "last"]))
    result = await team.arun("go")
    assert "a is done\n\nb is done" in [envelope.text for envelope in result.envelopes]
    async with await Hub.open(serve=[small("alone")]) as hub:
        answer = await (await hub.session("alone", id="s")).ask("go")
    assert answer.text == "a is done\n\nb is done"


async def test_session_streams_the_stages_of_a_flow_that_a_hub_serves() -> None:
    told: list[tuple[str, str, str]] = []
    async with await Hub.open(serve=[small("alone")]) as hub:
        session = await hub.session("alone", id="s")
        await session.send("user", "go")
        async with aclosing(session.stream()) as items:
            async for item in items:
                if isinstance(item, StageEvent):
                    told.append((item.stage, item.worker, item.status))
                if isinstance(item, Envelope) and item.event_type == EV_PACKET:
                    break
    assert told[:2] == [("plan", "", "started"), ("plan", "", "finished")]
    assert {("fan_out", "a", "finished"), ("fan_out", "b", "finished")} < {*told}
    assert told[-1] == ("finalize", "", "finished")


async def test_session_keeps_the_answers_of_a_flow_and_no_channel_of_its_stages() -> None:
    async with await Hub.open(serve=[small("alone")]) as hub:
        session = await hub.session("alone", id="s")
        answers = [(await session.ask(task)).text for task in ("go", "once more")]
        packets = [e for e in await session.history() if e.event_type == EV_PACKET]
    assert answers == ["a is done\n\nb is done"] * 2
    assert ["channels" in packet.event_data for packet in packets] == [False, False]


async def test_graph_of_a_flow_is_an_ordinary_one() -> None:
    graph = small().graph.copy({"checkpointer": InMemorySaver()})
    config: Any = {"configurable": {"thread_id": "t"}}
    state = await graph.ainvoke({"messages": [("user", "go")]}, config)
    assert state["messages"][-1].text == "a is done\n\nb is done"
    names = {"plan", "plan_gate", "fan_out", "a", "b", "fan_in", "validate", "validate_gate"}
    assert names < {*graph.nodes}
    state = await graph.ainvoke({"messages": [("user", "again")]}, config)
    assert len(state["messages"]) == 4


async def test_actions_of_an_aborted_flow_are_undone_last_first() -> None:
    done: list[str] = []

    @effect(compensate=lambda item: done.append(f"undo {item}"))
    def book(item: str) -> str:
        """Book."""
        done.append(f"book {item}")
        return "booked"

    work = [worker(name, call("book", item=name), "booked", tools=[book]) for name in ("a", "b")]
    flow = flow_of(
        plan("a", "b"), "ok", verdict(False, 0.9, "wrong"), work=work,
        topology="sop", guards=guarded("interactive", replans=0),
    )  # fmt: skip
    result = await flow.ainvoke("go")
    assert result.status == "aborted"
    assert done == ["book a", "book b", "undo b", "undo a"]


async def test_budget_of_a_worker_ends_that_worker_alone() -> None:
    a = worker("a", *[call("look", what=str(n)) for n in range(99)], tools=[look])
    stages = {"a": Stage(budget=CostBudget(tokens=900))}
    flow = flow_of(plan("a", "b"), work=[a, worker("b")], stages=stages, guards=guarded())
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "cost_overrun")
    outputs = {r.worker: r.output for r in result.stages if r.worker}
    assert outputs["b"]["text"] == "b is done"
    assert result.usage.by_agent["report/fan_out/a"].total_tokens <= 900


def look(what: str) -> str:
    """Look."""
    return f"{what} seen"


def test_all_faults_of_a_flow_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as error:
        Flow("bad name", work=[worker("plan"), worker("x"), worker("x")], outcome=3,  # type: ignore[call-overload]
             plan=7, stages={"nope": Stage()})  # fmt: skip
    faults = "\n".join(error.value.faults)
    for part in (
        "bad name",
        "'plan'",
        "two workers are called 'x'",
        "outcome=3",
        "plan=7",
        "'nope'",
    ):
        assert part in faults


def test_faults_of_how_a_flow_is_stored_are_told() -> None:
    fields: Any = {"guards": 3, "checkpointer": 4, "store": 5, "durability": "soon", "stages": [6]}
    with pytest.raises(ConfigurationError) as error:
        Flow("f", work=[worker("a")], **fields)
    told = [fault.partition(":")[0] for fault in error.value.faults]
    assert sorted(told) == [
        "checkpointer=4",
        "durability='soon'",
        "guards=3",
        "stages=[6]",
        "store=5",
    ]
