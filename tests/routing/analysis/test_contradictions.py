"""Conditions that can never hold, and tools that nobody has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from agentgraph.routing import (
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSource,
    FromSpeaker,
    HumanTarget,
    InPhase,
    Not,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnIs,
)
from agentgraph.routing.analysis.contradictions import never_holds
from tests.routing.samples import NAMES, Envelope, State
from tests.routing.strategies import (
    broken,
    composed,
    envelopes,
    leaves,
    states,
)

A, B, HUMAN = FromSpeaker("a"), FromSpeaker("b"), FromSpeaker("human")
PAID, OPEN = ContextEquals("state", "paid"), ContextEquals("state", "open")
ASKS = HumanTarget()


def graph(*rules: tuple[Any, Any], default: Any = None, **options: Any) -> TransitionGraph:
    default = TerminateTarget("done") if default is None else default
    return TransitionGraph("a", [Transition(*rule) for rule in rules], default, **options)


def codes(graph: TransitionGraph, **known: Any) -> list[tuple[Any, ...]]:
    return [(f.code, f.severity, *f.rules) for f in graph.check(NAMES, **known)]


@settings(max_examples=500)
@given(composed(leaves | broken), states, envelopes)
def test_a_condition_that_never_holds_holds_in_no_state(
    when: Any, state: State, envelope: Envelope
) -> None:
    rules = TransitionGraph("a", [Transition(when, "b")], "c")
    if never_holds(when):
        assert rules.resolve(state, envelope).rule != 0


@pytest.mark.parametrize(
    "when",
    [
        A & B,
        A & (PAID & B),
        PAID & OPEN,
        PAID & ContextIn("state", ["open", "lost"]),
        ContextEquals("count", 2) & ContextThreshold("count", 3),
        ContextEquals("count", True) & ContextThreshold("count", 0),
        ContextIn("state", []),
        InPhase(["intake"]) & InPhase(["work"]),
        InPhase([]),
        FromSource(["web"]) & FromSource(["mail"]),
        ToolCalled("pay") & ToolCalled("refund"),
        TurnIs(1) & TurnIs(2),
        PAID & ~PAID,
        ~Always(),
        Not(AnyOf((PAID, Always()))),
        AnyOf(()),
        (A & B) | (PAID & OPEN),
        A & ((PAID & OPEN) | AnyOf(())),
        PAID & ~ContextIn("state", ["open", "paid"]),
        ContextEquals("count", 3) & ~ContextThreshold("count", 3),
    ],
    ids=str,
)
def test_a_rule_that_can_never_fire_is_found(when: Any) -> None:
    found = graph((A, "b"), (when, "c"), max_turns=9).check(NAMES)
    (finding,) = [f for f in found if f.code == "never_holds"]
    assert (finding.severity, finding.rules) == ("warning", (1,))
    assert finding.message == "rule 1 never fires: its condition contradicts itself; correct it"


@pytest.mark.parametrize(
    "when",
    [
        A & HUMAN,  # the creator may be "a"
        PAID & ContextIn("state", ["paid", "lost"]),
        PAID & ContextEquals("other", "open"),
        ContextEquals("count", 3) & ContextThreshold("count", 3),
        InPhase(["intake", "work"]) & InPhase(["work"]),
        PAID & ~OPEN,
        PAID & ~ContextEquals("other", "paid"),
        ContextIn("state", ["open", "paid"]) & ~PAID,
        ContextEquals("state", "paid") & ~ContextThreshold("state", 3),
        (A & B) | PAID,
        ~(A & B),
        ToolCalled("pay") & PAID,
    ],
    ids=str,
)
def test_a_rule_that_can_fire_is_not(when: Any) -> None:
    found = graph((A, "b"), (when, "c"), max_turns=9).check(NAMES)
    assert "never_holds" not in {finding.code for finding in found}


def test_an_exit_that_can_never_be_taken_is_none() -> None:
    endless = graph((A & PAID & OPEN, TerminateTarget("paid")), (A, "b"), (B, "a"))
    assert ("endless_cycle", "error", 1, 2) in codes(endless)


def test_a_tool_that_nobody_has_is_found_once_the_tools_are_known() -> None:
    loop = graph((A & ToolCalled("pay"), TerminateTarget("paid")), (A, "b"), (B, "a"))
    assert "endless_cycle" not in {code for code, *_ in codes(loop)}
    assert codes(loop, tools=["pay"]) == codes(loop)
    found = loop.check(NAMES, tools=["refund"])
    assert [f.code for f in found if f.severity == "error"] == ["endless_cycle"]
    (unknown,) = [f for f in found if f.code == "unknown_tool"]
    assert unknown.message == (
        "rule 0 waits for a call of 'pay', and nobody has such a tool: give it to an agent, or "
        "correct the name"
    )


def test_an_endless_cycle_is_a_warning_where_something_else_ends_the_session() -> None:
    loop = graph((A, "b"), (B, "a"))
    assert ("endless_cycle", "error", 0, 1) in codes(loop)
    assert ("endless_cycle", "warning", 0, 1) in codes(loop, is_limited=True)
