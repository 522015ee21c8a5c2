from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from threading import Barrier, Thread
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.breaker import CircuitBreaker, FailureKind, Permit
from agentgraph.testing import FakeClock

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock().installed() as clock:
        yield clock


def fail(breaker: CircuitBreaker, kind: FailureKind, times: int = 1, run: str = "") -> None:
    for _ in range(times):
        breaker.acquire(run).failure(kind)


def state_of(breaker: CircuitBreaker) -> str:
    return breaker.state  # as a call: mypy keeps to what an earlier assertion found


def trip(breaker: CircuitBreaker, clock: FakeClock, run: str = "") -> None:
    """Open it once more, from whatever state."""
    while state_of(breaker) == "open":
        clock.advance(1)
    breaker.acquire(run).failure("cost")
    assert state_of(breaker) == "open"


class Model:
    """A breaker told in another way: by looking back on all that happened."""

    def __init__(self) -> None:
        self.since_closed: list[str] = []
        self.closed_at = -math.inf
        self.until: float | None = None
        self.probe: tuple[int, float] | None = None
        self.epoch = 0
        self.trips = self.row = 0
        self.openings: Counter[str] = Counter()

    def state(self, now: float) -> str:
        if self.until is None:
            return "closed"
        return "open" if now < self.until else "half_open"

    def admits(self, now: float) -> bool:
        probing = self.probe is not None and now < self.probe[1]
        return self.state(now) == "closed" or (self.state(now) == "half_open" and not probing)

    def streak(self, kind: str, enders: set[str]) -> int:
        back = reversed(self.since_closed)
        return [*takewhile(lambda one: one not in enders, back)].count(kind)

    def trips_now(self) -> bool:
        answers = [one for one in self.since_closed if one != "released"][-6:]
        failed = answers.count("provider")
        rate = len(answers) >= 4 and failed / len(answers) >= 0.75
        return (
            self.streak("schema", {"valid"}) >= 2
            or self.streak("identical", {"valid"}) >= 3
            or self.streak("provider", {"valid", "delivered", "schema", "identical"}) >= 3
            or (self.since_closed[-1] == "provider" and rate)
            or self.since_closed[-1] == "cost"
        )

    def open(self, now: float, run: str, retry_after: float | None) -> None:
        if self.until is None and now - self.closed_at >= 100:
            self.row = 0
        self.until = now + max(min(100, 30 * 2**self.row), retry_after or 0)
        self.row, self.trips, self.epoch = self.row + 1, self.trips + 1, self.epoch + 1
        self.probe = None
        if run:
            self.openings[run] += 1

    def settle(self, epoch: int, outcome: str, now: float, run: str, after: float | None) -> None:
        if epoch != self.epoch:
            return
        if self.until is None:
            self.since_closed.append(outcome)
            if outcome in KINDS and self.trips_now():
                self.opened_by = outcome
                self.open(now, run, after)
        elif outcome in KINDS:
            self.opened_by = outcome
            self.open(now, run, after)
        elif outcome == "valid" or (
            outcome == "delivered" and self.opened_by not in ("schema", "identical")
        ):
            self.since_closed, self.until, self.closed_at, self.probe = [], None, now, None
            self.epoch += 1
        else:
            self.probe = None


