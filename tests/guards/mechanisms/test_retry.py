from __future__ import annotations

import json
import math
from fractions import Fraction
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentgraph.clock import clock as present_clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.retry import Backoff, RetryBudget
from agentgraph.testing import FakeClock

ratios = st.sampled_from([0, 0.1, 0.15, 0.2, 0.29, 1 / 3, 2 / 3, 1])


def granted(budget: RetryBudget, asked: int) -> int:
    return sum(budget.ask().allows for _ in range(asked))


def deposit(budget: RetryBudget, count: int) -> None:
    for _ in range(count):
        budget.first_attempt()


class Budgeting(RuleBasedStateMachine):
    """Over its whole life a budget grants no more than the reserve and what was earned."""

    @initialize(ratio=ratios, reserve=st.integers(0, 3), above=st.integers(0, 5))
    def begin(self, ratio: float, reserve: int, above: int) -> None:
        self.clock = FakeClock()
        self.budget = RetryBudget(ratio, reserve, reserve + above, 60)
        self.first_attempts = 0
        self.retries = 0
        self.spendable = reserve + above

    @rule(count=st.integers(1, 40))
    def call(self, count: int) -> None:
        with self.clock.installed():
            deposit(self.budget, count)
        self.first_attempts += count

    @rule(count=st.integers(1, 12))
    def retry(self, count: int) -> None:
        with self.clock.installed():
            allowed = granted(self.budget, count)
        assert allowed <= self.spendable
        self.retries += allowed

    @rule(seconds=st.sampled_from([1, 20, 59, 60, 100_000]))
    def idle(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def retries_are_covered(self) -> None:
        earned = Fraction(str(self.budget.ratio)) * self.first_attempts
        assert self.retries <= self.budget.reserve + earned


TestBudgeting = Budgeting.TestCase


@given(ratios, st.integers(0, 3), st.integers(0, 60))
def test_what_was_earned_and_has_not_expired_is_granted(
    ratio: float, reserve: int, count: int
) -> None:
    with FakeClock().installed():
        budget = RetryBudget(ratio, reserve, cap=100)
        assert granted(budget, 10) == reserve
        deposit(budget, count)
        assert granted(budget, 100) == int(Fraction(str(ratio)) * count)


def test_ten_deposits_of_a_tenth_make_one_retry() -> None:
    with FakeClock().installed():
        budget = RetryBudget(0.1, reserve=0)
        deposit(budget, 9)
        assert granted(budget, 1) == 0
        deposit(budget, 1)
        assert granted(budget, 2) == 1


def test_the_reserve_serves_a_small_run_and_is_earned_back() -> None:
    with FakeClock().installed() as clock:
        budget = RetryBudget()
        assert granted(budget, 5) == 3
        clock.advance(3600)
        assert granted(budget, 5) == 0
        deposit(budget, 30)
        clock.advance(3600)
        assert granted(budget, 5) == 3


def test_idle_hours_bank_no_storm() -> None:
    with FakeClock().installed() as clock:
        budget = RetryBudget()
        deposit(budget, 1000)
        clock.advance(60)
        assert granted(budget, 20) == 3


def test_deposits_are_kept_until_they_expire() -> None:
    with FakeClock().installed() as clock:
        budget = RetryBudget(1, reserve=0)
        budget.first_attempt()
        clock.advance(30)
        budget.first_attempt()
        clock.advance(29)
        assert granted(budget, 1) == 1
        clock.advance(1)
        assert granted(budget, 2) == 1


def test_the_balance_is_capped() -> None:
    with FakeClock().installed():
        budget = RetryBudget()
        deposit(budget, 1000)
        assert granted(budget, 20) == 10
        huge = RetryBudget(1, cap=1e308)
        deposit(huge, 1000)
        assert granted(huge, 2000) == 1000 + 3


def test_an_outage_is_amplified_by_no_more_than_the_ratio() -> None:
    with FakeClock().installed() as clock:
        budget, retries = RetryBudget(), 0
        for _ in range(2000):
            budget.first_attempt()
            retries += granted(budget, 2)
            clock.advance(0.1)
    assert retries <= 3 + 200
    assert retries >= 195


def test_a_small_ratio_keeps_little() -> None:
    with FakeClock().installed() as clock:
        budget = RetryBudget(0.0001, reserve=0)
        for _ in range(3000):
            budget.first_attempt()
            clock.advance(0.02)
        assert len(budget._deposits) <= 65


def test_a_denied_retry_is_told_why() -> None:
    with FakeClock().installed():
        decision = RetryBudget(reserve=0).ask()
    assert (decision.action, decision.guard) == ("deny", "retry_budget")
    assert decision.failure_class == "provider_error"
    assert decision.cause.startswith("the retry budget is spent")
    json.dumps(decision.to_dict(), allow_nan=False)


def test_loops_of_several_threads_share_a_budget() -> None:
    budget, barrier, allowed = RetryBudget(reserve=3), Barrier(8), []

    def ask() -> None:
        barrier.wait()
        allowed.append(granted(budget, 50))

    threads = [Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 3


def test_faults_of_a_budget_are_named_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryBudget(math.nan, True, -1, 0)
    assert [fault.partition("=")[0] for fault in caught.value.faults] == [
        "RetryBudget(ratio",
        "RetryBudget(reserve",
        "RetryBudget(cap",
        "RetryBudget(ttl_s",
    ]
    with pytest.raises(ConfigurationError, match=r"RetryBudget\(cap=2\): give 3 or more"):
        RetryBudget(cap=2)


@given(st.integers(0, 10), st.integers(0, 2**32))
def test_jitter_is_full_and_bounded(attempt: int, seed: int) -> None:
    with FakeClock(seed=seed).installed():
        drawn = Backoff().pause(attempt)
    with FakeClock(seed=seed).installed():
        assert drawn == present_clock().random() * min(20, 0.5 * 2**attempt)


def test_jitter_reaches_down_to_nothing_and_up_to_the_bound() -> None:
    with FakeClock().installed():
        pauses = [Backoff().pause(2) for _ in range(1000)]
    assert min(pauses) < 0.1
    assert 1.9 < max(pauses) <= 2


@pytest.mark.parametrize("attempt", [1023, 1024, 10**9, 10**400])
def test_a_huge_attempt_overflows_nothing(attempt: int) -> None:
    with FakeClock().installed():
        assert 0 <= Backoff().pause(attempt) <= 20
        assert Backoff(base_s=1e308, cap_s=20).pause(attempt) <= 20
        assert Backoff(attempts=attempt + 2).ask(attempt).allows


@given(st.integers(0, 5), st.floats(0, 1e6))
def test_retry_after_is_a_floor(attempt: int, retry_after: float) -> None:
    with FakeClock().installed():
        assert Backoff().pause(attempt, retry_after) >= retry_after
        assert Backoff().pause(attempt, retry_after) <= max(retry_after, 20)


@pytest.mark.parametrize("pushback", [-1, -math.inf, math.inf, math.nan])
def test_a_provider_that_wants_no_retry_gets_none(pushback: float) -> None:
    with FakeClock().installed():
        assert Backoff().pause(0, pushback) == math.inf
        decision = Backoff().ask(0, retry_after=pushback)
    assert decision.action == "deny"
    assert decision.cause == "the provider asks for no retry"
    json.dumps(decision.to_dict(), allow_nan=False)


def test_there_are_three_attempts_in_all() -> None:
    with FakeClock().installed():
        decisions = [Backoff().ask(attempt) for attempt in range(4)]
    assert [decision.allows for decision in decisions] == [True, True, False, False]
    assert decisions[2].cause == "all 3 attempts are used up"
    assert not Backoff(attempts=1).ask(0).allows


@given(
    st.integers(0, 1),
    st.none() | st.floats(0, 40),
    st.floats(-5, 40),
    st.floats(0, 5),
)
def test_no_pause_passes_the_deadline(
    attempt: int, retry_after: float | None, remaining: float, useful: float
) -> None:
    with FakeClock().installed():
        decision = Backoff().ask(
            attempt, retry_after=retry_after, remaining_s=remaining, min_useful_s=useful
        )
    pause = decision.evidence["pause_s"]
    assert isinstance(pause, float)
    assert decision.allows == (pause + useful < remaining)
    if retry_after is not None:
        assert pause >= retry_after


@pytest.mark.parametrize(("remaining", "allows"), [(math.nan, False), (math.inf, True)])
def test_a_remaining_time_that_is_no_number(remaining: float, allows: bool) -> None:
    with FakeClock().installed():
        decision = Backoff().ask(0, remaining_s=remaining)
    assert decision.allows == allows
    json.dumps(decision.to_dict(), allow_nan=False)


def test_faults_of_a_backoff_are_named_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Backoff(-1, math.inf, 0)
    assert len(caught.value.faults) == 3
    assert caught.value.faults[2] == "Backoff(attempts=0): give a whole number, 1 or more"
