"""A guard may be given by its first setting alone, and by all of them alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from agentgraph import Agent, Guards
from agentgraph.errors import ConfigurationError
from agentgraph.guards import (
    Backoff,
    Cell,
    CircuitBreaker,
    CostBudget,
    CostVelocity,
    Deadlines,
    DecisionTable,
    DepthLimit,
    Escalation,
    FanOutLimit,
    Gate,
    HopLimit,
    LoopDetector,
    MemorySink,
    ReplanLimit,
    RetryBudget,
    StepLimit,
)
from agentgraph.testing import Fault, ScriptedModel
from tests.guards.guarded_agents import solo

SORRY = AIMessage("Sorry, try later.")


class Refund(BaseModel):
    amount: int


CELLS: Mapping[Any, Cell] = {("provider_error", "batch"): Cell("abort")}
FORMS: dict[str, tuple[Any, object]] = {
    "steps": (20, StepLimit(20)),
    "hops": (3, HopLimit(3)),
    "depth": (4, DepthLimit(4)),
    "fan_out": (8, FanOutLimit(8)),
    "replans": (1, ReplanLimit(1)),
    "loop": (4, LoopDetector(window=7, threshold=4)),
    "breaker": (SORRY, CircuitBreaker(fallback=SORRY)),
    "retry": (0.2, RetryBudget(0.2)),
    "backoff": (5, Backoff(attempts=5)),
    "budget": (1000, CostBudget(tokens=1000)),
    "velocity": (50_000, CostVelocity(tokens_per_min=50_000)),
    "escalation": (0.7, Escalation(0.7)),
    "decisions": (CELLS, DecisionTable(CELLS)),
    "gates": (Refund, (Gate(Refund),)),
}


@pytest.mark.parametrize("make", [Guards.interactive, Guards.batch, Guards])
@pytest.mark.parametrize("name", FORMS)
def test_a_plain_value_is_the_guard_with_that_setting(name: str, make: Any) -> None:
    value, guard = FORMS[name]
    assert str(getattr(make(**{name: value}), name)) == str(guard)


def test_all_at_once_and_beside_guards() -> None:
    sink = MemorySink()
    guards = Guards(hops=3, deadlines=30, budget=1000, audit=sink, retry=RetryBudget(0.2))
    assert (guards.hops, guards.budget) == (HopLimit(3), CostBudget(tokens=1000))
    assert guards.audit is not None and guards.audit.sink is sink


async def test_a_sink_given_alone_gets_the_records() -> None:
    sink = MemorySink()
    await solo(ScriptedModel(["Hi."]), guards=Guards(audit=sink)).ainvoke("go")
    assert sink.read(sink.runs()[0])[0].kind == "input"


async def test_a_message_given_alone_answers_for_a_provider_that_is_down() -> None:
    model = ScriptedModel([Fault.server_error()] * 9)
    guards = Guards(breaker=SORRY, backoff=1)
    assert (await solo(model, guards=guards).ainvoke("go")).text == "Sorry, try later."


@pytest.mark.parametrize(
    ("seconds", "deadlines"),
    [(30, Deadlines(30, 30, 30)), (90, Deadlines(60, 90, 90)), (3600, Deadlines(60, 3600, 3600))],
)
def test_a_number_of_seconds_is_for_the_whole_input(seconds: float, deadlines: Deadlines) -> None:
    assert Guards(deadlines=seconds).deadlines == deadlines


def test_the_deadline_of_a_call_stays_that_of_the_tier() -> None:
    assert Guards.batch(deadlines=600).deadlines == Deadlines(120, 600, 600)
    assert Guards.batch(stages={"a": Guards(deadlines=5)}).at("a").deadlines.stage_s == 5


def test_none_removes_a_guard() -> None:
    removable = FORMS.keys() - {"replans", "escalation", "decisions", "gates"}
    guards = Guards(**dict.fromkeys(removable, None))  # type: ignore[arg-type]
    assert all(getattr(guards, name) is None for name in removable)
    assert Guards(gates=None).gates == ()


def test_several_gates_may_be_schemas() -> None:
    gate = Gate(policy=lambda subject: True)
    by_tool = {"refund": Refund}
    gates = Guards(gates=[Refund, gate, by_tool, {"type": "object"}]).gates
    assert [g.schema for g in gates] == [Refund, None, by_tool, {"type": "object"}]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hops", -1, "give a HopLimit, or how many handoffs, 0 or more; None removes it"),
        ("deadlines", 0, "give a Deadlines, or seconds above 0 for a whole input"),
        ("audit", "file", "give an AuditTrail, or a sink, which has write() and read()"),
        ("escalation", 2, "give an Escalation, or the score from 0 to 1 below which"),
        ("deadlines", "30s", "seconds above 0"),
        ("deadlines", float("nan"), "seconds above 0"),
        ("budget", 0.5, "how many tokens"),
        ("budget", "0.50 USD", "how many tokens"),
        ("escalation", 70, "the score from 0 to 1"),
        ("audit", "audit.jsonl", "a sink, which has write() and read()"),
        ("audit", MemorySink, "a sink, which has write() and read()"),
        ("loop", True, "how many equal calls are a loop, 2 or more"),
        ("loop", False, "None removes it"),
        ("retry", 5, "which part of all calls"),
        ("velocity", False, "how many tokens a minute"),
        ("decisions", {("deadlock", "batch"): "abort"}, "give a Cell"),
        ("gates", {"type": "objekt"}, "this is no JSON Schema"),
        ("gates", [{"refund": 3}], "give a pydantic model"),
        ("saga", True, "give a Saga; None removes it"),
    ],
)
def test_what_cannot_be_a_guard_is_refused_with_what_to_give(
    name: str, value: Any, words: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Guards(**{name: value}, hops=-1) if name != "hops" else Guards(hops=value)
    [fault] = [fault for fault in caught.value.faults if fault.startswith(name)]
    assert fault.startswith(f"{name}={value!r}: ") and words in fault
    assert name == "hops" or len(caught.value.faults) == 2


def test_agents_take_them_too() -> None:
    agent = Agent("a", model=ScriptedModel(["Hi."]), guards=Guards(hops=1, deadlines=5))
    assert agent.policy is not None and agent.policy.deadlines.workflow_s == 5
