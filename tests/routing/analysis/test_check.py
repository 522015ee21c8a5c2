from __future__ import annotations

import time
from typing import Any

import pytest

from agentgraph.routing import (
    ActiveAgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    FromSpeaker,
    HumanTarget,
    InPhase,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    star,
)
from tests.routing.samples import NAMES, Decides, Raises

A, B, C = (FromSpeaker(name) for name in NAMES)
DONE = TerminateTarget("done")


def codes(graph: TransitionGraph, *participants: str) -> list[tuple[Any, ...]]:
    found = graph.check(participants or NAMES)
    return [(finding.code, *finding.rules) for finding in found]


def graph(*rules: tuple[Any, Any], default: Any = DONE, **options: Any) -> TransitionGraph:
    return TransitionGraph("a", [Transition(*rule) for rule in rules], default, **options)


def ring(*more: tuple[Any, Any], **options: Any) -> TransitionGraph:
    return graph((A, "b"), (B, "c"), *more, **options)


def test_clean_graph_has_no_findings() -> None:
    assert ring().check(NAMES) == ()


@pytest.mark.parametrize("turns", [0, -3])
def test_max_turns_below_one_is_an_error(turns: int) -> None:
    (finding,) = ring(max_turns=turns).check(NAMES)

    assert (finding.code, finding.severity) == ("max_turns", "error")
    assert finding.message == (f"max_turns={turns} lets nobody speak: write at least 1, or None")


@pytest.mark.parametrize(
    "rule",
    [
        (FromSpeaker("d"), "a"),
        (~(A & (ToolCalled("t") | FromSpeaker("d"))), "a"),
        (C, "d"),
        (C, RoundRobinTarget(["a", "d"])),
        (C, HumanTarget("d")),
        (C, ParallelTarget(["a", "d"], "a")),
        (C, ParallelTarget(["a", "b"], "d")),
        (C, PhaseTarget("x", PhaseTarget("y", "d"))),
    ],
)
def test_unknown_name_is_an_error_wherever_it_stands(rule: tuple[Any, Any]) -> None:
    (finding,) = ring(rule).check(NAMES)

    assert (finding.code, finding.severity, finding.rules) == ("unknown_name", "error", (2,))
    assert finding.message == "rule 2 names 'd', who is no participant: there are a, b, c"


def test_unknown_initial_speaker_and_default_are_errors() -> None:
    found = TransitionGraph("d", [], "e").check(["a"])

    assert [finding.message for finding in found] == [
        "the initial speaker is 'd', who is no participant: there are a",
        "default_target names 'e', who is no participant: there are a",
    ]
    assert TransitionGraph("a").check([])[0].message.endswith("there is nobody")


def test_human_is_known_but_not_in_turn_with_others() -> None:
    known = [(A, "human"), (FromSpeaker("human"), "b"), (B, HumanTarget())]
    in_turn = [(A, RoundRobinTarget(["a", "human"])), (B, ParallelTarget(["human"], "a"))]

    assert codes(graph(*known), "a", "b") == []
    assert codes(graph(*in_turn), "a", "b") == [("unknown_name", 0), ("unknown_name", 1)]
    assert "unknown_name" not in [code for code, *_ in codes(graph(*in_turn), "a", "b", "human")]


@pytest.mark.parametrize(
    ("rules", "default", "cycle"),
    [
        ([(Always(), "a")], DONE, (0,)),
        ([(A, "b"), (B, "a")], DONE, (0, 1)),
        ([(A, "b"), (B, "c"), (C, "b")], DONE, (1, 2)),
        ([(A, ToolCalled("t") and "b"), (B & ToolCalled("t"), "a"), (B, "a")], DONE, (0, 1, 2)),
        ([(A, StayTarget())], DONE, (0,)),
        ([(Always(), RoundRobinTarget(["a", "b"]))], DONE, (0,)),
        ([(Always(), RoundRobinTarget())], DONE, (0,)),
        ([(A, ParallelTarget(["b", "c"], "a"))], DONE, (0,)),
        ([(A, PhaseTarget("x", "a"))], DONE, (0,)),
        ([], "a", ()),
    ],
)
def test_circle_without_an_exit_is_an_error(rules: Any, default: Any, cycle: Any) -> None:
    endless = graph(*rules, default=default)

    (finding, *rest) = [f for f in endless.check(NAMES) if f.code != "unreached"]
    assert (finding.code, finding.severity, finding.rules) == ("endless_cycle", "error", cycle)
    assert "add a rule that ends it, or set max_turns" in finding.message
    assert rest == []
    capped = graph(*rules, default=default, max_turns=9)
    assert "endless_cycle" not in [f.code for f in capped.check(NAMES)]


