"""Answers that no model has put in words: given in a form, or by a tool. They are judged too."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from agentgraph import Agent, Finish, Team, sequence
from agentgraph.guards import CircuitBreaker, Escalation, Gate, MemorySink, Subject
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import audited, is_legal, solo, watched, words_of


class Offer(BaseModel):
    """What an answer has to be."""

    price: int


class Judged:
    """A gate that refuses a word, and knows what it has seen."""

    def __init__(self, word: str) -> None:
        self.seen: list[str] = []
        self._word = word

    def verdict(self, subject: Subject) -> str | None:
        self.seen.append(subject.text)
        return f"no {self._word}, please" if self._word in subject.text else None

    @property
    def gate(self) -> Gate:
        return Gate(invariants=[self.verdict])


@tool(return_direct=True)
def tell(what: str) -> str:
    """Tell it."""
    return f"It is {what}."


def close(what: str) -> Finish:
    """Say it, and be done."""
    return Finish(text=f"It is {what}.", reason="told")


def offering(*turns: Any, **fields: Any) -> Agent:
    return solo(ScriptedModel(turns), response_format=Offer, **fields)


def telling(*turns: Any, **fields: Any) -> Agent:
    return solo(ScriptedModel(turns), tell, **fields)


def last_heard(agent: Agent) -> Any:
    model: Any = agent.model
    return model.requests[-1].messages[-1]


async def test_an_answer_in_a_form_that_does_not_pass_is_given_once_more() -> None:
    judged, sink = Judged("13"), MemorySink()
    guards = watched(sink, gates=judged.gate)
    agent = offering(call("Offer", price=13), call("Offer", price=14), guards=guards)
    reply = await agent.ainvoke("how much?", thread_id="t")
    assert (reply.output, reply.close_reason) == (Offer(price=14), None)
    assert judged.seen == ['{"price": 13}', '{"price": 14}']
    assert audited(sink) == [("a", "gate", "correct")]
    refused = last_heard(agent)
    assert isinstance(refused, ToolMessage) and "no 13, please" in refused.text
    assert is_legal(await agent.ahistory("t"))


async def test_a_form_that_is_not_filled_in_yet_is_no_answer_to_judge() -> None:
    judged = Judged("13")
    asks = (call("Offer", price="dear"), call("Offer", price=14))
    reply = await offering(*asks, guards=watched(gates=judged.gate)).ainvoke("how much?")
    assert reply.output == Offer(price=14)
    assert judged.seen == ['{"price": 14}']


@pytest.mark.parametrize(
    ("decision", "price"),
    [("approve", 13), ({"type": "edit", "edited": {"price": 15}}, 15), ("reject", None)],
)
async def test_a_human_decides_on_an_answer_in_a_form(decision: Any, price: int | None) -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1)
    agent = offering(call("Offer", price=13), guards=watched(escalation=critic))
    asked = await agent.ainvoke("how much?", thread_id="t")
    [question] = asked.interrupts
    payload: Any = question.payload
    assert (asked.output, payload["answer"]) == (None, '{"price": 13}')
    reply = await agent.aresume("t", {question.id: decision})
    assert reply.output == (None if price is None else Offer(price=price))
    assert is_legal(await agent.ahistory("t"))


async def test_an_edit_that_is_not_in_the_form_goes_back_to_the_human() -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1)
    agent = offering(call("Offer", price=13), guards=watched(escalation=critic))
    [question] = (await agent.ainvoke("how much?", thread_id="t")).interrupts
    edit = {"type": "edit", "edited": {"price": "dear"}}
    [again] = (await agent.aresume("t", {question.id: edit})).interrupts
    told: Any = again.payload
    assert "not in the form of the answer" in told["cause"]
    reply = await agent.aresume("t", {again.id: {"type": "edit", "edited": {"price": 9}}})
    assert reply.output == Offer(price=9)


async def test_an_answer_of_a_tool_that_does_not_pass_goes_back_to_the_model() -> None:
    judged, sink = Judged("secret"), MemorySink()
    guards = watched(sink, gates=judged.gate)
    agent = telling(call("tell", what="secret"), call("tell", what="blue"), guards=guards)
    reply = await agent.ainvoke("what is it?", thread_id="t")
    assert (reply.text, reply.close_reason) == ("It is blue.", None)
    assert judged.seen == ["It is secret.", "It is blue."]
    assert audited(sink) == [("a", "gate", "correct")]
    assert "no secret, please" in last_heard(agent).text
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert [str(m.text) for m in history if m.type == "ai" and m.text] == ["It is blue."]


async def test_answers_of_several_tools_are_judged_as_the_one_that_they_come_to() -> None:
    judged = Judged("nothing")
    asks = [call("tell", what="blue"), call("tell", what="round")]
    agent = telling(asks, guards=watched(gates=judged.gate))
    reply = await agent.ainvoke("what is it?")
    assert reply.text == "It is blue.\n\nIt is round."
    assert judged.seen == [reply.text]
    assert len(agent.model.requests) == 1  # type: ignore[union-attr]


async def test_an_answer_of_a_tool_that_is_forbidden_is_replaced_by_a_safe_one() -> None:
    judged = Judged("secret")
    safe = CircuitBreaker(fallback=AIMessage("I must not tell."))
    guards = watched(gates=Gate(policy=judged.verdict), breaker=safe)
    agent = telling(call("tell", what="hidden, a secret"), guards=guards)
    # The call itself is looked at first, which has no text.
    reply = await agent.ainvoke("what is it?", thread_id="t")
    assert reply.text == "I must not tell."
    assert judged.seen == ["", "It is hidden, a secret."]
    assert is_legal(await agent.ahistory("t"))


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ("approve", "It is blue."),
        ({"type": "edit", "edited": "It is red."}, "It is red."),
        ({"type": "respond", "message": "Ann knows."}, "Ann knows."),
        ("reject", ""),
    ],
)
async def test_a_human_decides_on_an_answer_of_a_tool(decision: Any, text: str) -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1)
    agent = telling(call("tell", what="blue"), "next", guards=watched(escalation=critic))
    asked = await agent.ainvoke("what is it?", thread_id="t")
    assert asked.text == ""
    [question] = asked.interrupts
    payload: Any = question.payload
    assert payload["answer"] == "It is blue."
    reply = await agent.aresume("t", {question.id: decision})
    assert (words_of(reply), reply.interrupts) == (text, ())
    assert is_legal(await agent.ahistory("t"))
    assert len(agent.model.requests) == 1  # type: ignore[union-attr]


async def test_what_a_tool_finishes_with_is_judged_before_it_is_said() -> None:
    judged = Judged("secret")
    model = ScriptedModel([call("close", what="secret"), "It is blue."])
    agent = solo(model, close, guards=watched(gates=judged.gate))
    reply = await agent.ainvoke("what is it?", thread_id="t")
    assert (reply.text, judged.seen) == ("It is blue.", ["It is secret.", "It is blue."])
    assert is_legal(await agent.ahistory("t"))


async def test_a_team_closes_as_its_tool_says_when_the_text_has_passed() -> None:
    judged = Judged("secret")
    agent = solo(ScriptedModel([call("close", what="blue")]), close)
    team = Team([agent], sequence(["a", "a"]), guards=watched(gates=judged.gate))
    result = await team.arun("what is it?")
    assert (result.text, result.close_reason) == ("It is blue.", "told")
    assert judged.seen == ["It is blue."]
