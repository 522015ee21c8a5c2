"""Cycles that the floor leaves only by a model's answer, or by a context value that is not set."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph.routing import (
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
    HumanTarget,
    ModelChoice,
    ModelCondition,
    PhaseTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from tests.routing.samples import NAMES

A, B, C = (FromSpeaker(name) for name in NAMES)
MODEL = "openai:gpt-5-mini"
DONE, MORE = ModelCondition(MODEL, "Is it done?"), ModelCondition(MODEL, "Is more needed?")
PAID, CALLED = ContextEquals("paid", True), ToolCalled("t")
END = TerminateTarget("done")


def among(*names: str) -> ModelChoice:
    return ModelChoice(MODEL, names)


def cycles(*rules: tuple[Any, Any], default: Any = END, **known: Any) -> list[tuple[Any, ...]]:
    """Return code, severity and rules of the findings on cycles."""
    transitions = [Transition(*rule) for rule in rules]
    found = TransitionGraph("a", transitions, default, known.pop("max_turns", None))
    return [
        (item.code, item.severity, *item.rules)
        for item in found.check(NAMES, **known)
        if item.code in ("endless_cycle", "context_exit", "model_exit")
    ]


@pytest.mark.parametrize(
    "rules",
    [
        [(A & DONE, END), (A, "b"), (B, "a")],
        [(A & ~MORE, END), (A, "b"), (B, "a")],
        [(A & MORE, "b"), (B, "a")],
        [(A & MORE, "b"), (B & ~DONE, "a")],
        [(A & (MORE | CALLED), "b"), (B, "a")],
        [(A & MORE, PhaseTarget("work", "b")), (A & CALLED, END), (B, "a")],
        [(A & DONE, HumanTarget()), (A, "b"), (B, "a")],
        [(A & DONE, HumanTarget()), (A, "b"), (B, "a"), (FromSpeaker("human"), "a")],
        [(A, among("b")), (B, "a")],
        [(A, among("b", "c")), (B, "a"), (C, END)],
        [(A, among("b", "c")), (B, "a"), (C, HumanTarget())],
        [(A, PhaseTarget("work", among("b", "c"))), (B, among("a")), (C, END)],
        [(A, among("b")), (A & CALLED, END), (B, "a")],
        [(A & CALLED, among("b")), (A & CALLED, END), (A, "b"), (B, "a")],
        [(A & MORE, among("a", "b")), (B, "a")],
        # `c` may end it, but need not get the floor.
        [(A & DONE, "c"), (A, "b"), (B, "a"), (C & CALLED, END), (C, "a")],
        [(A, among("b", "c")), (B, "a"), (C & CALLED, END), (C, "a")],
    ],
)
def test_a_cycle_that_only_a_models_answer_leaves_is_a_warning(rules: Any) -> None:
    ((code, severity, *indices),) = cycles(*rules)
    assert (code, severity) == ("model_exit", "warning")
    assert set(indices) <= set(range(len(rules)))
    assert cycles(*rules, is_limited=True) == [(code, severity, *indices)]
    assert cycles(*rules, max_turns=9) == []
    assert cycles(*rules, deciders=["a", "b"]) == []


@pytest.mark.parametrize(
    "rules",
    [
        [(A & CALLED, END), (A & MORE, "b"), (B, "a")],
        [(A & MORE, "b"), (B & CALLED, "a")],
        [(A & (DONE | CALLED), END), (A, "b"), (B, "a")],
        [(A, among("b", "c")), (B, HumanTarget()), (C, HumanTarget())],
        [(A, among("b", "c"))],
        [(A & MORE & CALLED, "b"), (B, "a")],
        [(A & MORE, "b"), (B, "c")],
    ],
)
def test_a_cycle_that_the_floor_leaves_otherwise_too_is_none(rules: Any) -> None:
    assert cycles(*rules) == []


def test_a_choice_that_never_leaves_is_endless_where_its_fallback_does_not_either() -> None:
    rules = [(A, among("b")), (B, "a")]
    assert cycles(*rules, default="b") == [("endless_cycle", "error", 0, 1)]
    assert cycles(*rules, default="b", is_limited=True) == [("endless_cycle", "warning", 0, 1)]


def test_the_finding_says_what_need_not_come() -> None:
    circle = [Transition(A, "b"), Transition(B, "a")]
    told = [
        TransitionGraph("a", [Transition(A & needed, END), *circle], END).check(["a", "b"])[0]
        for needed in (DONE, DONE & PAID)
    ]
    assert [str(finding) for finding in told] == [
        "warning model_exit: the floor leaves a, b only by a model's answer: if it never comes, "
        "never; set max_turns, or add a rule that leaves otherwise (rules 0, 1, 2)",
        "warning model_exit: the floor leaves a, b only by a model's answer or a context value: if "
        "it never comes, never; set max_turns, or add a rule that leaves otherwise (rules 0, 1, 2)",
    ]


@pytest.mark.parametrize(
    ("stays", "is_held"),
    [
        (~PAID, True),
        (ContextEquals("paid", None), True),
        (ContextIn("paid", [False, None]), True),
        (~ContextThreshold("count", 3), True),
        (~(PAID & CALLED), True),
        (PAID, False),
        (ContextThreshold("count", 3), False),
        (~PAID & CALLED, False),
    ],
)
def test_a_rule_that_holds_while_no_value_is_set_keeps_the_floor(stays: Any, is_held: bool) -> None:
    rules = [(A & stays, "b"), (B, "a")]
    assert cycles(*rules) == ([("context_exit", "warning", 0, 1)] if is_held else [])
    assert cycles((A & CALLED, END), *rules) == []
