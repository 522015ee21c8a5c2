"""Guards that name tools hold in foreign graphs of any shape, wherever the tools run."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agentgraph import Agent, Guards, patched
from agentgraph.testing import ScriptedModel, call
from tests.guards.foreign_graphs.foreign_shapes import SHAPES

pytestmark = pytest.mark.filterwarnings(
    "ignore::langgraph.warnings.LangGraphDeprecatedSinceV10", "ignore:guards. .* asks a model"
)

ASKS = "`pay` runs only after a human has decided"
CONFIG: Any = {"configurable": {"thread_id": "t"}}
UNKNOWN = ("tools called", "functions called", "tools node called")
"""The shapes whose model is known, and whose tools run in a node that is not."""


class Till:
    """A tool that pays, and what it has paid."""

    def __init__(self) -> None:
        self.amounts: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.amounts.append(amount)
            return f"paid {amount}"

        self.tool = pay


def pays(*amounts: int) -> list[Any]:
    return [*(call("pay", amount=amount) for amount in amounts), "Done."]


def below(shape: str, till: Till, turns: list[Any], guards: Guards) -> Agent:
    """Return an agent with a graph of a shape below it."""
    graph = SHAPES[shape].make(ScriptedModel(turns), till.tool)
    boss = ScriptedModel([call("transfer_to_office"), "Bye."])
    return Agent("boss", model=boss, agents=[graph], guards=guards, default_tools=False)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_call_that_needs_an_approval_runs_without_it(shape: str) -> None:
    till = Till()
    agent = below(shape, till, pays(1), Guards(interrupt_on={"pay": True}))
    reply = await agent.ainvoke("go")
    assert till.amounts == []
    if not reply.interrupts and reply.close_reason:
        assert reply.close_reason == "interrupt_on"
        assert reply.text.startswith(f"The run was ended by the guard interrupt_on: {ASKS}")
        assert "tools='<node>'" in reply.text


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_call_beyond_the_limit_of_its_tool_runs(shape: str) -> None:
    till = Till()
    agent = below(shape, till, pays(1, 2, 3), Guards(tool_limit={"pay": 1}))
    await agent.ainvoke("go")
    assert till.amounts == [1]


@pytest.mark.parametrize("shape", UNKNOWN)
async def test_a_model_is_told_once_which_of_its_calls_may_not_run(shape: str) -> None:
    till = Till()
    model = ScriptedModel([*pays(1)[:-1], *pays(2)])
    graph = patched(SHAPES[shape].make(model, till.tool), Guards(tool_limit={"pay": 1}))
    result = await graph.ainvoke({"messages": [("user", "go")]})
    assert (till.amounts, result["messages"][-1].text) == ([1], "Done.")
    assert "1 are allowed: go on without it" in model.requests[-1].messages[-1].text


@pytest.mark.parametrize("shape", UNKNOWN)
async def test_a_call_beside_one_that_may_not_run_is_not_counted(shape: str) -> None:
    till = Till()
    model = ScriptedModel([[*pays(1)[:-1], *pays(2)[:-1]], *pays(3)])
    graph = patched(SHAPES[shape].make(model, till.tool), Guards(tool_limit={"pay": 1}))
    await graph.ainvoke({"messages": [("user", "go")]})
    assert till.amounts == [3]


@pytest.mark.parametrize("shape", UNKNOWN)
@pytest.mark.parametrize(("word", "amounts"), [("approve", [1]), ("reject", [])])
async def test_a_human_is_asked_where_the_node_of_the_tools_is_named(
    shape: str, word: str, amounts: list[int]
) -> None:
    till = Till()
    graph = SHAPES[shape].make(ScriptedModel(pays(1)), till.tool)
    graph.checkpointer = InMemorySaver()
    guarded = patched(graph, Guards(interrupt_on={"pay": True}), tools="act")
    first = await guarded.ainvoke({"messages": [("user", "go")]}, CONFIG)
    assert till.amounts == [] and first["__interrupt__"]
    last = await guarded.ainvoke(Command(resume={"type": word}), CONFIG)
    assert (till.amounts, last["messages"][-1].text) == (amounts, "Done.")


async def test_a_call_that_a_human_approves_counts_once() -> None:
    till = Till()
    saver = InMemorySaver()
    agent: Any = create_agent(ScriptedModel(pays(1)), [till.tool], checkpointer=saver)
    graph = patched(agent, Guards(interrupt_on={"pay": True}, tool_limit={"pay": 1}))
    await graph.ainvoke({"messages": [("user", "go")]}, CONFIG)
    await graph.ainvoke(Command(resume={"type": "approve"}), CONFIG)
    assert till.amounts == [1]
