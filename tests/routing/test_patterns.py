from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph import Finish
from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    SimulatedTurn,
    ToolCalled,
    TransitionGraph,
    feedback,
    round_robin,
    sequence,
    star,
)
from tests.routing.samples import Envelope, State

ROOT = Path(__file__).parents[2]
NAMES = ["a", "b", "c"]


def codes(graph: TransitionGraph, participants: list[str]) -> list[str]:
    return [finding.code for finding in graph.check(participants)]


def test_round_robin_rotates_through_exactly_these() -> None:
    graph = round_robin(["c", "a"], max_turns=5)

    played = graph.simulate([], participants=NAMES)

    assert played.speakers == ("c", "a", "c", "a", "c")
    assert played.close_reason == "round_robin_complete"
    assert codes(round_robin(["a", "b"], max_turns=5), ["a", "b"]) == []


def test_round_robin_without_a_bound_goes_on_until_somebody_finishes() -> None:
    graph = round_robin(["a", "b"])

    assert graph.simulate(["", "", Finish()], participants=NAMES).close_reason == "finished"
    assert codes(graph, ["a", "b"]) == ["endless_cycle"]


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7))
def test_sequence_takes_each_step_once_in_its_order(steps: list[str]) -> None:
    graph = sequence(steps)

    played = graph.simulate([], participants=NAMES)

    assert played.speakers == tuple(steps)
    assert played.close_reason == "sequence_complete"
    assert graph.simulate([], participants=NAMES, creator=steps[0]).speakers == tuple(steps)
    assert codes(graph, sorted(set(steps))) == []


def test_sequence_counts_its_own_steps() -> None:
    graph = sequence(["a", "b", "a", "c"])

    assert graph.resolve(State(turn_count=1), Envelope("a")).next_speaker == "b"
    assert graph.resolve(State(turn_count=3), Envelope("a")).next_speaker == "c"


def test_star_asks_a_spoke_by_its_tool_and_ends_with_words() -> None:
    graph = star("a", ["b", "c"])

    played = graph.simulate(
        {"a": [SimulatedTurn(tool="ask_c"), SimulatedTurn(tool="ask_b")]}, participants=NAMES
    )

    assert played.speakers == ("a", "c", "a", "b", "a")
    assert played.close_reason == "star_complete"
    assert graph.routing_tools == {"ask_b", "ask_c"}
    assert codes(graph, NAMES) == []


@pytest.mark.parametrize("done", ["x", ToolCalled("approve")])
def test_feedback_goes_to_and_fro_until_it_is_done(done: Any) -> None:
    graph = feedback("a", "b", done=done)
    approves = SimulatedTurn(set={"x": True}, tool="approve")

    played = graph.simulate({"b": ["no", approves]}, participants=["a", "b"])

    assert played.speakers == ("a", "b", "a", "b")
    assert played.close_reason == "feedback_complete"
    assert codes(graph, ["a", "b"]) == []


def test_feedback_is_bounded_unless_it_is_asked_not_to_be() -> None:
    bounded = feedback("a", "b", done="x", max_turns=3)
    free = feedback("a", "b", done="x", max_turns=None)

    assert len(bounded.simulate([], participants=["a", "b"]).steps) == 3
    assert len(feedback("a", "b", done="x").simulate([], participants=["a", "b"]).steps) == 20
    assert codes(free, ["a", "b"]) == ["context_exit"]


@pytest.mark.parametrize("wrong", ["abc", [], (), [1], None])
@pytest.mark.parametrize("pattern", [round_robin, sequence, lambda names: star("a", names)])
def test_pattern_needs_a_list_of_names(pattern: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a list of names, at least one"):
        pattern(wrong)


@pytest.mark.parametrize(
    ("graph", "participants"),
    [
        (round_robin(NAMES, max_turns=3), NAMES),
        (sequence(["a", "b", "a"]), ["a", "b"]),
        (star("a", ["b", "c"]), NAMES),
        (feedback("a", "b", done="x"), ["a", "b"]),
    ],
)
def test_pattern_is_stored_as_a_document(graph: TransitionGraph, participants: list[str]) -> None:
    assert TransitionGraph.loads(graph.dumps()) == graph


EXAMPLES = {
    "pipeline": "researcher writer editor closed: sequence_complete",
    "hierarchical": (
        "coordinator analyst coordinator lawyer coordinator writer closed: report_written"
    ),
    "star": "planner weather planner traffic planner closed: planned",
    "coordinator": (
        "coordinator coder coordinator tester coordinator coder coordinator closed: finished"
    ),
    "escalation": "first_level second_level user second_level closed: resolved",
    "redundant": "moderator cautious bold evaluator closed: chosen",
    "feedback_loop": "drafter reviewer drafter reviewer closed: feedback_complete",
    "context_aware": "router user router security closed: answered",
    "triage_with_tasks": (
        "triage manager researcher manager researcher manager writer manager closed: all_tasks_done"
    ),
}
REACHED_BY_HANDOFF = {"hierarchical", "coordinator"}


def test_every_example_is_tested() -> None:
    modules = {path.stem for path in (ROOT / "examples" / "routing").glob("[!_]*.py")}

    assert modules == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_clean_and_speaks_as_it_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = importlib.import_module(f"examples.routing.{name}")
    example.main()
    *lines, end = capsys.readouterr().out.splitlines()

    speakers = [line.split(" ", 1)[1].split(":")[0] for line in lines]
    assert " ".join([*speakers, end]) == EXAMPLES[name]
    found = example.graph.check(example.PARTICIPANTS if name != "pipeline" else example.STEPS)
    allowed = {"unreached"} if name in REACHED_BY_HANDOFF else set()
    assert {finding.code for finding in found} == allowed
    assert TransitionGraph.loads(example.graph.dumps()) == example.graph


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_short(name: str) -> None:
    lines = (ROOT / "examples" / "routing" / f"{name}.py").read_text("utf-8").splitlines()

    assert len(lines) <= 40


def test_example_runs_alone() -> None:
    command = [sys.executable, "-m", "examples.routing.star"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)

    assert done.stdout.endswith("closed: planned\n")