@pytest.mark.parametrize(
    "rules",
    [
        [(A, "b"), (B & ToolCalled("t"), DONE), (B, "a")],
        [(A, "b"), (B & ToolCalled("t"), "a")],
        [(A, "b"), (B, HumanTarget())],
        [(A, "b"), (B, RevertToInitiatorTarget())],
        [(A, ActiveAgentTarget())],
        [(A, Decides("two"))],
        [(B, "c"), (C, "b")],
        [(A, ParallelTarget(["b"], StayTarget())), (B & ToolCalled("t"), "a")],
    ],
)
def test_circle_that_something_leaves_or_nobody_enters_is_none(rules: Any) -> None:
    assert "endless_cycle" not in [code for code, *_ in codes(graph(*rules))]


@pytest.mark.parametrize(
    ("exit_", "warned"),
    [
        (ContextEquals("x", True), True),
        (A & ContextIn("x", [1]), True),
        (~ContextEquals("x", True) & ~B, True),
        (ContextEquals("x", True) | ToolCalled("t"), False),
        (ToolCalled("t"), False),
        (Raises(), False),
    ],
)
def test_circle_that_only_a_context_value_leaves_is_a_warning(exit_: Any, warned: bool) -> None:
    looped = [(exit_, DONE), (A, "b"), (B, "a")]

    found = graph(*looped).check(["a", "b"])

    assert [f.code for f in found] == (["context_exit"] if warned else [])
    assert all(f.severity == "warning" and f.rules == (0, 1, 2) for f in found)
    assert graph(*looped, max_turns=9).check(["a", "b"]) == ()


def test_human_may_be_any_participant() -> None:
    stays = graph((~A & ~B, StayTarget()), (A, "b"), (B, DONE))
    opened = TransitionGraph("human", stays.transitions)

    assert "endless_cycle" not in [code for code, *_ in codes(opened, "a", "b")]
    played = opened.simulate([], participants=["a", "b"], creator="a")
    assert played.close_reason == "done"


def test_participant_whom_no_rule_reaches_is_a_warning() -> None:
    (finding,) = graph((A, "b")).check(NAMES)

    assert (finding.code, finding.severity) == ("unreached", "warning")
    assert finding.message == (
        "no rule ever gives 'c' the floor, only a Handoff could: add one, or leave the participant "
        "out"
    )
    assert codes(graph((A, "b"), (FromSpeaker("c"), "c"))) == [("unreached",)]


@pytest.mark.parametrize(
    "target",
    [
        ParallelTarget(["b", "c"], DONE),
        RoundRobinTarget(),
        ActiveAgentTarget(),
        Decides("two"),
        PhaseTarget("x", ParallelTarget(["b"], "c")),
        HumanTarget("c"),
    ],
)
def test_whoever_a_target_may_reach_is_reached(target: Any) -> None:
    unreached = [
        f for f in graph((Always(), target), max_turns=3).check(NAMES) if f.code == "unreached"
    ]

    assert not any("'c'" in finding.message for finding in unreached)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Always(), A),
        (AllOf(()), A),
        (A, A),
        (A, A & ToolCalled("t")),
        (A, ToolCalled("t") & (B | C) & A),
        (A | B, A),
        (A | B, (A & ToolCalled("t")) | B),
        (A & ToolCalled("t"), ToolCalled("t") & A & InPhase(["x"])),
        (ContextEquals("x", {"k": 1, "l": 2}), ContextEquals("x", {"l": 2, "k": 1})),
        (A, AnyOf((A & B,))),
        (~A, ~A & B),
        (Raises(), Raises()),
    ],
)
def test_rule_behind_one_that_always_fires_with_it_is_a_warning(first: Any, second: Any) -> None:
    found = [f for f in graph((first, "b"), (second, "c")).check(NAMES) if f.code == "shadowed"]

    assert [(f.severity, f.rules) for f in found] == [("warning", (1, 0))]
    assert found[0].message.startswith("rule 1 never fires: whenever it would, rule 0 does")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (A, B),
        (A & ToolCalled("t"), A),
        (A, A | B),
        (ContextEquals("x", True), ContextEquals("x", 1)),
        (ContextEquals("x", "1"), ContextEquals("x", 1)),
        (A, ~A),
        (AnyOf(()), A),
        (Raises("x"), Raises("y")),
    ],
)
def test_rule_that_may_fire_is_not_called_shadowed(first: Any, second: Any) -> None:
    found = graph((first, "b"), (second, "c")).check(NAMES)

    assert "shadowed" not in [finding.code for finding in found]


