from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.limits import (
    DepthLimit,
    FanOutLimit,
    HopLimit,
    ReplanLimit,
    StepLimit,
)


def test_five_handoffs_succeed_and_the_sixth_is_denied() -> None:
    limit = HopLimit()
    assert all(limit.check(made).allows for made in range(5))
    denied = limit.check(5)
    assert (denied.action, denied.failure_class) == ("deny", "deadlock")
    assert denied.evidence == {"made": 5, "limit": 5}


@given(st.integers(0, 20), st.integers(1, 4), st.lists(st.booleans(), max_size=60))
def test_no_more_hops_than_allowed(hops: int, granted: int, tried: list[bool]) -> None:
    limit, made = HopLimit(hops), 0
    for accepted in tried:
        decision = limit.check(made, granted)
        assert decision.allows == (made < hops * granted)
        made += decision.allows and accepted
    assert made <= hops * granted


def test_a_grant_allows_the_limit_anew() -> None:
    assert not StepLimit(3).check(3).allows
    assert StepLimit(3).check(3, 2).allows
    assert StepLimit(3).check(6, 2).action == "abort"


def test_the_eighth_level_is_the_last() -> None:
    assert DepthLimit().check(8).allows
    denied = DepthLimit().check(9)
    assert (denied.action, denied.failure_class) == ("deny", "infinite_loop")
    assert not DepthLimit(0).check(1).allows


def test_more_workers_at_once_than_allowed_are_denied() -> None:
    assert FanOutLimit().check(8).allows
    denied = FanOutLimit().check(9)
    assert (denied.action, denied.failure_class) == ("deny", "cost_overrun")
    assert denied.evidence == {"asked": 9, "limit": 8}


@pytest.mark.parametrize("kind", [HopLimit, DepthLimit, FanOutLimit, ReplanLimit, StepLimit])
@pytest.mark.parametrize("wrong", [-1, True, 2.0, "5", None, float("nan")])
def test_a_limit_is_a_whole_number(kind: Callable[..., object], wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"Limit\("):
        kind(wrong)


def test_a_stage_is_planned_anew_twice() -> None:
    limit = ReplanLimit()
    assert [limit.ask("fetch").action for _ in range(4)] == ["replan"] * 2 + ["escalate"] * 2
    assert limit.ask("write").action == "replan"
    assert "'fetch'" in limit.ask("fetch").cause


def test_a_plan_that_was_here_before_is_no_progress() -> None:
    limit = ReplanLimit(5)
    assert limit.ask("fetch", {"steps": ["a", "b"]}).action == "replan"
    assert limit.ask("fetch", {"steps": ["b", "a"]}).action == "replan"
    again = limit.ask("fetch", '{"steps": [" a", "b"], "note": null}')
    assert (again.action, again.failure_class) == ("escalate", "no_progress")
    assert limit.ask("write", {"steps": ["a", "b"]}).action == "replan"


def test_no_replan_is_allowed_where_none_is_wanted() -> None:
    assert ReplanLimit(0).ask("fetch").action == "escalate"


@settings(max_examples=50)
@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 3)), max_size=15),
    st.integers(0, 15),
)
def test_replans_are_counted_across_a_restart(
    allowed: int, asked: list[tuple[str, int | None]], restart: int
) -> None:
    whole = ReplanLimit(allowed)
    resumed = whole
    made = {"a": 0, "b": 0}
    twin = whole.fresh()
    for number, (stage, plan) in enumerate(asked):
        if number == restart:
            resumed = whole.fresh()
            resumed.load(json.loads(json.dumps({**twin.dump(), "unknown": 1})))
            twin = resumed
        decision = whole.ask(stage, plan)
        assert twin.ask(stage, plan) == decision
        made[stage] += decision.action == "replan"
    assert max(made.values()) <= allowed


def test_the_plans_of_a_stage_do_not_fill_the_memory() -> None:
    limit = ReplanLimit()
    for plan in range(500):
        limit.ask("fetch", plan)
    assert len(json.dumps(limit.dump())) < 2_000


def test_a_fresh_limit_has_no_memory() -> None:
    limit = ReplanLimit(1)
    limit.ask("fetch", "plan")
    assert limit.fresh() == limit
    assert limit.fresh().ask("fetch", "plan").action == "replan"
