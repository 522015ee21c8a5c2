"""What an exception means for whoever decides whether to try again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.errors import GraphRecursionError

from agentgraph.clock import use_clock
from agentgraph.errors import GuardStopped, ModelError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.failures import NEVER, Failure, classify
from agentgraph.testing import FakeClock
from agentgraph.testing.provider_errors import connection_error, status_error


def failed(
    status: int | None = None,
    *,
    headers: object = None,
    code: str | None = None,
    body: object = None,
    text: str = "",
) -> Exception:
    error = Exception(text)
    if status is not None:
        error.status_code = status  # type: ignore[attr-defined]
    error.response = SimpleNamespace(headers=headers)  # type: ignore[attr-defined]
    error.code, error.body = code, body  # type: ignore[attr-defined]
    return error


def caused_by(cause: BaseException) -> ModelError:
    error = ModelError("the model failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_transient(status: int) -> None:
    assert classify(failed(status)) == Failure("transient", "provider_error", None, status)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_what_would_fail_again_is_semantic(status: int) -> None:
    assert classify(failed(status)).kind == "semantic"


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_forbidden_is_policy(status: int) -> None:
    assert classify(failed(status)).kind == "policy"


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("x"), FileNotFoundError(), RuntimeError("timeout 503")]
)
def test_the_unknown_is_semantic_and_not_transient(error: Exception) -> None:
    assert classify(error) == Failure("semantic", "schema_failure")


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        BrokenPipeError(),
        type("ReadTimeout", (type("TimeoutException", (Exception,), {}),), {})(),
        type("APIConnectionError", (Exception,), {})(),
    ],
)
def test_lost_connections_and_timeouts_are_transient(error: Exception) -> None:
    assert classify(error) == Failure("transient", "provider_error")


@pytest.mark.parametrize("code", ["server_error", "rate_limit_exceeded", "overloaded_error"])
def test_an_error_that_a_stream_tells_by_its_code_alone_is_transient(code: str) -> None:
    error = type("APIError", (Exception,), {"code": None, "body": {"type": code}})()
    assert classify(error) == Failure("transient", "provider_error")


def test_the_cause_is_looked_at() -> None:
    assert classify(caused_by(status_error(429, 3))) == Failure(
        "transient", "provider_error", 3.0, 429
    )
    assert classify(caused_by(caused_by(connection_error()))).kind == "transient"
    assert classify(caused_by(ValueError())).kind == "semantic"


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert classify(one).kind == "semantic"


@pytest.mark.parametrize(
    "error",
    [
        failed(429, code="insufficient_quota"),
        failed(429, body={"type": "insufficient_quota"}),
        failed(429, body={"error": {"code": "insufficient_quota"}}),
        failed(402),
        failed(400, text="Your credit balance is too low to access the Anthropic API."),
        failed(403, code="billing_not_active"),
    ],
)
def test_no_quota_left_is_budget_and_no_rate_limit(error: Exception) -> None:
    assert classify(error).kind == "budget"
    assert classify(error).failure_class == "cost_overrun"


def test_a_quota_per_minute_is_a_rate_limit() -> None:
    assert classify(failed(429, text="Quota exceeded for requests per minute")).kind == "transient"


@pytest.mark.parametrize(
    "error",
    [
        failed(400, code="content_filter"),
        failed(400, body={"error": {"code": "content_policy_violation"}}),
        type("ContentFilterFinishReasonError", (Exception,), {})(),
    ],
)
def test_a_content_filter_is_policy(error: Exception) -> None:
    failure = classify(error)
    assert (failure.kind, failure.failure_class) == ("policy", "unsafe_output")


def test_a_recursion_limit_is_an_infinite_loop() -> None:
    assert classify(GraphRecursionError()).failure_class == "infinite_loop"


@pytest.mark.parametrize(
    ("failure_class", "kind"),
    [("cost_overrun", "budget"), ("unsafe_output", "policy"), ("deadlock", "semantic")],
)
def test_what_a_guard_stopped_is_not_tried_again(failure_class: str, kind: str) -> None:
    error = GuardStopped(Decision("abort", "g", "why", failure_class))  # type: ignore[arg-type]
    error.__cause__ = TimeoutError()
    assert classify(error) == Failure(kind, failure_class)  # type: ignore[arg-type]
    assert classify(GuardStopped("?")).kind == "policy"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:14:20 -0000"}, 60.0),
        ({"retry-after": "Tue, 14 Nov 2000 22:14:20 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, NEVER),
        ({"x-should-retry": "false", "retry-after": "1"}, NEVER),
        ({}, None),
        (None, None),
    ],
)
def test_how_long_the_server_says_to_wait(headers: object, seconds: float | None) -> None:
    with use_clock(FakeClock(1_700_000_000.0)):
        assert classify(failed(503, headers=headers)).retry_after == seconds


def test_an_aws_error_has_its_status_in_the_response() -> None:
    error = Exception()
    error.response = {"ResponseMetadata": {"HTTPStatusCode": 503}}  # type: ignore[attr-defined]
    assert classify(error).status == 503


@pytest.mark.parametrize("status", [True, "429", 200, 1006, None, 4.29])
def test_what_is_no_failing_status_is_not_taken_for_one(status: object) -> None:
    assert classify(failed(status)).status is None  # type: ignore[arg-type]


class Hostile(Exception):
    """Raises at every touch that can be overridden."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("no text")


class HostileHeaders:
    status_code = 503

    @property
    def headers(self) -> object:
        raise RuntimeError("no headers")

    def items(self) -> Iterator[object]:
        raise RuntimeError("no items")


def test_hostile_objects_do_not_make_it_raise() -> None:
    assert classify(Hostile()).kind == "semantic"
    assert classify(caused_by(Hostile())).kind == "semantic"
    error = Exception()
    error.response = HostileHeaders()  # type: ignore[attr-defined]
    assert classify(error) == Failure("transient", "provider_error", None, 503)
    assert classify(failed(503, headers=HostileHeaders())).kind == "transient"
    assert classify(failed(429, body=Hostile(), headers={"retry-after": Hostile()})).status == 429


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


@given(status=ANYTHING, headers=ANYTHING, code=ANYTHING, body=ANYTHING, wait=ANYTHING)
@settings(max_examples=150, deadline=None)
def test_nothing_makes_it_raise(
    status: object, headers: object, code: object, body: object, wait: object
) -> None:
    if isinstance(headers, dict):
        headers["retry-after"] = wait
    failure = classify(failed(status, headers=headers, code=code, body=body))  # type: ignore[arg-type]
    assert failure.status is None or 400 <= failure.status <= 599
    wait_s = failure.retry_after
    assert wait_s is None or wait_s == NEVER or (0 <= wait_s < math.inf)
