"""A sub-agent's own guards: they tighten what holds around them, and never lift it."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.errors import ModelError
from agentgraph.guards import (
    AuditTrail,
    Backoff,
    Cell,
    CircuitBreaker,
    CostBudget,
    DecisionTable,
    Escalation,
    Gate,
    LoopDetector,
    MemorySink,
    RetryBudget,
    Subject,
)
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.guarded_agents import Hurried, audited, calls, look, looping, solo, watched


def below(model: ScriptedModel, own: Guards | None, around: Guards, **fields: Any) -> Agent:
    """Return an agent with a sub-agent, each with guards."""
    boss = ScriptedModel([call("transfer_to_sub")], model_name="boss")
    sub = solo(model, look, name="sub", guards=own, **fields)
    return Agent("boss", model=boss, agents=[sub], guards=around)


def detector(calls: int) -> LoopDetector:
    return LoopDetector(calls, calls, failures=calls, poll_threshold=calls)


@pytest.mark.parametrize(
    "own",
    [
        Guards(loop=None, steps=None, hops=None, depth=None, fan_out=None, budget=None),
        Guards(loop=detector(30), steps=900),
        Guards(stages={"sub": Guards(loop=None)}),
        Guards(stages={"sub": Guards(loop=detector(30))}),
        None,
    ],
    ids=["none", "longer", "a stage's none", "a stage's", "None"],
)
async def test_own_guards_do_not_lift_the_loop_detector_around_them(own: Guards | None) -> None:
    """Nine of one call in a row: the outer detector ends that at the seventh."""
    model = ScriptedModel([call("look", what="it")] * 9)
    reply = await below(model, own, watched(steps=30)).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("loop_detector", 7)


async def test_own_guards_may_be_stricter_on_loops() -> None:
    model = looping()
    agent = below(model, Guards(loop=detector(2)), watched())
    assert (await agent.ainvoke("go")).close_reason == "loop_detector"
    assert len(model.requests) == 5


@pytest.mark.parametrize(("own", "around", "most"), [(3, 9, 3), (9, 3, 2)])
async def test_the_lower_limit_of_steps_holds(own: int, around: int, most: int) -> None:
    pages = iter(range(100))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    reply = await below(model, Guards(steps=calls(own)), watched(steps=calls(around))).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", most - (own < around))


@pytest.mark.parametrize("own", [RetryBudget(1.0, 10, 10), RetryBudget(0.0, 3, 3), None])
async def test_own_guards_do_not_buy_more_retries(own: RetryBudget | None) -> None:
    model = ScriptedModel([Fault.server_error(), "never"])
    with Hurried().installed(), pytest.raises(ModelError):
        around = watched(retry=RetryBudget(0.0, 0, 0))
        await below(model, Guards(retry=own), around).ainvoke("go")
    assert len(model.requests) == 1


async def test_own_guards_may_forbid_retries() -> None:
    model = ScriptedModel([Fault.server_error(), "never"])
    with Hurried().installed(), pytest.raises(ModelError):
        await below(model, Guards(retry=RetryBudget(0.0, 0)), watched()).ainvoke("go")
    assert len(model.requests) == 1


@pytest.mark.parametrize(("own", "around"), [(9, 2), (2, 9)])
async def test_the_lower_number_of_attempts_holds(own: int, around: int) -> None:
    model = ScriptedModel([Fault.server_error()] * 9)
    with Hurried().installed(), pytest.raises(ModelError):
        policy = watched(backoff=Backoff(attempts=around))
        await below(model, Guards(backoff=Backoff(attempts=own)), policy).ainvoke("go")
    assert len(model.requests) == 2


def scored(score: float) -> Any:
    return lambda subject: score


@pytest.mark.parametrize(
    ("own", "around", "passes"),
    [
        (Escalation(0.1, critic=scored(0.6)), Escalation(0.8, critic=scored(0.9)), False),
        (Escalation(0.1), Escalation(0.8, critic=scored(0.6)), False),
        (Escalation(0.5, critic=scored(0.9)), Escalation(0.5, critic=scored(0.2)), False),
        (Escalation(0.9, critic=scored(0.8)), Escalation(0.5, critic=scored(0.8)), False),
        (Escalation(0.5, critic=scored(0.8)), Escalation(0.7, critic=scored(0.9)), True),
        (Escalation(0.5, critic=scored(0.8)), Escalation(0.5), True),
    ],
)
async def test_an_answer_has_to_pass_both_critics(
    own: Escalation, around: Escalation, passes: bool
) -> None:
    model = ScriptedModel(["An answer."])
    agent = below(model, Guards(escalation=own), watched(escalation=around))
    reply = await agent.ainvoke("go")
    assert (not reply.interrupts, reply.text) == (passes, "An answer." if passes else "")


async def test_a_critic_that_gives_no_score_does_not_pass_beside_one_that_does() -> None:
    async def silent(subject: Subject) -> Any:
        return None

    own, around = Escalation(0.1, critic=silent), Escalation(0.1, critic=scored(1))
    agent = below(ScriptedModel(["x"]), Guards(escalation=own), watched(escalation=around))
    assert (await agent.ainvoke("go")).interrupts


async def test_an_answer_has_to_pass_the_gates_of_both() -> None:
    seen: list[str] = []

    def gate(name: str) -> Gate:
        def look_at(subject: Subject) -> bool:
            seen.append(name)
            return True

        return Gate(invariants=(look_at,))

    agent = below(ScriptedModel(["x"]), Guards(gates=gate("own")), watched(gates=gate("around")))
    assert (await agent.ainvoke("go")).text == "x"
    assert seen == ["around", "own"]


async def test_a_run_has_one_trail_whatever_its_parts_were_given() -> None:
    own, whole = MemorySink(), MemorySink()
    agent = below(looping(), Guards(audit=AuditTrail(own)), watched(whole))
    await agent.ainvoke("go")
    assert [guard for _, guard, _ in audited(whole)] == ["loop_detector"] * 2
    assert own.runs() == []


async def test_a_tier_is_not_lowered_from_inside() -> None:
    own = Guards("interactive", budget=CostBudget(tokens=10_000))
    reply = await below(looping(), own, watched(tier="regulated")).ainvoke("go")
    assert reply.interrupts


async def test_a_tier_may_be_raised_from_inside() -> None:
    own = Guards.regulated(velocity=None, budget=CostBudget(tokens=10_000))
    reply = await below(looping(), own, watched()).ainvoke("go")
    assert reply.interrupts


async def test_a_human_who_is_to_decide_is_not_passed_over_from_inside() -> None:
    goes_on = Cell("correct", 9, "abort")
    own = Guards(decisions=DecisionTable({("infinite_loop", "regulated"): goes_on}))
    reply = await below(looping(), own, watched(tier="regulated")).ainvoke("go")
    assert reply.interrupts


async def test_a_stage_may_be_ended_sooner_than_the_rest() -> None:
    ends = DecisionTable({("provider_error", "interactive"): Cell("abort")})
    fallback = ScriptedModel(["Never."], model_name="cheap")
    around = watched(breaker=CircuitBreaker(fallback=fallback))
    agent = below(ScriptedModel([Fault.server_error()] * 3), Guards(decisions=ends), around)
    with Hurried().installed(), pytest.raises(ModelError):
        await agent.ainvoke("go")


async def test_the_operator_s_word_on_a_stage_outranks_the_agent_s() -> None:
    model = looping()
    own = Guards(stages={"sub": Guards(loop=detector(9))})
    around = watched(stages={"sub": Guards(loop=detector(2))})
    assert (await below(model, own, around).ainvoke("go")).close_reason == "loop_detector"
    assert len(model.requests) == 5
