"""The names of `agentgraph.guards`: how they are made, what they say alone, what help tells."""

from __future__ import annotations

import inspect
import pydoc
import re
from decimal import Decimal
from typing import Any, get_args

import pytest

import agentgraph
from agentgraph import guards
from agentgraph.guards import (
    Action,
    AuditTrail,
    CircuitBreaker,
    CostBudget,
    CostVelocity,
    Deadlines,
    DeadlockMonitor,
    Decision,
    DecisionTable,
    DepthLimit,
    Escalation,
    FanOutLimit,
    Gate,
    Guards,
    HopLimit,
    LoopDetector,
    MemorySink,
    ReplanLimit,
    RetryBudget,
    Saga,
    StepLimit,
    Subject,
    Tier,
    effect,
)
from agentgraph.guards.overrides import Overrides

PROMISED = [
    "AuditTrail",
    "CircuitBreaker",
    "CostBudget",
    "CostVelocity",
    "DeadlockMonitor",
    "Deadlines",
    "Decision",
    "DecisionTable",
    "DepthLimit",
    "Escalation",
    "FanOutLimit",
    "Gate",
    "Guards",
    "HopLimit",
    "LoopDetector",
    "ReplanLimit",
    "RetryBudget",
    "Saga",
    "StepLimit",
    "effect",
]
KEYWORDS = [
    "hops",
    "depth",
    "fan_out",
    "loop",
    "breaker",
    "retry",
    "deadlines",
    "escalation",
    "saga",
    "deadlock",
    "gates",
    "decisions",
    "replans",
    "budget",
    "velocity",
    "audit",
    "stages",
]
TIERS = {
    "interactive": Guards.interactive(),
    "batch": Guards.batch(),
    "regulated": Guards.regulated(velocity=None, budget=CostBudget(tokens=1)),
}


def parameters(made: Any) -> dict[str, object]:
    """Return the parameters with their defaults, `...` for those that must be given."""
    return {
        name: ... if one.default is inspect.Parameter.empty else one.default
        for name, one in inspect.signature(made).parameters.items()
    }


def test_every_promised_name_is_public() -> None:
    assert set(PROMISED) <= set(guards.__all__)
    assert list(guards.__all__) == sorted(
        guards.__all__, key=lambda name: (not name.isupper(), name)
    )


def test_what_beginners_need_stands_at_the_top() -> None:
    assert agentgraph.Guards is Guards and agentgraph.effect is effect