class Breaking(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = Model()
        self.permits: list[tuple[Permit, int, str]] = []
        self.trips_before = 0
        self.breaker = CircuitBreaker(
            rate=0.75,
            window=6,
            min_calls=4,
            consecutive=3,
            cooldown_cap_s=100,
            probe_lease_s=20,
            max_trips=2,
        )

    @rule(run=st.sampled_from(["", "a", "b"]))
    def acquire(self, run: str) -> None:
        now = self.clock.monotonic()
        with self.clock.installed():
            permit = self.breaker.acquire(run)
        if self.model.openings[run] >= 2:
            assert permit.decision.action == "abort"
        elif self.model.admits(now):
            assert permit.decision.action == "allow"
            if self.model.until is not None:
                self.model.epoch += 1
                self.model.probe = (self.model.epoch, now + 20)
            self.permits.append((permit, self.model.epoch, run))
        else:
            assert permit.decision.action == "deny"

    @precondition(lambda self: self.permits)
    @rule(
        pick=st.integers(0, 100),
        outcome=st.sampled_from([*KINDS, "valid", "delivered", "released"]),
        after=st.sampled_from([None, None, -1.0, 5.0, 250.0]),
        again=st.booleans(),
    )
    def settle(self, pick: int, outcome: str, after: float | None, again: bool) -> None:
        permit, epoch, run = self.permits.pop(pick % len(self.permits))
        with self.clock.installed():
            settle(permit, outcome, after)
            if again:
                permit.failure("cost")
                permit.success()
        now = self.clock.monotonic()
        self.model.settle(epoch, outcome, now, run, after if after and after > 0 else None)

    @rule(seconds=st.sampled_from([1, 10, 20, 30, 60, 100, 250]))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def agrees_with_the_model(self) -> None:
        now = self.clock.monotonic()
        with self.clock.installed():
            assert self.breaker.state == self.model.state(now)
            for run in ("a", "b"):
                stopped = self.model.openings[run] >= 2
                assert (self.breaker.state_for(run) == "stopped") == stopped

    @invariant()
    def trips_never_go_down(self) -> None:
        assert self.breaker.trips == self.model.trips >= self.trips_before
        self.trips_before = self.breaker.trips


def settle(permit: Permit, outcome: str, after: float | None = None) -> None:
    if outcome == "released":
        permit.release()
    elif outcome in ("valid", "delivered"):
        permit.success(valid=outcome == "valid")
    else:
        permit.failure(next(kind for kind in KINDS if kind == outcome), after)


TestBreaking = Breaking.TestCase
TestBreaking.settings = settings(max_examples=150, stateful_step_count=40)


@pytest.mark.parametrize(
    ("kind", "limit"), [("schema", 2), ("identical", 3), ("provider", 5), ("cost", 1)]
)
def test_each_kind_of_failure_has_its_own_limit(
    clock: FakeClock, kind: FailureKind, limit: int
) -> None:
    breaker = CircuitBreaker()
    fail(breaker, kind, limit - 1)
    assert state_of(breaker) == "closed"
    fail(breaker, kind)
    assert state_of(breaker) == "open"


def test_half_of_ten_calls_failing_opens_it(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.acquire().success()
        fail(breaker, "provider")
    breaker.acquire().success()
    assert state_of(breaker) == "closed"
    fail(breaker, "provider")
    assert state_of(breaker) == "open"
    assert "provider failures in the last 10 calls: 5" in breaker.acquire().decision.cause


def test_the_rate_is_of_the_last_calls_only(clock: FakeClock) -> None:
    breaker = CircuitBreaker(window=10)
    for _ in range(4):
        fail(breaker, "provider")
        breaker.acquire().success()
    for _ in range(10):
        breaker.acquire().success()
    fail(breaker, "provider", 4)
    assert state_of(breaker) == "closed"


def test_success_resets_only_its_own_kind(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    fail(breaker, "schema")
    breaker.acquire().success(valid=False)
    fail(breaker, "provider")
    fail(breaker, "schema")
    assert state_of(breaker) == "open"


def test_an_answer_that_is_no_json_is_a_transport_success(clock: FakeClock) -> None:
    breaker = CircuitBreaker(schema=100)
    for _ in range(3):
        fail(breaker, "provider", 4)
        fail(breaker, "schema", 10)
    assert state_of(breaker) == "closed"


def test_a_valid_answer_ends_the_streaks(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    for _ in range(5):
        fail(breaker, "schema")
        fail(breaker, "identical", 2)
        breaker.acquire().success()
    assert state_of(breaker) == "closed"


async def test_of_twenty_concurrent_callers_one_probes() -> None:
    with FakeClock().installed() as clock:
        breaker = CircuitBreaker(fallback="cheaper")
        trip(breaker, clock)
        clock.advance(30)

        async def call() -> str:
            permit = breaker.acquire()
            await clock.sleep(0)
            return permit.decision.action

        actions = Counter(await asyncio.gather(*(call() for _ in range(20))))
    assert actions == {"allow": 1, "fallback": 19}


def test_of_many_threads_one_probes() -> None:
    breaker = CircuitBreaker(cooldown_s=1e-9)
    breaker.acquire().failure("cost")
    barrier = Barrier(8)
    actions: list[str] = []

    def call() -> None:
        barrier.wait()
        actions.extend(breaker.acquire().decision.action for _ in range(50))

    threads = [Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actions.count("allow") == 1


@pytest.mark.parametrize("outcome", [*KINDS, "valid", "delivered", "released"])
def test_a_stale_completion_does_not_settle_the_probe(clock: FakeClock, outcome: str) -> None:
    breaker = CircuitBreaker()
    stale = breaker.acquire()
    trip(breaker, clock)
    clock.advance(30)
    probe = breaker.acquire()
    settle(stale, outcome)
    assert state_of(breaker) == "half_open"
    assert not breaker.acquire().decision.allows
    probe.success()
    assert state_of(breaker) == "closed"


def test_a_cancelled_probe_frees_its_slot(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    trip(breaker, clock)
    clock.advance(30)
    breaker.acquire().release()
    assert (state_of(breaker), breaker.trips) == ("half_open", 1)
    assert breaker.acquire().decision.allows


def test_a_hung_probe_loses_its_slot_and_its_say(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    trip(breaker, clock)
    clock.advance(30)
    hung = breaker.acquire()
    clock.advance(119)
    assert not breaker.acquire().decision.allows
    clock.advance(1)
    second = breaker.acquire()
    assert second.decision.allows
    hung.failure("provider")
    assert state_of(breaker) == "half_open"
    second.success()
    assert state_of(breaker) == "closed"


def test_the_cooldown_begins_when_the_failure_is_recorded(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    slow = breaker.acquire()
    clock.advance(100)
    slow.failure("cost")
    clock.advance(29)
    assert state_of(breaker) == "open"
    clock.advance(1)
    assert state_of(breaker) == "half_open"


def test_the_cooldown_doubles_up_to_the_cap(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    lengths = []
    for _ in range(6):
        trip(breaker, clock)
        lengths.append(breaker.acquire().decision.evidence["retry_in_s"])
    assert lengths == [30, 60, 120, 240, 300, 300]


def test_closing_for_a_moment_does_not_shorten_the_next_cooldown(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    trip(breaker, clock)
    clock.advance(30)
    breaker.acquire().success()
    clock.advance(299)
    trip(breaker, clock)
    assert breaker.acquire().decision.evidence["retry_in_s"] == 60


def test_having_been_well_for_long_it_begins_with_the_first_cooldown(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    trip(breaker, clock)
    trip(breaker, clock)
    clock.advance(60)
    breaker.acquire().success()
    clock.advance(300)
    trip(breaker, clock)
    assert breaker.acquire().decision.evidence["retry_in_s"] == 30
    assert breaker.trips == 3


@pytest.mark.parametrize(
    ("retry_after", "cooldown"),
    [(None, 30), (5, 30), (400, 400), (-1, 30), (math.nan, 30), (math.inf, 30)],
)
def test_a_longer_retry_after_is_honoured(
    clock: FakeClock, retry_after: float | None, cooldown: float
) -> None:
    breaker = CircuitBreaker(consecutive=1)
    breaker.acquire().failure("provider", retry_after)
    assert breaker.acquire().decision.evidence["retry_in_s"] == cooldown


def test_no_change_of_the_wall_clock_moves_it(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    trip(breaker, clock)
    clock.set_wall(0)
    clock.advance(29)
    assert state_of(breaker) == "open"
    clock.set_wall(4_000_000_000)
    assert state_of(breaker) == "open"
    clock.advance(1)
    assert state_of(breaker) == "half_open"


@pytest.mark.parametrize(
    ("opener", "state"),
    [
        ("provider", "closed"),
        ("cost", "closed"),
        ("schema", "half_open"),
        ("identical", "half_open"),
    ],
)
def test_a_probe_of_the_transport_alone_closes_what_the_transport_opened(
    clock: FakeClock, opener: FailureKind, state: str
) -> None:
    breaker = CircuitBreaker(consecutive=1, schema=1, identical=1)
    fail(breaker, opener)
    clock.advance(30)
    breaker.acquire().success(valid=False)
    assert state_of(breaker) == state
    assert breaker.acquire().decision.allows


def test_closing_forgets_the_failures_before(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    fail(breaker, "schema")
    fail(breaker, "provider", 5)
    clock.advance(30)
    breaker.acquire().success(valid=False)
    fail(breaker, "schema")
    fail(breaker, "provider", 4)
    assert state_of(breaker) == "closed"


def test_a_run_is_stopped_for_its_own_failures_only(clock: FakeClock) -> None:
    breaker = CircuitBreaker(max_trips=2)
    trip(breaker, clock, run="a")
    trip(breaker, clock, run="b")
    trip(breaker, clock, run="a")
    assert breaker.state_for("a") == "stopped"
    assert breaker.state_for("b") == state_of(breaker) == "open"
    refusal = breaker.acquire("a").decision
    assert (refusal.action, refusal.failure_class) == ("abort", "provider_error")
    assert refusal.cause == "run a opened the breaker 2 times; 2 end a run"
    assert breaker.acquire("b").decision.action == "deny"
    clock.advance(1000)
    breaker.acquire("b").success()
    assert breaker.acquire("a").decision.action == "abort"
    assert breaker.acquire("b").decision.allows


def test_without_a_run_nobody_is_stopped(clock: FakeClock) -> None:
    breaker = CircuitBreaker(max_trips=1)
    trip(breaker, clock)
    trip(breaker, clock)
    assert breaker.state_for("") == "open"


def test_a_run_that_still_asks_is_not_forgotten_among_thousands(clock: FakeClock) -> None:
    breaker = CircuitBreaker(max_trips=1, cooldown_s=1, cooldown_cap_s=1)
    trip(breaker, clock, run="first")
    trip(breaker, clock, run="silent")
    for number in range(1500):
        clock.advance(1)
        breaker.acquire(f"run {number}").failure("cost")
        assert breaker.acquire("first").decision.action == "abort"
    assert len(breaker._openings) == 1024
    assert breaker.state_for("silent") != "stopped"


def test_a_refusal_says_until_when(clock: FakeClock) -> None:
    breaker = CircuitBreaker().for_key("openai/gpt")
    fail(breaker, "schema", 2)
    clock.advance(10)
    refusal = breaker.acquire().decision
    assert refusal.cause == (
        "the breaker of openai/gpt is open (schema failures in a row: 2): "
        "it lets one call try in 20 s"
    )
    assert refusal.guard == "circuit_breaker"
    assert refusal.evidence["until"] == clock.wall() + 20
    clock.advance(20)
    breaker.acquire()
    clock.advance(20)
    second = breaker.acquire().decision
    assert second.cause.endswith("one call is trying it, for 100 s at most")
    json.dumps([refusal.to_dict(), second.to_dict()], allow_nan=False)


def test_a_refused_permit_settles_nothing(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    trip(breaker, clock)
    refused = breaker.acquire()
    clock.advance(30)
    refused.success()
    assert state_of(breaker) == "half_open"


def test_an_unknown_kind_is_refused_and_leaves_the_permit_open(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    permit = breaker.acquire()
    with pytest.raises(ValueError, match="give one of provider, schema, identical, cost"):
        permit.failure("timeout")  # type: ignore[arg-type]
    permit.failure("cost")
    assert state_of(breaker) == "open"


def test_keys_are_apart_and_configured_alike(clock: FakeClock) -> None:
    breaker = CircuitBreaker(schema=1, fallback="cheaper")
    one, other = breaker.for_key("one"), breaker.for_key("other")
    assert breaker.for_key("one") is one
    fail(one, "schema")
    assert (state_of(breaker), state_of(one), state_of(other)) == ("closed", "open", "closed")
    assert one.acquire().decision.action == "fallback"


def test_of_too_many_keys_the_closed_ones_least_used_go_first(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    sick, used, old = (breaker.for_key(name) for name in ("sick", "used", "old"))
    trip(sick, clock)
    for number in range(254):
        assert breaker.for_key("used") is used
        breaker.for_key(f"key {number}")
    assert len(breaker._by_key) == 256
    assert breaker.for_key("sick") is sick
    assert breaker.for_key("used") is used
    assert breaker.for_key("old") is not old


def test_open_breakers_alone_are_bounded_too(clock: FakeClock) -> None:
    breaker = CircuitBreaker()
    for number in range(300):
        fail(breaker.for_key(str(number)), "cost")
    assert len(breaker._by_key) == 256
    assert state_of(breaker.for_key("299")) == "open"


def test_faults_are_named_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        CircuitBreaker(identical=0, schema=True, rate=math.nan, cooldown_s=math.inf, max_trips=-1)
    assert caught.value.faults == (
        "CircuitBreaker(identical=0): give a whole number, 1 or more",
        "CircuitBreaker(schema=True): give a whole number, 1 or more",
        "CircuitBreaker(max_trips=-1): give a whole number, 1 or more",
        "CircuitBreaker(cooldown_s=inf): give seconds above 0",
        "CircuitBreaker(rate=nan): give a number above 0, up to 1",
    )
    with pytest.raises(ConfigurationError) as caught:
        CircuitBreaker(window=5, cooldown_cap_s=10)
    assert caught.value.faults == (
        "CircuitBreaker(min_calls=10): give 5 or less",
        "CircuitBreaker(cooldown_cap_s=10): give 30.0 or more",
    )
