"""Asking a human: when, for how long, and what the answer may be."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from langgraph.errors import GraphInterrupt

from agentgraph.clock import use_clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.escalation import (
    VERBS,
    Answer,
    Escalation,
    Request,
    Verb,
    late,
    response_schema,
)
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.testing import FakeClock

SUBJECT = Subject("plan", text="an answer")


@pytest.mark.parametrize("score", [0.7, 0.70001, 1, 1.0, Fraction(7, 10)])
def test_a_score_that_reaches_the_threshold_passes(score: object) -> None:
    assert Escalation(0.7).judge(score).allows


@pytest.mark.parametrize("score", [0.69999, 0, 0.0])
def test_a_lower_score_is_escalated(score: float) -> None:
    decision = Escalation(0.7).judge(score)
    assert decision.action == "escalate"
    assert decision.cause == f"the critic gave {float(score)}; 0.7 is needed"


@pytest.mark.parametrize(
    "score",
    [None, float("nan"), float("inf"), -0.1, 1.1, True, False, "0.9", [0.9], Decimal("0.9"), 1j],
)
def test_what_is_no_score_is_escalated_even_at_threshold_zero(score: object) -> None:
    decision = Escalation(0.0).judge(score)
    assert decision.action == "escalate"
    assert "no number from 0 to 1" in decision.cause
    assert json.dumps(decision.to_dict(), allow_nan=False)


@given(st.floats(0, 1), st.floats())
@settings(max_examples=80, deadline=None)
def test_only_scores_from_the_threshold_to_one_pass(threshold: float, score: float) -> None:
    assert Escalation(threshold).judge(score).allows == (threshold <= score <= 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"threshold": -0.1},
        {"threshold": 1.1},
        {"threshold": True},
        {"threshold": float("nan")},
        {"threshold": None},
        {"critic": 0.5},
        {"ttl_s": 0},
        {"ttl_s": float("inf")},
        {"ttl_s": float("nan")},
        {"ttl_s": True},
        {"ttl_s": "1h"},
    ],
)
def test_wrong_values_are_faults(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Escalation"):
        Escalation(**arguments)


async def test_a_critic_may_be_a_function_or_a_coroutine() -> None:
    async def sure(subject: Subject) -> float:
        return 0.9 if subject is SUBJECT else 0

    assert (await Escalation(0.8, sure).score(SUBJECT)).allows
    assert (await Escalation(0.8, lambda _: 0.1).score(SUBJECT)).action == "escalate"
    assert (await Escalation(0.8).score(SUBJECT)).allows


async def test_a_critic_that_raises_is_no_pass() -> None:
    def broken(subject: Subject) -> float:
        raise RuntimeError("secret")

    decision = await Escalation(0.0, broken).score(SUBJECT)
    assert (decision.action, decision.cause) == ("escalate", "the critic raised RuntimeError")


@pytest.mark.parametrize("error", [GraphInterrupt(), asyncio.CancelledError()])
async def test_a_pause_and_a_cancellation_are_no_score(error: BaseException) -> None:
    def pausing(subject: Subject) -> float:
        raise error

    with pytest.raises(type(error)):
        await Escalation(0.5, pausing).score(SUBJECT)


def test_a_request_expires_after_its_time_and_is_then_denied() -> None:
    clock = FakeClock(1_000.0)
    with use_clock(clock):
        decision = Decision("escalate", "confidence", "not sure")
        request = Escalation(ttl_s=60).ask(decision, "plan", allowed=["approve"], payload={"a": 1})
        clock.advance(60)
        assert late(request).allows
        clock.advance(0.001)
        denied = late(Request.model_validate_json(request.model_dump_json()))
        assert (denied.action, denied.guard) == ("deny", "escalation_timeout")
        assert denied.cause == "nobody decided on plan within 60 s: it counts as denied"
        assert late(Escalation(ttl_s=None).ask(decision, "plan")).allows
    assert (request.asked_at, request.expires_at) == (1_000.0, 1_060.0)
    assert (request.guard, request.cause, request.allowed) == (
        "confidence",
        "not sure",
        ("approve",),
    )


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        ("approve", Answer(type="approve")),
        (True, Answer(type="approve")),
        (False, Answer(type="reject")),
        ("reject", Answer(type="reject")),
        ({"type": "approve", "reviewer": "ann"}, Answer(type="approve", reviewer="ann")),
        ({"type": "edit", "edited": {"a": 1}}, Answer(type="edit", edited={"a": 1})),
        ({"type": "edit", "edited": "text"}, Answer(type="edit", edited="text")),
        (
            {"type": "edit", "edited_action": {"name": "f", "args": {}}},
            Answer(type="edit", edited={"name": "f", "args": {}}),
        ),
        ({"type": "reject", "message": "no"}, Answer(type="reject", message="no")),
        ({"type": "reject", "message": None}, Answer(type="reject")),
        ({"type": "respond", "message": "42"}, Answer(type="respond", message="42")),
        ({"decisions": [{"type": "approve"}]}, Answer(type="approve")),
        (
            {"decisions": ["reject"], "reviewer": "ann"},
            Answer(type="reject", reviewer="ann"),
        ),
        (Answer(type="approve", reviewer="ann"), Answer(type="approve", reviewer="ann")),
    ],
)
def test_the_forms_of_an_answer(raw: object, answer: Answer) -> None:
    assert Answer.read(raw) == answer
    assert Answer.model_validate_json(answer.model_dump_json()) == answer


@pytest.mark.parametrize(
    "raw",
    [
        None,
        1,
        0,
        "",
        "yes",
        "edit",
        "respond",
        [],
        ["approve"],
        {},
        {"type": "accept"},
        {"type": ["approve"]},
        {"type": "approve", "edited": {"a": 1}},
        {"type": "edit"},
        {"type": "edit", "edited": None},
        {"type": "edit", "edited": ""},
        {"type": "edit", "edited": 3},
        {"type": "edit", "edited": {1: 2}},
        {"type": "edit", "edited": {"a": object()}},
        {"type": "edit", "edited": "a", "edited_action": {"name": "f", "args": {}}},
        {"type": "respond"},
        {"type": "respond", "message": ""},
        {"type": "reject", "message": 3},
        {"type": "approve", "reviewer": 3},
        {"decisions": []},
        {"decisions": ["approve", "reject"]},
        {"decisions": [{"decisions": ["approve"]}]},
        {"decisions": ["approve"], "type": "reject", "message": "no"},
    ],
)
def test_what_is_no_answer_says_what_is_allowed(raw: object) -> None:
    with pytest.raises(ValueError, match='give "approve" or') as caught:
        Answer.read(raw)
    assert type(caught.value) is ValueError


def test_what_is_not_allowed_is_refused() -> None:
    for raw in (True, "approve", {"type": "edit", "edited": "x"}):
        with pytest.raises(ValueError, match=r'^this is no .*: give \{"type": "reject"'):
            Answer.read(raw, ["reject"])
    assert Answer.read(False, ["reject"]).type == "reject"


TEXTS = st.sampled_from(["", "approve", "text", "reject"])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([*VERBS, "accept"]),
        "edited": TEXTS | st.just({"a": 1}) | st.integers(),
        "edited_action": st.just({"name": "f", "args": {}}),
        "message": TEXTS | st.integers(),
        "reviewer": TEXTS,
        "other": TEXTS,
    },
)
ONE = st.booleans() | st.sampled_from(VERBS) | FIELDS | st.integers(0, 1) | st.none()
WHOLE = st.fixed_dictionaries(
    {"decisions": st.lists(ONE, max_size=2)}, optional={"reviewer": TEXTS, "type": TEXTS}
)


@given(raw=ONE | WHOLE, allowed=st.lists(st.sampled_from(VERBS), unique=True))
@settings(max_examples=400, deadline=None)
def test_the_schema_of_answers_takes_what_is_read(raw: object, allowed: list[Verb]) -> None:
    schema = json.loads(json.dumps(response_schema(allowed)))
    Draft202012Validator.check_schema(schema)
    try:
        Answer.read(raw, allowed)
    except ValueError:
        assert not Draft202012Validator(schema).is_valid(raw)
    else:
        assert Draft202012Validator(schema).is_valid(raw)


def test_a_schema_of_what_nobody_knows_raises() -> None:
    with pytest.raises(ValueError, match="cannot be allowed"):
        response_schema(["accept"])  # type: ignore[list-item]
