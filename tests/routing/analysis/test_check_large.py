"""Graphs of many rules and participants: checked in time, and as small ones are."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.routing import (
    AnyOf,
    ContextEquals,
    FromSpeaker,
    InPhase,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    sequence,
    star,
)
from agentgraph.routing.analysis.floor_graph import floor_graph
from agentgraph.routing.analysis.shadowed_rules import EarlierRules, _Implications
from agentgraph.routing.rules import compile_rules
from tests.routing.samples import NAMES
from tests.routing.strategies import composed, few_leaves, graphs, names, simple_targets

PEOPLE = [f"p{number}" for number in range(600)]


@pytest.mark.parametrize(
    "graph",
    [
        sequence(PEOPLE),
        star("p0", PEOPLE[1:]),
        TransitionGraph(
            "p0",
            [
                *(Transition(ContextEquals("to", name), name) for name in PEOPLE),
                *(Transition(FromSpeaker(name), "p0") for name in PEOPLE),
            ],
            max_turns=9,
        ),
    ],
    ids=["sequence", "star", "context"],
)
def test_many_rules_are_checked_in_time(graph: TransitionGraph) -> None:
    began = time.process_time()
    codes = {finding.code for finding in graph.check(PEOPLE)}

    assert codes <= {"sticky_context"}
    assert time.process_time() - began < 2


conditions = composed(few_leaves | st.builds(FromSpeaker, names | st.just("human")), own=False)


@settings(max_examples=300)
@given(st.lists(conditions, max_size=8), conditions)
def test_first_earlier_rule_that_is_implied_is_found(earlier: list[Any], asked: Any) -> None:
    indexed, known = EarlierRules(), _Implications()
    for index, when in enumerate(earlier):
        indexed.add(index, when)

    wanted = next((n for n, when in enumerate(earlier) if known.holds(asked, when)), None)

    assert indexed.first_implied_by(asked) == wanted


@settings(max_examples=200)
@given(graphs(conditions, simple_targets))
def test_moves_of_one_are_the_same_whoever_else_is_asked(graph: TransitionGraph) -> None:
    rules = compile_rules(
        graph.initial_speaker,
        tuple(graph.transitions),
        graph.default_target,  # type: ignore[arg-type]  # it is a target once it is built
        None,
    )
    moves = floor_graph(rules, NAMES)

    for speaker in NAMES:
        told = [
            Transition(FromSpeaker(speaker) & one.when, one.then, one.priority)
            for one in graph.transitions
        ]
        alone = compile_rules("a", told, rules.default, None)
        assert [(m.speakers, m.floor, m.ends, m.rule, m.is_open) for m in moves[speaker]] == [
            (m.speakers, m.floor, m.ends, m.rule, m.is_open)
            for m in floor_graph(alone, NAMES)[speaker]
        ]


@pytest.mark.parametrize("size", [1, 2, 50])
def test_long_circle_is_found_whole(size: int) -> None:
    ring = PEOPLE[:size]
    rules = [
        Transition(FromSpeaker(one), ring[(place + 1) % size]) for place, one in enumerate(ring)
    ]
    graph = TransitionGraph("p0", [*rules, Transition(FromSpeaker("x"), TerminateTarget())])

    (finding,) = graph.check([*ring, "x"])[:1]

    assert (finding.code, finding.rules) == ("endless_cycle", tuple(range(size)))
    assert finding.message.startswith(f"the floor never leaves {', '.join(sorted(ring))}:")


def test_two_circles_are_two_findings() -> None:
    graph = TransitionGraph(
        "a",
        [
            Transition(FromSpeaker("a") & ToolCalled("t"), "b"),
            Transition(FromSpeaker("a"), "c"),
            Transition(FromSpeaker("b"), StayTarget()),
            Transition(FromSpeaker("c"), "d"),
            Transition(FromSpeaker("d"), "c"),
        ],
    )

    found = graph.check([*"abcd"])

    assert [(one.code, one.rules) for one in found] == [
        ("endless_cycle", (2,)),
        ("endless_cycle", (3, 4)),
    ]


@pytest.mark.parametrize(
    ("when", "is_trap"),
    [
        (ContextEquals("x", 1) | ToolCalled("t"), True),
        (AnyOf((InPhase(["p"]), ToolCalled("t") | ContextEquals("x", 1))), True),
        (ToolCalled("t") | InPhase(["p"]), False),
        ((ContextEquals("x", 1) & ~FromSpeaker("b")) | ToolCalled("t"), False),
    ],
)
def test_one_of_several_ways_to_fire_may_be_the_trap(when: Any, is_trap: bool) -> None:
    rules = [Transition(when, "b"), Transition(FromSpeaker("a"), "b")]
    mended = [Transition(FromSpeaker("b"), TerminateTarget()), *rules]

    found = TransitionGraph("a", rules, max_turns=9).check(["a", "b"])

    assert [one.code for one in found] == (["sticky_context"] if is_trap else [])
    assert TransitionGraph("a", mended, max_turns=9).check(["a", "b"]) == ()