@pytest.mark.parametrize("name", guards.__all__)
def test_every_class_and_function_says_what_it_is_in_a_sentence(name: str) -> None:
    thing = getattr(guards, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        first = (inspect.getdoc(thing) or "").splitlines()[0]
        assert re.search(r"[.:]$", first), first


@pytest.mark.parametrize("name", PROMISED)
def test_every_public_method_says_what_it_does(name: str) -> None:
    thing = getattr(guards, name)
    methods = [
        (label, part)
        for label, part in vars(thing).items()
        if not label.startswith("_") and (inspect.isroutine(part) or isinstance(part, property))
    ]
    assert [label for label, part in methods if not inspect.getdoc(part)] == []


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (HopLimit, {"hops": 5}),
        (DepthLimit, {"depth": 8}),
        (FanOutLimit, {"children": 8, "total": None}),
        (StepLimit, {"steps": 50, "total": 500}),
        (ReplanLimit, {"replans": 2}),
        (RetryBudget, {"ratio": 0.1, "reserve": 3, "cap": 10, "ttl_s": 60}),
        (
            Deadlines,
            {"step_s": 60, "stage_s": 180, "workflow_s": 600, "tool_s": None},
        ),
        (
            effect,
            {"target": None, "compensate": None, "lookup": None, "volatile": (), "poll": False},
        ),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_guard_takes_what_is_promised_and_no_more(made: Any, expected: dict[str, object]) -> None:
    assert parameters(made) == expected


@pytest.mark.parametrize(
    ("made", "first"),
    [
        (LoopDetector, {"window": 5, "threshold": 3}),
        (Escalation, {"threshold": 0.5, "critic": None, "ttl_s": 86_400}),
        (Gate, {"schema": None, "policy": None, "invariants": (), "grounding": None}),
        (CostBudget, {"usd": None, "tokens": None}),
        (AuditTrail, {"sink": None}),
        (Decision, {"action": ..., "guard": ..., "cause": "", "failure_class": ""}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_guard_takes_first_what_is_promised(made: Any, first: dict[str, object]) -> None:
    assert list(parameters(made).items())[: len(first)] == list(first.items())


def test_a_breaker_is_made_by_keywords_and_may_have_a_fallback() -> None:
    known = inspect.signature(CircuitBreaker).parameters
    assert {one.kind for one in known.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert known["fallback"].default is None


def test_a_policy_takes_a_tier_and_each_guard_by_its_name() -> None:
    assert set(KEYWORDS) <= set(Overrides.__annotations__)
    assert list(parameters(Guards)) == ["tier", "overrides"]
    for tier in get_args(Tier):
        given: Any = {"budget": CostBudget(tokens=1), "velocity": None}
        assert Guards(tier, **given).tier == getattr(Guards, tier)(**given).tier == tier


def test_a_policy_is_made_of_what_stands_in_its_documentation() -> None:
    given = Guards.batch(budget=CostBudget(usd=2), stages={"billing": Guards(hops=1)})
    assert given.budget is not None and given.budget.dollars == Decimal(2)
    assert given.at("support/billing").hops == HopLimit(1)
    assert given.at("support").hops == HopLimit(5)
    full = Guards(
        hops=HopLimit(5),
        depth=DepthLimit(8),
        fan_out=FanOutLimit(8),
        loop=LoopDetector(window=5, threshold=3),
        breaker=CircuitBreaker(fallback="offline"),
        retry=RetryBudget(ratio=0.1, reserve=3, cap=10, ttl_s=60),
        deadlines=Deadlines(step_s=60, stage_s=180, workflow_s=600),
        escalation=Escalation(0.5, critic=None, ttl_s=60),
        saga=Saga(),
        deadlock=DeadlockMonitor(),
        gates=Gate(schema=None, policy=None, invariants=(), grounding=None),
        decisions=DecisionTable(),
        replans=ReplanLimit(2),
        budget=CostBudget(usd=None, tokens=1),
        velocity=CostVelocity(tokens_per_min=1_000),
        audit=AuditTrail(MemorySink()),
        stages={},
    )
    assert full.tier == "interactive"


def test_help_names_every_parameter_of_a_policy() -> None:
    told = pydoc.plain(pydoc.render_doc(Guards))
    named = re.findall(r"^ \|  (\w+) {2,}\S", told, re.MULTILINE)
    assert sorted(named) == sorted(Overrides.__annotations__)


@pytest.mark.parametrize("tier", get_args(Tier))
def test_the_limits_that_help_names_are_those_of_the_tier(tier: str) -> None:
    policy, told = TIERS[tier], inspect.getdoc(getattr(Guards, tier)) or ""
    named = dict(re.findall(r"\b(([A-Z]\w+)\([^)]*\))", told))
    held = [getattr(policy, name) for name in Overrides.__annotations__]
    assert len(named) >= 4
    for made in named:
        assert eval(made, vars(guards)) in held


def test_the_limits_in_the_list_of_parameters_are_those_of_the_default() -> None:
    told = inspect.getdoc(Guards) or ""
    named = re.findall(r"^(\w+) +([A-Z]\w+\([\w=.,() ]*\)):", told, re.MULTILINE)
    assert len(named) >= 15
    for name, made in named:
        assert repr(eval(made, vars(guards))) == repr(getattr(Guards(), name)), name


def test_a_decision_is_one_of_seven_actions_on_grounds() -> None:
    actions = ("allow", "correct", "deny", "fallback", "replan", "escalate", "abort")
    assert get_args(Action) == actions
    decision = Decision("deny", "hop_limit", "too many", "deadlock", {"made": 5})
    assert decision.to_dict() == {
        "action": "deny",
        "guard": "hop_limit",
        "cause": "too many",
        "failure_class": "deadlock",
        "evidence": {"made": 5},
    }


def test_a_loop_detector_works_alone() -> None:
    detector = LoopDetector()
    seen = [detector.observe(tool="f", args={"x": 1}, result="y", failed=False) for _ in range(4)]
    assert [one.action for one in seen] == ["allow", "allow", "correct", "abort"]


def test_a_deadlock_monitor_works_alone() -> None:
    monitor = DeadlockMonitor()
    seen = [
        monitor.handoff(source=source, target=target, digest="same")
        for source, target in [("a", "b"), ("b", "a")] * 2
    ]
    assert [one.action for one in seen] == ["allow", "allow", "allow", "escalate"]
    replies = [monitor.dispatch(worker="w", brief="do", reply="no") for _ in range(3)]
    assert [one.action for one in replies] == ["allow", "correct", "abort"]


def test_a_breaker_works_alone() -> None:
    breaker = CircuitBreaker(consecutive=1, fallback="offline")
    breaker.acquire().success()
    breaker.acquire().release()
    assert breaker.state == "closed"
    breaker.acquire().failure("provider")
    assert breaker.acquire().decision.action == "fallback"


def test_limits_and_budgets_work_alone() -> None:
    assert [HopLimit(1).check(made).action for made in (0, 1)] == ["allow", "deny"]
    assert [StepLimit(1).check(taken).action for taken in (0, 1)] == ["allow", "abort"]
    assert [DepthLimit(1).check(depth).action for depth in (1, 2)] == ["allow", "deny"]
    assert [FanOutLimit(1).check(asked).action for asked in (1, 2)] == ["allow", "deny"]
    replans = ReplanLimit(1)
    assert [replans.ask("stage").action for _ in range(2)] == ["replan", "escalate"]
    assert [RetryBudget(reserve=reserve).ask().action for reserve in (1, 0)] == ["allow", "deny"]
    assert [Escalation(0.5).judge(score).action for score in (0.5, 0.4)] == ["allow", "escalate"]
    assert DecisionTable().decide("deadlock", "regulated").action == "escalate"


async def test_a_gate_and_a_trail_work_alone() -> None:
    gate = Gate(policy=lambda subject: subject.text != "no")
    assert [(await gate.check(Subject(text=text), "post")).passed for text in ("yes", "no")] == [
        True,
        False,
    ]
    trail = AuditTrail(MemorySink())
    trail.record("run", "model", agent="support")
    assert trail.trail("run").path == ("support",)
