"""Gates: the order of the checks, what they leave out, and that they fail closed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.errors import GraphInterrupt
from pydantic import BaseModel

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.gates.gate import (
    CheckResult,
    Gate,
    Policy,
    Subject,
    ValidationResult,
)


class Refund(BaseModel):
    order: int
    amount: float


def says(verdict: object, name: str = "says") -> Any:
    def check(subject: Subject) -> object:
        return verdict

    check.__name__ = name
    return check


def raising(error: BaseException) -> Any:
    def check(subject: Subject) -> object:
        raise error

    return check


def gate_with(place: str, check: object) -> Gate:
    checks: Any = {place: [check]}
    return Gate(**checks)


def statuses(result: ValidationResult) -> dict[str, str]:
    return {check.name: check.status for check in result.checks}


async def test_the_checks_are_made_in_order() -> None:
    made: list[str] = []

    def noting(name: str) -> Policy:
        async def check(subject: Subject) -> bool:
            made.append(name)
            return True

        return check

    gate = Gate(
        grounding=noting("grounding"),
        invariants=[noting("first"), noting("second")],
        policy=[noting("policy")],
    )
    result = await gate.check(Subject("plan"), "post")
    assert made == ["policy", "first", "second", "grounding"]
    assert result.passed and result.failure_class == "" and result.cause == ""
    assert (result.stage, result.phase) == ("plan", "post")
    assert (await gate.check(Subject("plan"), "pre", "other")).stage == "other"


async def test_a_schema_failure_leaves_out_the_rest() -> None:
    gate = Gate(
        schema={"refund": Refund},
        policy=says(True, "may"),
        invariants=[says(True, "sane")],
        grounding=says(True, "true"),
    )
    subject = Subject("pay", tool="refund", args={"order": "secret", "amount": "x"})
    result = await gate.check(subject, "pre")
    assert statuses(result) == {
        "schema": "fail",
        "policy:may": "skipped",
        "invariant:sane": "skipped",
        "grounding:true": "skipped",
    }
    assert (result.passed, result.failure_class) == (False, "schema_failure")
    assert result.checks[0].message == "2 faults against Refund"
    assert result.checks[0].evidence.startswith("order: Input should be")
    assert "secret" not in result.model_dump_json()


async def test_a_denial_leaves_out_the_rest() -> None:
    gate = Gate(policy=[says("not yours", "mine"), says(True, "x")], invariants=[says(True, "y")])
    result = await gate.check(Subject(), "pre")
    assert list(statuses(result).values()) == ["fail", "skipped", "skipped"]
    assert (result.failure_class, result.cause) == ("unsafe_output", "policy:mine: not yours")


async def test_all_invariants_are_told_and_grounding_comes_after() -> None:
    gate = Gate(
        invariants=[says(False, "a"), says(True, "b"), raising(KeyError()), says("", "c")],
        grounding=[says("wrong", "g")],
    )
    result = await gate.check(Subject(), "post")
    assert [c.status for c in result.checks] == ["fail", "pass", "error", "fail", "fail"]
    assert [c.message for c in result.checks][0::3] == ["no reason given", "no reason given"]
    assert result.failure_class == "schema_failure"


@pytest.mark.parametrize("place", ["policy", "invariants", "grounding"])
@pytest.mark.parametrize("check", [raising(RuntimeError("secret")), says(1), says([]), says(0)])
async def test_a_check_that_raises_or_says_nonsense_does_not_pass(place: str, check: Any) -> None:
    result = await gate_with(place, check).check(Subject(), "post")
    assert not result.passed and result.checks[0].status == "error"
    assert "secret" not in result.model_dump_json()


async def test_a_schema_that_raises_does_not_pass() -> None:
    class Broken(BaseModel):
        @classmethod
        def model_validate_json(cls, *args: Any, **options: Any) -> Any:
            raise RuntimeError

    result = await Gate(Broken, policy=says(True)).check(Subject(text="{}"), "post")
    assert [c.status for c in result.checks] == ["error", "skipped"]


@pytest.mark.parametrize(
    "error", [GraphInterrupt(), asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()]
)
@pytest.mark.parametrize("place", ["policy", "invariants", "grounding"])
async def test_a_pause_and_a_cancellation_are_no_verdict(place: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        await gate_with(place, raising(error)).check(Subject(), "pre")


@pytest.mark.parametrize(
    ("schema", "subject", "status"),
    [
        (Refund, Subject(text='{"order": 1, "amount": 2}'), "pass"),
        (Refund, Subject(text='{"order": 1}'), "fail"),
        (Refund, Subject(text="not JSON"), "fail"),
        (Refund, Subject(tool="refund", args={}), "skipped"),
        ({"refund": Refund}, Subject(tool="refund", args={"order": 1, "amount": 2}), "pass"),
        ({"refund": Refund}, Subject(tool="refund"), "fail"),
        ({"refund": Refund}, Subject(tool="other", args={}), "skipped"),
        ({"refund": Refund}, Subject(text="words"), "skipped"),
    ],
)
async def test_what_a_schema_is_held_against(schema: Any, subject: Subject, status: str) -> None:
    result = await Gate(schema).check(subject, "pre")
    assert result.checks[0].status == status
    assert result.passed == (status != "fail")


@pytest.mark.parametrize(
    "arguments",
    [
        {"schema": Refund(order=1, amount=2)},
        {"schema": {"type": "objekt"}},
        {"schema": {1: Refund}},
        {"policy": "allow"},
        {"policy": [says(True), None]},
        {"invariants": [3]},
        {"grounding": 3},
    ],
)
def test_what_cannot_check_is_a_fault(arguments: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Gate"):
        Gate(**arguments)


@given(st.text(max_size=700), st.text(max_size=700))
@settings(max_examples=60, deadline=None)
def test_a_result_survives_json_and_stays_small(message: str, evidence: str) -> None:
    check = CheckResult(name="p", status="fail", message=message, evidence=evidence)
    result = ValidationResult(stage="s", phase="pre", passed=False, checks=(check,))
    assert ValidationResult.model_validate_json(result.model_dump_json()) == result
    assert len(check.message) <= 500 and len(check.evidence) <= 500


def test_what_is_no_unicode_can_be_written() -> None:
    assert "?" in CheckResult(name="p", status="fail", message="a\ud800").model_dump_json()


async def test_of_a_call_only_schema_and_policy_are_asked() -> None:
    gate = Gate(
        policy=says(True, "mine"), invariants=[says(False, "x")], grounding=says(False, "y")
    )
    result = await gate.check_call(Subject("desk", tool="pay"), "support/desk")
    assert (result.passed, result.phase, result.stage) == (True, "pre", "support/desk")
    assert [check.name for check in result.checks] == ["policy:mine"]
    assert not (await gate.check(Subject("desk", text="done"), "post")).passed
