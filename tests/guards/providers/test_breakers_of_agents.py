"""An agent whose answers fail its gates for good is left alone for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from agentgraph import Agent
from agentgraph.guards import Backoff, CircuitBreaker, DecisionTable, Gate, MemorySink, Subject
from agentgraph.guards.table import Cell
from agentgraph.testing import ScriptedModel
from tests.guards.guarded_agents import Hurried, audited, solo, watched

COOLDOWN_S = 30


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


def is_good(subject: Subject) -> bool:
    return "bad" not in subject.text


class Moody:
    """A model that says what it is told to say."""

    def __init__(self) -> None:
        self.says = "bad"
        self.model = ScriptedModel(lambda _: self.says)

    @property
    def requests(self) -> int:
        return len(self.model.requests)


def strict(moody: Moody, sink: MemorySink | None = None, **fields: Any) -> Agent:
    gates = fields.pop("gates", Gate(invariants=[is_good]))
    return solo(moody.model, guards=watched(sink, gates=gates, **fields))


async def test_while_it_is_open_a_human_is_asked_and_the_model_is_not(clock: Hurried) -> None:
    moody, sink = Moody(), MemorySink()
    agent = strict(moody, sink)
    assert (await agent.ainvoke("one")).close_reason == "gate"
    assert moody.requests == 2
    reply = await agent.ainvoke("two", thread_id="t")
    assert (moody.requests, reply.close_reason) == (2, None)
    (question,) = reply.interrupts
    assert question.payload["failure_class"] == "schema_failure"
    assert audited(sink)[-1] == ("a", "circuit_breaker", "escalate")
    moody.says = "good"
    assert (await agent.aresume("t", {question.id: "approve"})).text == "good"
    assert moody.requests == 3


async def test_while_it_is_open_the_fallback_answers(clock: Hurried) -> None:
    moody, cheap = Moody(), ScriptedModel(["cheap"] * 9)
    agent = strict(moody, breaker=CircuitBreaker(fallback=cheap))
    await agent.ainvoke("one")
    reply = await agent.ainvoke("two")
    assert (reply.text, moody.requests, len(cheap.requests)) == ("cheap", 2, 1)
    safe = strict(moody, breaker=CircuitBreaker(fallback=AIMessage("Call us.")))
    await safe.ainvoke("one")
    before = moody.requests
    assert ((await safe.ainvoke("two")).text, moody.requests) == ("Call us.", before)


async def test_after_the_cooldown_one_answer_that_passes_closes_it(clock: Hurried) -> None:
    moody = Moody()
    agent = strict(moody, breaker=CircuitBreaker(fallback=AIMessage("Call us.")))
    await agent.ainvoke("one")
    clock.advance(COOLDOWN_S)
    await agent.ainvoke("still bad: it opens again, for twice as long")
    clock.advance(COOLDOWN_S)
    assert (await agent.ainvoke("too early")).text == "Call us."
    clock.advance(COOLDOWN_S)
    moody.says = "good"
    assert (await agent.ainvoke("now")).text == "good"
    assert (await agent.ainvoke("and again")).text == "good"


async def test_an_answer_that_passes_at_another_try_leaves_it_closed(clock: Hurried) -> None:
    turns = iter(["bad", "good"] * 9)
    model = ScriptedModel(lambda _: next(turns))
    agent = solo(model, guards=watched(gates=Gate(invariants=[is_good])))
    replies = [await agent.ainvoke(f"hello {n}") for n in range(6)]
    assert [reply.text for reply in replies] == ["good"] * 6


async def test_other_agents_on_the_same_model_and_guards_are_asked(clock: Hurried) -> None:
    moody = Moody()
    guards = watched(gates=Gate(invariants=[is_good]))
    await solo(moody.model, guards=guards).ainvoke("one")
    moody.says = "good"
    other = solo(moody.model, name="b", guards=guards)
    assert (await other.ainvoke("two")).text == "good"


async def test_what_a_policy_refuses_says_nothing_of_the_agent(clock: Hurried) -> None:
    moody = Moody()
    cells: Any = {("unsafe_output", "interactive"): Cell("correct", 1, "abort")}
    decisions = DecisionTable(cells)
    agent = strict(moody, gates=Gate(policy=is_good), decisions=decisions, backoff=Backoff())
    await agent.ainvoke("one")
    moody.says = "good"
    assert (await agent.ainvoke("two")).text == "good"
