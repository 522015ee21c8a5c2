from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentgraph.clock import use_clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.testing import FakeClock


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock().installed() as fake:
        yield fake


def spend(
    clock: FakeClock, velocity: CostVelocity, times: int, tokens: int, every: float = 10
) -> list[str]:
    actions: list[str] = []
    for _ in range(times):
        actions.append(velocity.record(tokens=tokens).action)
        clock.advance(every)
    return actions


def test_a_run_ten_times_too_fast_is_denied_after_a_minute(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    actions = spend(clock, velocity, 8, 1_000)
    assert actions == ["allow"] * 6 + ["deny"] * 2


def test_the_decision_has_both_velocities_and_the_ceiling(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    spend(clock, velocity, 7, 1_000)
    denied = velocity.record(tokens=1_000, scope="coder")
    assert (denied.action, denied.failure_class) == ("deny", "cost_overrun")
    assert denied.evidence["unit"] == "tokens_per_min"
    assert denied.evidence["ceiling"] == 600
    assert denied.evidence["fast"] == 6_000
    assert denied.evidence["slow"] == 800
    assert (denied.evidence["scope"], denied.evidence["scope_fast"]) == ("coder", 1_000)
    assert "600" in denied.cause
    json.dumps(denied.to_dict())


def test_the_first_big_call_is_not_denied(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=100)
    assert velocity.record(tokens=1_000_000).allows
    clock.advance(29)
    assert velocity.record(tokens=1).allows
    clock.advance(1)
    assert velocity.record(tokens=1).action == "deny"


def test_a_big_call_after_an_idle_hour_is_a_first_one(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=100)
    velocity.record(tokens=1)
    clock.advance(3_600)
    assert velocity.record(tokens=1_000_000).allows


def test_a_burst_fills_the_fast_window_only(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    spend(clock, velocity, 9, 60, every=60)
    assert velocity.record(tokens=3_000).allows


def test_a_burst_that_is_over_fills_the_slow_window_only(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    velocity.record(tokens=100_000)
    clock.advance(120)
    assert velocity.record(tokens=1).allows


def test_dollars_have_their_own_ceiling(clock: FakeClock) -> None:
    velocity = CostVelocity(usd_per_hour=6)
    assert velocity.record(tokens=10**9, usd=Decimal("0.9")).allows
    clock.advance(60)
    assert velocity.record(tokens=10**9, usd=None).allows
    denied = velocity.record(tokens=0, usd=Decimal("0.2"))
    assert denied.evidence["unit"] == "usd_per_hour"
    assert denied.evidence["slow"] == 6.6


def test_cents_add_up_exactly(clock: FakeClock) -> None:
    velocity = CostVelocity(usd_per_hour=6)
    for _ in range(10):
        assert velocity.record(tokens=0, usd=Decimal("0.1")).allows
        clock.advance(10)


def test_scopes_are_counted_together_in_all(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    actions = []
    for turn in range(8):
        actions.append(velocity.record(tokens=1_000, scope="ab"[turn % 2]).action)
        clock.advance(10)
    assert actions[-1] == "deny"


def test_without_a_ceiling_nothing_is_denied_or_kept(clock: FakeClock) -> None:
    velocity = CostVelocity()
    assert set(spend(clock, velocity, 50, 10**9)) == {"allow"}
    assert velocity.dump() == {"scopes": []}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 100))
def test_a_steady_run_at_the_ceiling_is_never_denied(every: int, tokens: int) -> None:
    with FakeClock().installed() as clock:
        velocity = CostVelocity(tokens_per_min=tokens * (60 / every), min_elapsed_s=0)
        slow = CostVelocity(tokens_per_min=tokens * 60 // every + tokens, min_elapsed_s=0)
        assert set(spend(clock, slow, 100, tokens, every)) == {"allow"}
        if 60 % every == 0:
            assert set(spend(clock, velocity, 100, tokens, every)) == {"allow"}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(2, 50))
def test_twice_the_ceiling_is_denied_within_the_slow_window(every: int, ceiling: int) -> None:
    with FakeClock().installed() as clock:
        velocity = CostVelocity(tokens_per_min=ceiling)
        tokens = 2 * ceiling * every
        actions = spend(clock, velocity, 600 // every, tokens, every)
        assert "deny" in actions


SPENDING = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 5_000), st.sampled_from(["", "a", "b"])),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(SPENDING, st.integers(0, 40))
@example([(0, 0, ""), (30, 0, ""), (0, 59, "")], 2)
def test_a_restart_forgets_nothing(spending: list[tuple[int, int, str]], restart: int) -> None:
    with FakeClock().installed() as clock:
        whole = CostVelocity(tokens_per_min=700, usd_per_hour=50)
        resumed = whole.fresh()
        for number, (pause, tokens, scope) in enumerate(spending):
            if number == restart:
                dumped = json.loads(json.dumps({**resumed.dump(), "unknown": 1}))
                resumed = whole.fresh()
                resumed.load(dumped)
            usd = Decimal(tokens) / 7
            decided = whole.record(tokens=tokens, usd=usd, scope=scope)
            assert resumed.record(tokens=tokens, usd=usd, scope=scope) == decided
            clock.advance(pause)


def test_another_process_reads_the_ages_by_the_wall_clock(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    spend(clock, velocity, 7, 1_000)
    dumped = velocity.dump()
    there = FakeClock(clock.wall())
    with use_clock(there):
        resumed = velocity.fresh()
        resumed.load(dumped)
        assert resumed.record(tokens=1).action == "deny"
        there.advance(600)
        assert resumed.record(tokens=1).allows


def test_a_memory_that_has_a_long_window_of_each_scope_is_taken(clock: FakeClock) -> None:
    velocity, resumed = CostVelocity(tokens_per_min=600), CostVelocity(tokens_per_min=600)
    for _ in range(7):
        velocity.record(tokens=1_000, scope="worker")
        clock.advance(10)
    windows = {name: rest for name, *rest in velocity.dump()["scopes"]}  # type: ignore[attr-defined]
    [short], [_, long] = windows["worker"], windows[""]
    resumed.load({"scopes": [["worker", short, long], ["", *windows[""]]]})
    assert resumed.dump() == velocity.dump()
    assert resumed.record(tokens=1, scope="worker").action == "deny"


def test_a_wall_clock_set_back_puts_no_spending_into_the_future(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    spend(clock, velocity, 7, 1_000)
    dumped = velocity.dump()
    clock.set_wall(clock.wall() - 86_400)
    velocity.load(dumped)
    clock.advance(31)
    assert velocity.record(tokens=1).action == "deny"
    clock.advance(600)
    assert velocity.record(tokens=1).allows


@settings(max_examples=10, deadline=None)
@given(st.floats(0.01, 40), st.integers(1, 200))
def test_the_memory_does_not_grow_with_the_run(every: float, scopes: int) -> None:
    with FakeClock().installed() as clock:
        velocity = CostVelocity(tokens_per_min=1)
        for turn in range(400):
            velocity.record(tokens=1, usd=Decimal("0.001"), scope=f"agent {turn % scopes}")
            clock.advance(every)
        dumped = json.dumps(velocity.dump())
        assert len(dumped) < 40_000
        assert dumped.count("agent") <= 32


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens_per_min": 0},
        {"usd_per_hour": float("nan")},
        {"fast_s": None},
        {"slow_s": 60},
        {"slow_s": float("inf")},
        {"min_elapsed_s": -1},
        {"min_elapsed_s": 301},
        {"min_elapsed_s": False},
        {"tokens_per_min": True},
        {"usd_per_hour": "5"},
    ],
)
def test_a_wrong_configuration_says_what_to_give(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        CostVelocity(**wrong)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as told:
        CostVelocity(-1, -1, -1, -1, -1)
    assert len(told.value.faults) == 5


def test_fresh_ceilings_have_no_memory(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600)
    spend(clock, velocity, 7, 1_000)
    assert velocity.fresh() == velocity
    assert velocity.fresh().record(tokens=1).allows


def test_three_calls_are_needed_for_a_velocity(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=1, min_elapsed_s=0)
    actions = [velocity.record(tokens=10**9).action for _ in range(4)]
    assert actions == ["allow", "allow", "deny", "deny"]


def test_an_agent_and_a_visit_to_it_may_spend_their_share(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600, share=0.25)
    denials = []
    for turn in range(40):
        other = {"scope": f"b{turn % 4}", "tokens": 10}
        own = {"scope": "a", "stage": "a#1", "tokens": 60}
        denials += [velocity.record(**part) for part in (other, own)]  # type: ignore[arg-type]
        clock.advance(10)
    denials = [decision for decision in denials if not decision.allows]
    assert {decision.evidence["scope"] for decision in denials} == {"a"}
    assert denials[0].evidence["ceiling"] == 150
    assert "by 'a', whose ceiling is 150" in denials[0].cause


def test_visits_side_by_side_have_a_share_each(clock: FakeClock) -> None:
    velocity = CostVelocity(tokens_per_min=600, share=0.25)
    scopes = set()
    for turn in range(80):
        decision = velocity.record(tokens=60, scope="a" if turn % 8 else "b", stage=f"#{turn % 8}")
        if not decision.allows:
            scopes.add(decision.evidence["scope"])
        clock.advance(10)
    assert scopes == {"a"}, "no visit alone is too fast"


@pytest.mark.parametrize("share", [0, -1, 1.5, None, True, float("nan")])
def test_a_share_is_a_part_of_the_ceilings(share: float) -> None:
    with pytest.raises(ConfigurationError, match="share"):
        CostVelocity(1, share=share)
