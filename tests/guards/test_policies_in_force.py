"""`agent.policy`: the guards in force at the root and below, and the trail that they write."""

from __future__ import annotations

import pytest

from agentgraph import Agent, Guards
from agentgraph.errors import ConfigurationError
from agentgraph.guards import AuditTrail, HopLimit, MemorySink, Record, StepLimit
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import for_ever, look, solo


def desk() -> Agent:
    billing = Agent("billing", model=ScriptedModel(["Paid."]), guards=Guards(hops=9, steps=3))
    helper = Agent("helper", model=ScriptedModel(["Done."]), guards=None)
    mid = Agent("mid", model=ScriptedModel(["Hm."]), agents=[billing], tools=[helper.as_tool()])
    stages = {"mid": Guards(deadlines=5)}
    return Agent("desk", model=ScriptedModel(["Hi."]), agents=[mid], guards=Guards(stages=stages))


def test_an_agent_shows_the_guards_in_force() -> None:
    policy = solo(ScriptedModel(["Hi."])).policy
    assert policy is not None
    assert repr(policy) == "Guards('interactive')"
    assert "StepLimit" in policy._repr_html_()
    assert solo(ScriptedModel(["Hi."]), guards=None).policy is None


def test_below_an_agent_its_guards_hold_tightened_by_inner_ones() -> None:
    agent = desk()
    billing = agent.policy_at("billing")
    assert billing is not None
    assert (billing.hops, billing.steps) == (HopLimit(5), StepLimit(3))
    assert repr(billing) == repr(agent.policy_at("desk/mid/billing"))
    mid = agent.policy_at("Mid")
    assert mid is not None and mid.deadlines.stage_s == 5
    helper = agent.policy_at("mid/helper")
    assert helper is not None, "the guards of the root hold for all below it"
    assert agent.policy_at("desk") is agent.policy


async def test_they_are_what_holds_in_a_run() -> None:
    worker = solo(for_ever(call("look", what="it")), look, name="worker", guards=Guards(steps=2))
    boss = Agent("boss", model=ScriptedModel([call("transfer_to_worker")]), agents=[worker])
    policy = boss.policy_at("worker")
    assert policy is not None and policy.steps == StepLimit(2)
    assert (await boss.ainvoke("go")).close_reason == "max_steps"


def test_an_agent_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no agent 'biling' here.*billing"):
        desk().policy_at("biling")


async def test_the_default_trail_of_an_agent_can_be_read() -> None:
    agent = solo(ScriptedModel(["One.", "Two.", "Other."]))
    assert agent.policy is not None
    audit = agent.policy.audit
    assert audit is not None
    await agent.ainvoke("go", thread_id="t")
    await agent.ainvoke("again", thread_id="t")
    await agent.ainvoke("else", thread_id="u")

    first, second = audit.runs("t")
    assert [*audit.runs()][:2] == [first, second] and len(audit.runs()) == 3
    assert audit.trail(second).steps == 1 and audit.trail(second).end == "answered"
    assert [record.kind for record in audit.records(first)] == ["input", "model", "settled", "end"]


def test_a_sink_without_a_list_of_runs_says_so() -> None:
    class Bin:
        def write(self, record: Record) -> None: ...

        def read(self, run: str) -> list[Record]:
            return []

    with pytest.raises(ConfigurationError, match="Bin has no runs"):
        AuditTrail(Bin()).runs()
    assert AuditTrail(MemorySink()).runs() == []
