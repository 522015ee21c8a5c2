"""What an input has learned: a result counts once, in any order of merges, and in little room."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentgraph.guards.mechanisms.limits import Progress

RESULTS = st.lists(st.one_of(st.text(max_size=5), st.integers(), st.lists(st.text(max_size=3))))


def after(results: list[Any]) -> Progress:
    progress = Progress()
    for result in results:
        progress.steps += 1
        progress.learn(result)
    return progress


@given(RESULTS)
def test_a_result_is_new_once_at_most(results: list[Any]) -> None:
    progress = after(results)
    learned_at = progress.learned_at
    for result in results:
        progress.steps += 1
        progress.learn(result)
    assert progress.learned_at == learned_at
    assert progress.idle_steps >= len(results)


@given(RESULTS, RESULTS)
def test_two_processes_know_together_what_each_has_learned(first: Any, second: Any) -> None:
    progress = after(first)
    progress.merge(after(second).dump(), is_latest=True)
    other = after(second)
    other.merge(after(first).dump(), is_latest=True)
    assert progress.dump() == other.dump()
    again = Progress()
    again.merge(progress.dump(), is_latest=True)
    assert again.dump() == progress.dump()


def test_hundreds_of_results_take_little_room_and_most_are_seen_as_new() -> None:
    progress = Progress()
    longest = 0
    for number in range(500):
        progress.steps += 1
        progress.learn(f"result {number}")
        longest = max(longest, progress.idle_steps)
    assert len(str(progress.dump())) < 250
    assert longest < 25


def test_handoffs_in_a_row_are_those_of_the_latest() -> None:
    progress, other = Progress(), Progress()
    progress.handoffs, other.handoffs = 3, 1
    progress.merge(other.dump(), is_latest=False)
    assert progress.handoffs == 3
    progress.merge(other.dump(), is_latest=True)
    assert progress.handoffs == 1