@pytest.mark.parametrize("target", [ActiveAgentTarget(), Decides("two")])
def test_rule_behind_one_that_may_lead_nowhere_is_its_fallback(target: Any) -> None:
    rules = [(Always(), target), (Always(), PhaseTarget("x", target)), (Always(), "b")]

    assert codes(graph(*rules)) == []


def test_priority_decides_which_rule_is_shadowed() -> None:
    rules = [Transition(A & ToolCalled("t"), "b"), Transition(A, "c", priority=-1)]

    assert codes(TransitionGraph("a", rules))[-1] == ("shadowed", 0, 1)


def test_conditions_of_many_parts_are_compared_in_time() -> None:
    one: Any = ToolCalled("t")
    other: Any = ToolCalled("u")
    for kind in (AllOf, AnyOf) * 12:
        one, other = kind((one, A)), kind((B, other))
    began = time.process_time()

    assert ("shadowed", 1, 0) not in codes(graph((one, "b"), (other, "c")))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "when", [ContextEquals("x", 1), ContextIn("x", [1]), ContextEquals("x", 1) & ~A]
)
def test_context_value_that_keeps_the_floor_where_it_leads_is_a_warning(when: Any) -> None:
    trap = [(when, PhaseTarget("p", "b")), (A, "c"), (B, DONE)]
    mended = [trap[2], *trap[:2]]

    found = [f for f in graph(*trap, max_turns=9).check(NAMES) if f.severity == "warning"]

    assert [(f.code, f.rules) for f in found] == [("sticky_context", (0,))]
    assert "put a rule from that speaker before it" in found[0].message
    assert codes(graph(*mended)) == []


@pytest.mark.parametrize(
    "when",
    [A & ContextEquals("x", 1), ContextEquals("x", 1) & ToolCalled("t"), ToolCalled("t")],
)
def test_rule_that_asks_for_more_than_context_is_no_trap(when: Any) -> None:
    assert codes(graph((when, "b"), (A, "c"))) == []


def test_errors_stand_before_warnings_and_all_are_told() -> None:
    found = graph((A, "b"), (A, "nobody"), max_turns=0).check(NAMES)

    assert [f.code for f in found] == ["max_turns", "unknown_name", "shadowed"]
    assert str(found[-1]).startswith("warning shadowed: rule 1 never fires")
    assert str(found[-1]).endswith("(rules 1, 0)")


def test_who_decides_by_a_tool_may_leave_any_cycle_and_reach_anybody() -> None:
    circle = graph((A, "b"), (B, "a"))
    assert codes(circle) == [("endless_cycle", 0, 1), ("unreached",)]
    assert circle.check(NAMES, deciders=["b"]) == ()
    # `c` decides nothing, as nobody gives it the floor.
    assert [finding.code for finding in circle.check(NAMES, deciders=["c"])] == [
        "endless_cycle",
        "unreached",
    ]


def test_who_decides_among_parallel_speakers_may_leave_the_cycle_of_their_join() -> None:
    circle = graph((A, ParallelTarget(["b", "c"], "a")))
    assert codes(circle) == [("endless_cycle", 0)]
    assert circle.check(NAMES, deciders=["c"]) == ()


def test_a_context_value_does_not_hold_one_who_can_change_it() -> None:
    sticky = graph((ContextEquals("tier", "gold"), "b"), (A, "c"))
    assert [finding.code for finding in sticky.check(NAMES)] == ["sticky_context"]
    assert sticky.check(NAMES, deciders=["b"]) == ()


def test_a_cycle_through_a_person_is_not_endless() -> None:
    circle = graph((A, "ann"), (FromSpeaker("ann"), "a"))
    assert [finding.code for finding in circle.check(["a", "ann"])] == ["endless_cycle"]
    assert circle.check(["a", "ann"], people=["ann"]) == ()


def test_who_gets_the_floor_otherwise_and_people_are_reached() -> None:
    ends = graph((A, "b"))
    assert codes(ends) == [("unreached",)]
    assert ends.check(NAMES, starts=["c"]) == ()
    assert ends.check(NAMES, people=["c"]) == ()


def test_the_hub_of_a_star_may_ask_without_the_tools_of_the_pattern() -> None:
    spokes = star("a", ["b", "c"])
    assert spokes.check(NAMES, tools=["ask_spoke"], deciders=["a"]) == ()
