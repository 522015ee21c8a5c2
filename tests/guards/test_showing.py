"""What a notebook shows of guards: their policy, their decisions, their table and their trail."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agentgraph.guards import (
    AuditTrail,
    Cell,
    CostBudget,
    Decision,
    DecisionTable,
    Gate,
    Guards,
    JSONLSink,
    LoopDetector,
    Subject,
)
from agentgraph.guards.decision import FAILURE_CLASSES, TIERS
from agentgraph.stream import GuardEvent
from tests.test_display import HOSTILE, Tags, text_of


def only_mine(subject: Subject) -> bool:
    return True


def rows_of(html: str) -> dict[str, str]:
    """Return what a table says in the second column, by the first one."""
    rows = [line.split("</th>")[-1] for line in html.split("<tr>")]
    names = [line.split("</th>")[0] for line in html.split("<tr>")]
    return {text_of(name): text_of(told) for name, told in zip(names, rows, strict=True)}


def test_a_decision_shows_what_who_why_and_on_what_grounds() -> None:
    detector = LoopDetector(threshold=2)
    detector.observe(tool="look_up", args={}, result="x")
    html = detector.observe(tool="look_up", args={}, result="x")._repr_html_()

    text = text_of(html)
    assert text.startswith("correct, says loop_detector`look_up` was called 2 times")
    assert "failure infinite_loop" in text and "count 2" in text
    assert Tags(html).seen <= {"div", "b", "span", "code"}


def test_a_decision_that_lets_pass_is_shown_in_a_line() -> None:
    assert text_of(Decision("allow", "hop_limit")._repr_html_()) == "allow, says hop_limit"


REGULATED = {"tier": "regulated", "budget": CostBudget(tokens=9), "velocity": None}


@pytest.mark.parametrize("overrides", [{}, REGULATED])
def test_guards_show_each_guard_and_its_limits(overrides: Mapping[str, object]) -> None:
    guards = Guards(**overrides)  # type: ignore[arg-type]
    html = guards._repr_html_()
    rows = rows_of(html)

    assert text_of(html).startswith(f"Guards, {guards.tier}")
    assert rows["steps"] == "StepLimit(steps=50, total=500)"
    assert rows["loop"].startswith("LoopDetector(window=5, threshold=3")
    assert rows["gates"] == rows["interrupt_on"] == "off"
    is_regulated = guards.tier == "regulated"
    assert (rows["velocity"] == "off") is is_regulated
    assert rows["audit"] == repr(guards.audit)
    assert "object at 0x" not in html


def test_guards_show_what_was_given_in_bold_and_their_stages_in_a_row() -> None:
    billing = Guards.regulated(
        velocity=None, budget=CostBudget(usd="0.5"), gates=Gate(policy=only_mine)
    )
    guards = Guards.batch(hops=2, loop=None, stages={"billing": billing})
    html = guards._repr_html_()
    rows = rows_of(html)

    assert "<b>hops</b>" in html and "<b>depth</b>" not in html
    assert (rows["hops"], rows["loop"]) == ("HopLimit(hops=2)", "off")
    assert rows["stage billing"] == repr(billing)
    assert repr(billing) == (
        "Guards('regulated', budget=CostBudget(usd=Decimal('0.5')), gates=Gate(policy:only_mine), "
        "velocity=off)"
    )


def test_the_decision_table_is_shown_cell_by_cell() -> None:
    html = DecisionTable()._repr_html_()

    assert html.count("<tr>") == 1 + len(FAILURE_CLASSES)
    assert html.count("<td") == len(FAILURE_CLASSES) * len(TIERS)
    assert rows_of(html)["no_progress"].startswith("loop detector ends itabortone new planreplan")
    assert "<b>" not in html


def test_a_cell_of_ones_own_stands_out_in_the_table() -> None:
    own = Cell("correct", 3, "escalate", alert=True, told="<i>mine</i>")
    html = DecisionTable({("deadlock", "batch"): own})._repr_html_()

    told = "<i>mine</i>correct ≤ 3, then escalate, alert"
    assert told in rows_of(html)["deadlock"]
    assert html.count("<b>") == 1 and "<i>" not in html


def test_an_audit_trail_names_its_sink_and_what_a_broken_one_does() -> None:
    trail = AuditTrail(JSONLSink("audit.jsonl"), "stop")
    assert repr(trail) == "AuditTrail(JSONLSink, 'stop')"


def test_a_trail_shows_the_path_the_decisions_and_the_effects_of_a_run() -> None:
    audit = AuditTrail()
    audit.record("r", "model", agent="support")
    audit.record("r", "handoff", agent="support")
    audit.record("r", "decision", decision=Decision("deny", "hop_limit", HOSTILE))
    audit.record("r", "effect", agent="billing", data={"tool": HOSTILE, "key": "1"})
    html = audit.trail("r")._repr_html_()

    assert "1 steps, 1 hops, 0 tokens" in text_of(html)
    assert "path support → billing" in text_of(html)
    assert "hop_limit deny <img" in text_of(html)
    assert Tags(html).attributes == {"style"} and "<img" not in html


def test_whatever_guards_hold_is_escaped() -> None:
    evidence = {HOSTILE: {HOSTILE: HOSTILE}}
    decision = Decision("deny", HOSTILE, HOSTILE, "unsafe_output", evidence)
    guards = Guards(stages={HOSTILE: Guards()})
    for html in (decision._repr_html_(), guards._repr_html_()):
        assert Tags(html).attributes == {"style"}
        assert "<img" not in html and "\x00" not in html


def test_an_event_of_a_guard_says_who_decided_what_and_why() -> None:
    told = Decision("deny", "hop_limit", "5 handoffs were made").to_dict()
    html = GuardEvent(agent="support", decision=told)._repr_html_()

    assert text_of(html) == "guard support deny hop_limit: 5 handoffs were made"


async def test_a_gate_names_its_checks() -> None:
    gate = Gate(policy=only_mine, invariants=[only_mine])
    names = tuple(check.name for check in (await gate.check(Subject(), "post")).checks)
    assert gate.names == names == ("policy:only_mine", "invariant:only_mine")
