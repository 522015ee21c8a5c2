"""A human takes their time: it is none of the run's, but it is not without end."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from agentgraph.guards import CostBudget, Deadlines, Escalation, MemorySink
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.escalating_agents import (
    ANSWER,
    PLACES,
    REASONS,
    Till,
    asked,
    clerk,
    decided,
    said,
    tree,
    unsure,
)
from tests.guards.guarded_agents import recorded, words_of
from tests.guards.metered_models import OUTPUT, READ, Metered, paid

everywhere = pytest.mark.parametrize("place", PLACES)


@everywhere
@pytest.mark.parametrize("answer", ["approve", "perhaps", {"type": "edit", "edited": "late"}])
@pytest.mark.parametrize("reason", REASONS)
async def test_whoever_decides_too_late_has_denied(place: str, reason: str, answer: Any) -> None:
    till, sink = Till(), MemorySink()
    escalation = unsure(reason).escalation
    brief = Escalation(escalation.threshold, escalation.critic, ttl_s=60)
    with FakeClock().installed() as clock:
        agent = tree(place, clerk(till, reason), guards=unsure(reason, sink, escalation=brief))
        [question] = (await asked(agent)).interrupts
        clock.advance(61)
        reply = await agent.aresume("t", {question.id: answer})
    assert (words_of(reply), reply.close_reason) == ("", "escalation_timeout")
    assert till.left == []
    assert recorded(sink, "human")[0].data["decision"] == "reject"
    denied = [one.decision for one in recorded(sink, "decision") if one.decision]
    assert [(one["guard"], one["action"]) for one in denied][-1] == ("escalation_timeout", "deny")


@everywhere
@pytest.mark.parametrize("reason", REASONS)
async def test_whoever_decides_just_in_time_is_heard(place: str, reason: str) -> None:
    escalation = unsure(reason).escalation
    brief = Escalation(escalation.threshold, escalation.critic, ttl_s=60)
    with FakeClock().installed() as clock:
        agent = tree(place, clerk(Till(), reason), guards=unsure(reason, escalation=brief))
        reply = await asked(agent)
        clock.advance(60)
        assert await said(place, agent, reply, "approve") == ANSWER


@pytest.mark.parametrize("place", ["delegate", "tool"])
@pytest.mark.parametrize(("used", "stopped_by"), [(90.0, None), (99.5, "deadline")])
async def test_only_the_time_in_which_a_human_decides_is_left_out_of_the_deadline(
    place: str, used: float, stopped_by: str | None
) -> None:
    with FakeClock().installed() as clock:

        def think(messages: list[BaseMessage]) -> str:
            clock.advance(used)
            return ANSWER

        worker = clerk(Till(), "").replace(model=ScriptedModel(think))
        limits = Deadlines(step_s=None, stage_s=None, workflow_s=100)
        agent = tree(place, worker, guards=unsure("doubt", deadlines=limits))
        [question] = (await asked(agent)).interrupts
        clock.advance(3_600)
        reply = await agent.aresume("t", {question.id: "approve"})  # the boss has still to speak
    assert decided(place, reply) == ("" if stopped_by else ANSWER)
    guards: list[Any] = [one.payload for one in reply.interrupts]
    assert [one["guard"] for one in guards] == ([stopped_by] if stopped_by else [])


@everywhere
async def test_what_has_failed_for_time_has_all_of_it_again_by_approval(place: str) -> None:
    with FakeClock().installed() as clock:

        def work() -> str:
            """Work for a while."""
            clock.advance(101)
            return "worked"

        model = ScriptedModel([call("work"), ANSWER])
        worker = clerk(Till(), "").replace(model=model, tools=[work])
        limits = Deadlines(step_s=None, stage_s=None, workflow_s=100)
        agent = tree(place, worker, guards=unsure("", deadlines=limits))
        reply = await asked(agent)
        assert reply.interrupts[0].payload["guard"] == "deadline"
        clock.advance(3_600)
        assert await said(place, agent, reply, "approve") == ANSWER


@everywhere
async def test_a_spent_budget_is_granted_once_more_by_approval(place: str) -> None:
    till = Till()
    calls = [paid(call("pay", item=item)) for item in ("tea", "milk")]
    worker = clerk(till, "").replace(model=Metered([*calls, paid(ANSWER)]))
    agent = tree(place, worker, guards=unsure("", budget=CostBudget(tokens=OUTPUT + 3 * READ)))
    reply = await agent.ainvoke("pay", thread_id="t")
    grants = 0
    while reply.interrupts:
        [question] = reply.interrupts
        assert question.payload["guard"] == "cost_budget"
        grants += 1
        reply = await agent.aresume("t", {question.id: "approve"})
    assert decided(place, reply) == ANSWER
    assert till.tries == ["pay tea", "pay milk"]
    assert grants >= 2
