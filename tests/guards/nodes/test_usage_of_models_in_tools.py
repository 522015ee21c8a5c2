"""A model that a tool asks itself: its usage counts once, in `Reply.usage` and in the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages.ai import UsageMetadata

from agentgraph import Agent, Guards, Team, patched
from agentgraph.guards import AuditTrail, MemorySink, folded
from agentgraph.routing import sequence
from agentgraph.testing import ScriptedModel, Turn, call

USED = UsageMetadata(input_tokens=90, output_tokens=10, total_tokens=100)


def model(*turns: Any) -> ScriptedModel:
    """Return a model that uses 100 tokens for each of its answers."""
    calls = [{"calls": turn} if isinstance(turn, list) else {"text": turn} for turn in turns]
    return ScriptedModel([Turn(**fields, usage=USED) for fields in calls])


def by_ainvoke(asked: ScriptedModel) -> Any:
    async def think() -> str:
        """Ask a model."""
        return str((await asked.ainvoke("why?")).text)

    return think


def by_invoke(asked: ScriptedModel) -> Any:
    def think() -> str:
        """Ask a model."""
        return str(asked.invoke("why?").text)

    return think


def by_astream(asked: ScriptedModel) -> Any:
    async def think() -> str:
        """Ask a model."""
        return "".join([str(chunk.text) async for chunk in asked.astream("why?")])

    return think


def by_graph(asked: ScriptedModel) -> Any:
    graph: Any = create_agent(asked, [])

    async def think() -> str:
        """Ask a graph of others."""
        result = await graph.ainvoke({"messages": [("user", "why?")]})
        return str(result["messages"][-1].text)

    return think


WAYS = [by_ainvoke, by_invoke, by_astream, by_graph]


def thinking(tool: Any, guards: Guards | None) -> Agent:
    turns = model([call("think")], "Done.")
    return Agent("a", model=turns, tools=[tool], guards=guards, default_tools=False)


def in_sub_agent(tool: Any, guards: Guards | None) -> Agent:
    below = thinking(tool, None)
    boss = model([call("transfer_to_a")], "Done.")
    return Agent("boss", model=boss, agents=[below], guards=guards, handoff="delegate")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_its_usage_is_in_the_reply_at_the_path_of_the_tool(
    way: Callable[[ScriptedModel], Any], is_guarded: bool
) -> None:
    guards = Guards.interactive() if is_guarded else None
    reply = await thinking(way(model("Because.")), guards).ainvoke("go")
    assert {path: part.total_tokens for path, part in reply.usage.by_agent.items()} == {
        "a": 200,
        "a/think": 100,
    }
    reply = await in_sub_agent(way(model("Because.")), guards).ainvoke("go")
    assert reply.usage.by_agent["boss/a/think"].total_tokens == 100


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("tokens", "is_enough"), [(1_000, True), (240, False)])
async def test_it_is_paid_from_the_budget(
    way: Callable[[ScriptedModel], Any], tokens: int, is_enough: bool
) -> None:
    reply = await thinking(way(model("Because.")), Guards.interactive(budget=tokens)).ainvoke("go")
    assert (reply.close_reason is None) == is_enough
    if not is_enough:
        assert "200 are spent" in reply.text


async def test_a_tool_asks_no_more_models_on_a_budget_that_is_used_up() -> None:
    asked = model(*["Because."] * 9)

    async def think() -> str:
        """Ask a model again and again."""
        return "".join([str((await asked.ainvoke("why?")).text) for _ in range(9)])

    reply = await thinking(think, Guards.interactive(budget=400)).ainvoke("go")
    assert reply.close_reason == "cost_budget"
    assert len(asked.requests) == 3


async def test_a_tool_may_ask_a_model_a_hundred_times() -> None:
    asked = model(*["no spam"] * 100)

    async def think() -> str:
        """Classify."""
        return str([(await asked.ainvoke(f"mail {n}")).text for n in range(100)][-1])

    reply = await thinking(think, Guards.interactive()).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)
    assert reply.usage.by_agent["a/think"].total_tokens == 10_000


async def test_what_an_agent_or_a_guarded_graph_in_a_tool_spends_is_paid_for_once() -> None:
    inner = Agent("inner", model=model("Because."), default_tools=False)
    bare = Agent("bare", model=model("Because."), guards=None, default_tools=False)
    foreign = patched(create_agent(model("Because."), []), Guards.interactive())

    async def think() -> str:
        """Ask agents."""
        await inner.ainvoke("why?")
        for graph in (bare.graph, foreign):
            await graph.ainvoke({"messages": [("user", "why?")]})
        return "Because."

    sink = MemorySink()
    guards = Guards.interactive(budget=560, audit=AuditTrail(sink))
    reply = await thinking(think, guards).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)
    assert folded(sink.read(sink.runs()[0])).spend.total_tokens == 500


async def test_it_is_in_the_audit_trail() -> None:
    sink = MemorySink()
    guards = Guards.interactive(audit=AuditTrail(sink))
    await thinking(by_ainvoke(model("Because.")), guards).ainvoke("go")
    assert folded(sink.read(sink.runs()[0])).spend.total_tokens == 300


async def test_it_is_in_the_usage_of_a_team() -> None:
    agent = thinking(by_ainvoke(model("Because.")), Guards.interactive())
    result = await Team([agent], sequence(["a"])).arun("go")
    assert result.usage.total_tokens == 300
