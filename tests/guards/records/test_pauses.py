"""A run that waits for a human goes on elsewhere with all that was known where it waited."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from agentgraph import Agent, patched
from agentgraph.agents import Reply
from agentgraph.guards import AuditTrail, CostBudget, Escalation, Guards, SQLiteSink, folded
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.escalating_agents import Till, pays
from tests.guards.guarded_agents import look, solo, watched
from tests.guards.records.test_account_in_a_new_process import another_process

DURABILITIES = pytest.mark.parametrize("durability", ["async", "sync"])


class Shows(AgentMiddleware[Any, Any, Any]):
    """Show a human each answer of the model, or what it is about to be asked."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self._before = before

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        if self._before:
            interrupt("may it be asked?")
            return await handler(request)
        answer = await handler(request)
        interrupt("may it be said?")
        return answer


async def until_done(make: Any, most: int = 30) -> tuple[Reply, int]:
    """Have each answer to a human's question come to a process of its own."""
    saver, asked = InMemorySaver(), 0
    reply: Reply = await make(saver).ainvoke("go", thread_id="t")
    while reply.interrupts and asked < most:
        asked += 1
        saver = another_process(saver)
        gc.collect()  # nobody has the account in memory: the next one has the checkpoint alone
        [question] = reply.interrupts
        reply = await make(saver).aresume("t", {question.id: "yes"})
    return reply, asked


@pytest.mark.parametrize("durability", ["async", "sync", "exit"])
async def test_a_loop_is_seen_whoever_is_asked_before_each_model_call(durability: str) -> None:
    def make(saver: InMemorySaver) -> Agent:
        model = ScriptedModel(lambda _: call("look", what="it"))
        fields: dict[str, Any] = {"checkpointer": saver, "durability": durability}
        return solo(model, look, middleware=[Shows(before=True)], guards=watched(), **fields)

    reply, asked = await until_done(make)
    assert reply.close_reason == "loop_detector"
    assert asked <= 9


@DURABILITIES
async def test_what_was_paid_before_a_pause_in_the_model_s_node_is_paid(durability: str) -> None:
    calls = 0
    used = UsageMetadata(input_tokens=40, output_tokens=960, total_tokens=1_000)

    def turn(messages: list[BaseMessage]) -> Turn:
        nonlocal calls
        calls += 1
        return Turn(calls=[call("look", what=str(len(messages)))], usage=used)

    def make(saver: InMemorySaver) -> Agent:
        fields: dict[str, Any] = {"checkpointer": saver, "durability": durability}
        policy = watched(budget=CostBudget(tokens=6_000))
        model = ScriptedModel(turn)
        return solo(model, look, middleware=[Shows(before=False)], guards=policy, **fields)

    reply, _ = await until_done(make)
    assert reply.close_reason == "cost_budget"
    assert calls <= 6


def may_i() -> str:
    """Ask a human."""
    return str(interrupt("may I?"))


@DURABILITIES
@pytest.mark.parametrize("kind", ["tool", "delegate"])
async def test_who_waits_beside_a_rejected_one_does_nothing_more_elsewhere(
    kind: str, durability: str
) -> None:
    till = Till()

    def make(saver: InMemorySaver) -> Agent:
        return _two(till, kind, checkpointer=saver, durability=durability)

    saver = InMemorySaver()
    asked = await make(saver).ainvoke("go", thread_id="t")
    [doubt] = [one for one in asked.interrupts if isinstance(one.payload, dict)]
    [other] = [one for one in asked.interrupts if one.id != doubt.id]
    rejected = await make(saver).aresume("t", {doubt.id: "reject"})
    assert rejected.close_reason == "escalation"
    saver = another_process(saver)
    gc.collect()
    reply = await make(saver).aresume("t", {other.id: "yes"})
    assert reply.close_reason == "escalation"
    assert till.tries[:2] in (["pay one", "pay two"], ["pay two", "pay one"])
    assert sorted(till.tries[2:]) == ["give back one", "give back two"]


def _two(till: Till, kind: str, **fields: Any) -> Agent:
    def two(messages: list[BaseMessage]) -> Any:
        done = sum(isinstance(m, ToolMessage) and m.name in ("pay", "may_i") for m in messages)
        turns = [call("pay", item="two"), call("may_i"), call("pay", item="more"), "Two."]
        return turns[min(done, 3)]

    def one(messages: list[BaseMessage]) -> Any:
        done = any(isinstance(m, ToolMessage) and m.name == "pay" for m in messages)
        return "One." if done else pays("one")[0]

    workers = [
        Agent("one", model=ScriptedModel(one), tools=[till.tool], default_tools=False),
        Agent("two", model=ScriptedModel(two), tools=[till.tool, may_i], default_tools=False),
    ]
    names = ("one", "two")
    if kind == "tool":
        asks: Any = [call(name, request="go") for name in names]
        agents: Any = [worker.as_tool() for worker in workers]
    else:
        asks = [call(f"transfer_to_{name}", reason="go") for name in names]
        agents, fields = workers, {"handoff": "delegate", **fields}
    doubt = Escalation(0.8, lambda subject: 0.1 if subject.stage == "one" else 1.0)
    policy = Guards.interactive(escalation=doubt)
    model = ScriptedModel(lambda messages: "Done." if messages[-1].type == "tool" else asks)
    return Agent("boss", model=model, agents=agents, guards=policy, default_tools=False, **fields)


@pytest.mark.parametrize("kind", ["agent", "foreign"])
async def test_the_records_of_a_graph_number_on_in_another_process(
    kind: str, tmp_path: Any
) -> None:
    def make(saver: InMemorySaver) -> tuple[Any, AuditTrail]:
        trail = AuditTrail(SQLiteSink(tmp_path / "audit.db"))
        policy, model = Guards.interactive(audit=trail), ScriptedModel(_asks_twice)
        if kind == "agent":
            agent = solo(model, may_i, checkpointer=saver, guards=policy)
            return agent.graph, trail
        graph = create_agent(model, [may_i], checkpointer=saver)
        return patched(graph, policy), trail

    saver, config = InMemorySaver(), {"configurable": {"thread_id": "t"}}
    given: Any = {"messages": [HumanMessage("go", id="1")]}
    for _ in range(3):
        graph, trail = make(saver)
        result = await graph.ainvoke(given, config, version="v2")
        trail.close()
        saver, given = another_process(saver), Command(resume="yes")
        del graph
        gc.collect()
    assert not result.interrupts
    sink = SQLiteSink(tmp_path / "audit.db")
    [run] = sink.runs()
    records = sink.read(run)
    assert [one.seq for one in records] == [*range(1, len(records) + 1)]
    told = [m.usage_metadata for m in result.value["messages"] if isinstance(m, AIMessage)]
    assert folded(records).spend.total_tokens == sum(one["total_tokens"] for one in told if one)


def _asks_twice(messages: list[BaseMessage]) -> Any:
    answered = sum(isinstance(message, ToolMessage) for message in messages)
    return call("may_i") if answered < 2 else "Done."
