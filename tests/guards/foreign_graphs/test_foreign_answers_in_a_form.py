"""Answers that graphs of others give in a form: they are judged and decided on as texts are."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command
from pydantic import BaseModel

from agentgraph import Agent, patched
from agentgraph.guards import CircuitBreaker, Escalation, Gate, MemorySink, Subject
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import audited, is_legal, look, stopped_by, watched

GO = {"messages": [HumanMessage("go")]}
ON_T: Any = {"configurable": {"thread_id": "t"}}
TOOLS = pytest.mark.parametrize("tools", [(), (look,)], ids=["alone", "tools"])


class Offer(BaseModel):
    """What it costs."""

    price: int


def offering(model: Any, *tools: Any, form: Any = None, **held: Any) -> Any:
    """Return a guarded clerk who answers in a form."""
    form = form or ToolStrategy(Offer)
    known = JsonPlusSerializer(allowed_msgpack_modules=[Offer])
    saver = InMemorySaver(serde=known)
    graph = create_agent(model, list(tools), response_format=form, checkpointer=saver)
    return patched(graph, watched(**held))


def refusing(word: str, seen: list[str]) -> Gate:
    """Return a gate that notes what it has seen."""

    def verdict(subject: Subject) -> str | None:
        seen.append(subject.text)
        return f"no {word}, please" if word in subject.text else None

    return Gate(invariants=[verdict])


def is_cheap(subject: Subject) -> bool:
    return "99" not in subject.text


def doubtful() -> Escalation:
    return Escalation(0.5, critic=lambda subject: 0.1)


@TOOLS
async def test_an_answer_in_a_form_that_does_not_pass_is_given_once_more(tools: Any) -> None:
    seen: list[str] = []
    sink = MemorySink()
    model = ScriptedModel([call("Offer", price=13), call("Offer", price=14)])
    guards = watched(sink, gates=refusing("13", seen))
    graph = patched(create_agent(model, [*tools], response_format=ToolStrategy(Offer)), guards)
    result = await graph.ainvoke(GO)
    assert (result["structured_response"], stopped_by(result)) == (Offer(price=14), None)
    assert seen == ['{"price": 13}', '{"price": 14}']
    assert audited(sink) == [("graph", "gate", "correct")]
    assert "no 13, please" in model.requests[1].messages[-1].text
    assert is_legal(result["messages"])
    assert [m.type for m in result["messages"]] == ["human", "ai", "tool"]


async def test_a_form_beside_another_call_is_judged_before_the_tool_runs() -> None:
    seen: list[str] = []
    asks = [call("look", what="it"), call("Offer", price=13)]
    model = ScriptedModel([asks, call("Offer", price=14)])
    result = await offering(model, look, gates=refusing("13", seen)).ainvoke(GO, ON_T)
    assert result["structured_response"] == Offer(price=14)
    assert [m.name for m in result["messages"] if m.type == "tool"] == ["Offer"]


@TOOLS
async def test_a_form_that_is_not_filled_in_yet_is_no_answer_to_judge(tools: Any) -> None:
    seen: list[str] = []
    model = ScriptedModel([call("Offer", price="dear"), call("Offer", price=14)])
    result = await offering(model, *tools, gates=refusing("13", seen)).ainvoke(GO, ON_T)
    assert result["structured_response"] == Offer(price=14)
    assert seen == ['{"price": 14}']


@TOOLS
@pytest.mark.parametrize(
    ("form", "turn"),
    [
        (ToolStrategy(Offer), call("Offer", price=13)),
        (ProviderStrategy(Offer), '{"price": 13}'),
    ],
    ids=["tool", "provider"],
)
@pytest.mark.parametrize(
    ("decision", "price"),
    [("approve", 13), ({"type": "edit", "edited": {"price": 15}}, 15), ("reject", None)],
    ids=["approve", "edit", "reject"],
)
async def test_a_human_decides_on_an_answer_in_a_form(
    tools: Any, form: Any, turn: Any, decision: Any, price: int | None
) -> None:
    model = ScriptedModel([turn])
    graph = offering(model, *tools, form=form, escalation=doubtful())
    asked = await graph.ainvoke(GO, ON_T)
    (question,) = asked["__interrupt__"]
    assert question.value["answer"] == '{"price": 13}'
    assert asked.get("structured_response") is None
    result = await graph.ainvoke(Command(resume={question.id: decision}), ON_T)
    expected = None if price is None else Offer(price=price)
    assert (result.get("structured_response"), len(model.requests)) == (expected, 1)
    assert stopped_by(result) == ("escalation" if price is None else None)
    assert is_legal(result["messages"])


@TOOLS
async def test_an_edit_that_does_not_pass_goes_back_to_the_human(tools: Any) -> None:
    held: Any = {"gates": refusing("15", []), "escalation": doubtful()}
    graph = offering(ScriptedModel([call("Offer", price=13)]), *tools, **held)
    (question,) = (await graph.ainvoke(GO, ON_T))["__interrupt__"]
    for price in (15, 16):
        edit = {"type": "edit", "edited": {"price": price}}
        result = await graph.ainvoke(Command(resume={question.id: edit}), ON_T)
        (question,) = result.get("__interrupt__") or (question,)
    assert (result["structured_response"], stopped_by(result)) == (Offer(price=16), None)


@TOOLS
async def test_a_text_of_a_human_ends_it_though_it_is_not_in_the_form(tools: Any) -> None:
    model = ScriptedModel([call("Offer", price=13)])
    graph = offering(model, *tools, escalation=doubtful())
    (question,) = (await graph.ainvoke(GO, ON_T))["__interrupt__"]
    said = {"type": "respond", "message": "Not for sale."}
    result = await graph.ainvoke(Command(resume={question.id: said}), ON_T)
    assert (result["messages"][-1].text, stopped_by(result)) == ("Not for sale.", None)
    assert (result.get("structured_response"), len(model.requests)) == (None, 1)


@TOOLS
async def test_what_is_said_instead_leaves_no_answer_of_an_input_before(tools: Any) -> None:
    model = ScriptedModel([call("Offer", price=13), call("Offer", price=99), "Never."])
    gates, safe = Gate(policy=is_cheap), CircuitBreaker(fallback=AIMessage("Ask again later."))
    graph = offering(model, *tools, gates=gates, breaker=safe)
    first = await graph.ainvoke(GO, ON_T)
    assert first["structured_response"] == Offer(price=13)
    result = await graph.ainvoke(GO, ON_T)
    assert (result["messages"][-1].text, stopped_by(result)) == ("Ask again later.", None)
    assert (result.get("structured_response"), len(model.requests)) == (None, 2)
    assert is_legal(result["messages"])


@TOOLS
async def test_an_input_that_is_stopped_has_no_answer_of_one_before(tools: Any) -> None:
    model = ScriptedModel([call("Offer", price=13), call("Offer", price=99)])
    graph = offering(model, *tools, gates=Gate(policy=is_cheap))
    await graph.ainvoke(GO, ON_T)
    result = await graph.ainvoke(GO, ON_T)
    assert (stopped_by(result), result.get("structured_response")) == ("gate", None)


@TOOLS
async def test_a_form_of_a_sub_agent_passes_its_supervisor_s_gates(tools: Any) -> None:
    seen: list[str] = []
    sink = MemorySink()
    model = ScriptedModel([call("Offer", price=13), call("Offer", price=14)])
    clerk = create_agent(model, [*tools], name="clerk", response_format=ToolStrategy(Offer))
    boss = ScriptedModel([call("transfer_to_clerk")])
    agent = Agent(
        "boss", model=boss, agents=[clerk], guards=watched(sink, gates=refusing("13", seen))
    )
    await agent.ainvoke("go", thread_id="t")
    assert seen == ['{"price": 13}', '{"price": 14}']
    assert audited(sink) == [("boss/clerk", "gate", "correct")]
    assert is_legal(await agent.ahistory("t"))
