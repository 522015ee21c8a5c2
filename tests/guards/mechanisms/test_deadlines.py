from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.deadlines import Deadline, Deadlines, Layer
from agentgraph.testing import FakeClock

START = 1_700_000_000.0
LAYERS: tuple[Layer, ...] = ("step", "stage", "workflow")

limits = st.none() | st.integers(1, 1000).map(float)
deadlines = st.builds(Deadline, st.integers(0, 50).map(float), st.sampled_from(LAYERS))


def test_seconds_are_step_then_stage_then_workflow() -> None:
    assert Deadlines() == Deadlines(60, 180, 600)
    assert Deadlines(1, 2, 3) == Deadlines(step_s=1, stage_s=2, workflow_s=3)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, True, "60", 10**400])
def test_what_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Deadlines(wrong, wrong, wrong)
    assert len(caught.value.faults) == 3
    assert caught.value.faults[1].startswith(f"Deadlines(stage_s={wrong!r}): give seconds above 0")


@pytest.mark.parametrize("wrong", [math.nan, math.inf, True, "noon"])
def test_a_deadline_is_an_instant_of_a_known_layer(wrong: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Deadline(wrong, "round")  # type: ignore[arg-type]
    assert len(caught.value.faults) == 2


def test_without_limits_there_is_no_deadline() -> None:
    unlimited = Deadlines(None, None, None)
    assert (unlimited.step(), unlimited.stage(), unlimited.workflow()) == (None, None, None)
    outer = Deadline(START, "workflow")
    assert unlimited.step(unlimited.stage(outer)) is outer


@given(limits, limits, limits, st.lists(st.integers(0, 300), max_size=5))
def test_a_child_never_ends_after_its_parent_and_retries_never_extend(
    step: float | None, stage: float | None, workflow: float | None, pauses: list[int]
) -> None:
    with FakeClock(START).installed() as clock:
        limits = Deadlines(step, stage, workflow)
        outermost = limits.workflow()
        outer = limits.stage(outermost)
        assert outermost is None or (outer is not None and outer.at <= outermost.at)
        for pause in pauses:
            attempt = limits.step(outer)
            assert outer is None or (attempt is not None and attempt.at <= outer.at)
            assert step is None or (attempt is not None and attempt.remaining() <= step)
            clock.advance(pause)


@given(deadlines, deadlines)
def test_the_shorter_is_the_earlier_and_of_two_alike_the_outer(a: Deadline, b: Deadline) -> None:
    shorter = a.shorter(b)
    assert shorter == b.shorter(a)
    assert shorter in (a, b)
    assert shorter.at == min(a.at, b.at)
    if a.at == b.at:
        assert shorter.layer == max(a.layer, b.layer, key=LAYERS.index)
    assert a.shorter(None) is a


def test_the_error_names_the_layer_that_fired() -> None:
    with FakeClock(START).installed() as clock:
        limits = Deadlines(60, 60, 60)
        deadline = limits.step(limits.stage(limits.workflow()))
        assert deadline is not None
        assert deadline.layer == "workflow"
        assert deadline.check().allows
        clock.advance(61)
        decision = deadline.check()
    assert (decision.action, decision.guard) == ("abort", "deadline")
    assert decision.failure_class == "deadlock"
    assert decision.cause == "the deadline of the workflow passed 1 s ago"
    assert json.loads(json.dumps(decision.to_dict()))["evidence"]["layer"] == "workflow"


@pytest.mark.parametrize(
    ("layer", "failure"),
    [("step", "provider_error"), ("stage", "deadlock"), ("workflow", "deadlock")],
)
def test_what_has_no_time_for_anything_useful_is_not_started(layer: Layer, failure: str) -> None:
    with FakeClock(START).installed() as clock:
        deadline = Deadline(START + 10, layer)
        clock.advance(9)
        assert deadline.check(1.0).allows
        clock.advance(0.5)
        decision = deadline.check(1.0)
        assert (decision.action, decision.failure_class) == ("abort", failure)
        assert decision.cause == f"the {layer} has 0.5 s left; 1 s is the least of use"
        assert deadline.check(0).allows
        clock.advance(0.5)
        assert not deadline.check(0).allows


def test_a_nan_stops_the_work_rather_than_letting_it_pass() -> None:
    with FakeClock(START).installed():
        decision = Deadline(START + 10, "stage").check(math.nan)
    assert decision.action == "abort"
    json.dumps(decision.to_dict(), allow_nan=False)


def test_only_the_pause_of_a_human_moves_a_deadline() -> None:
    with FakeClock(START).installed() as clock:
        deadline = Deadline(START + 600, "workflow")
        clock.advance(100)
        clock.advance(3600)  # lunch
        assert not deadline.check().allows
        shifted = deadline.shifted(3600)
        assert (shifted.remaining(), shifted.layer) == (500, "workflow")
    with pytest.raises(ConfigurationError):
        deadline.shifted(math.nan)


def test_a_pause_over_which_the_wall_clock_was_set_back_leaves_the_time_there_was() -> None:
    with FakeClock(START).installed() as clock:
        deadline = Deadline(START + 600, "workflow")
        clock.advance(100)
        clock.set_wall(START - 7200)
        assert deadline.shifted(-7300).remaining() == 500


@given(st.integers(-(10**6), 10**6), st.integers(0, 700))
def test_an_anchored_deadline_ignores_the_wall_clock(jump: int, passed: int) -> None:
    with FakeClock(START).installed() as clock:
        anchored = Deadline(START + 600, "workflow").to_monotonic()
        clock.set_wall(START + jump)
        clock.advance(passed)
        assert anchored.remaining() == 600 - passed
        decision = anchored.check()
        assert decision.allows == (600 - passed >= 1)
        assert decision.evidence["layer"] == "workflow"


def test_a_deadline_survives_into_another_process() -> None:
    with FakeClock(START).installed() as first:
        first.advance(5000)
        deadline = Deadlines().workflow()
        assert deadline is not None
    with FakeClock(START + 5100).installed():
        assert deadline.to_monotonic().remaining() == 500
