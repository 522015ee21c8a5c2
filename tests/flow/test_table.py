"""The failure table: what a flow does about each class of failure, in each tier, on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from agentgraph import Agent
from agentgraph.errors import GuardStopped
from agentgraph.flow import Brief, Flow, Stage, mast_of
from agentgraph.guards import CostBudget, Decision, FailureClass, Gate, MemorySink, Tier
from agentgraph.stream import FinalStateEvent, InterruptEvent, StageEvent
from agentgraph.testing import Fault, ScriptedModel, call
from tests.flow.planned_work import guarded, plan, verdict, worker
from tests.guards.guarded_agents import recorded

Made = Callable[[Tier, MemorySink], Flow[Any]]


def look(what: str) -> str:
    """Look."""
    return "nothing"


def boss(planned: Any = None, accepted: bool = True) -> Agent[Any]:
    """Return a supervisor that says the same in each attempt."""

    def says(messages: Any) -> Any:
        request = str(messages[-1].text)
        if "Plan the work" in request:
            return planned or plan("a", "b")
        return verdict(accepted, 0.95) if "Judge whether" in request else "the result"

    return Agent("boss", model=ScriptedModel(says), default_tools=False)


def flow_with(a: Any = None, **fields: Any) -> Made:
    """Return what makes a flow whose worker a is this one."""

    def made(tier: Tier, sink: MemorySink) -> Flow[Any]:
        own = {"supervisor": boss(), "work": [a or worker("a"), worker("b")], **fields}
        guards = guarded(tier, sink=sink, **own.pop("guards", {}))
        return Flow("f", guards=guards, **own)

    return made


def stuck(brief: Brief) -> str:
    decision = Decision("abort", "progress", "nothing new for long", "no_progress")
    raise GuardStopped(decision)


def looping() -> Any:
    return worker("a", *[call("look", what="it")] * 60, tools=[look])


def tossing() -> list[Any]:
    """Return peers that hand the work over and over to each other."""
    return [
        worker("a", *[call("transfer_to_b")] * 30),
        worker("b", *[call("transfer_to_a")] * 30),
    ]


stuck.__name__ = "a"
SAFE = Stage(after=Gate(policy=lambda subject: "poison" not in subject.text))
CASES: dict[FailureClass, Callable[[], Made]] = {
    "infinite_loop": lambda: flow_with(looping()),
    "deadlock": lambda: flow_with(work=tossing(), topology="handoff", supervisor=boss(plan("a"))),
    "cost_overrun": lambda: flow_with(guards={"budget": CostBudget(tokens=100)}),
    "provider_error": lambda: flow_with(worker("a", *[Fault.server_error()] * 20)),
    "schema_failure": lambda: flow_with(supervisor=boss(accepted=False)),
    "spec_malformed": lambda: flow_with(supervisor=boss(plan("nobody"))),
    "no_progress": lambda: flow_with(stuck),
    "unsafe_output": lambda: flow_with(worker("a", *["poison"] * 9), stages={"a": SAFE}),
}
ENDS: dict[FailureClass, tuple[tuple[str, int], tuple[str, int], tuple[str, int]]] = {
    "infinite_loop": (("aborted", 0), ("aborted", 0), ("asked", 0)),
    "deadlock": (("aborted", 0), ("aborted", 0), ("asked", 0)),
    "cost_overrun": (("aborted", 0), ("aborted", 0), ("asked", 0)),
    "provider_error": (("aborted", 0), ("aborted", 0), ("asked", 0)),
    "schema_failure": (("aborted", 1), ("aborted", 2), ("asked", 0)),
    "spec_malformed": (("aborted", 0), ("asked", 2), ("aborted", 0)),
    "no_progress": (("aborted", 0), ("asked", 1), ("asked", 0)),
    "unsafe_output": (("aborted", 0), ("aborted", 0), ("asked", 0)),
}
"""How a flow ends and after how many new plans: interactive, batch, regulated."""


@pytest.mark.parametrize("tier", get_args(Tier))
@pytest.mark.parametrize("failure_class", get_args(FailureClass))
async def test_cell_is_followed_told_and_on_record(failure_class: FailureClass, tier: Tier) -> None:
    sink = MemorySink()
    flow = CASES[failure_class]()(tier, sink)
    events = [event async for event in flow.astream("go", thread_id="t")]
    end, replans = ENDS[failure_class][get_args(Tier).index(tier)]
    asked = [event for event in events if isinstance(event, InterruptEvent)]
    stages = [event for event in events if isinstance(event, StageEvent)]
    final = [event for event in events if isinstance(event, FinalStateEvent)][-1]
    assert [e.status for e in stages].count("replanned") == replans
    if end == "asked":
        assert [event.payload["failure_class"] for event in asked] == [failure_class]
        assert {e.payload["allowed"][0] for e in asked} == {"approve"}
    else:
        assert not asked and final.close_reason
    mast = mast_of(failure_class)
    for event in stages:
        if event.status in ("failed", "replanned", "escalated", "aborted"):
            assert event.verdict is not None and event.verdict["mast"] == mast
    decided = [r.decision for r in recorded(sink, "decision") if r.decision]
    assert decided[-1]["failure_class"] == failure_class
    assert decided[-1]["action"] == ("escalate" if end == "asked" else "abort")


@pytest.mark.parametrize("tier", get_args(Tier))
@pytest.mark.parametrize("failure_class", get_args(FailureClass))
async def test_result_says_the_class_or_waits_until_a_human_rejects_it(
    failure_class: FailureClass, tier: Tier
) -> None:
    flow = CASES[failure_class]()(tier, MemorySink())
    result = await flow.ainvoke("go", thread_id="t")
    if ENDS[failure_class][get_args(Tier).index(tier)][0] == "asked":
        assert (result.status, result.failure_class) == ("waiting", None)
        result = await flow.aresume("t", {result.interrupts[0].id: "reject"})
    assert (result.status, result.failure_class) == ("aborted", failure_class)
    assert result.reason and result.text
