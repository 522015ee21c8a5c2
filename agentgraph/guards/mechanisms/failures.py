"""What kind of failure an exception is, whichever provider's client raised it.

Exceptions are classified by the names of their classes, by attributes and by the codes in a
response, so that no client has to be installed or imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Literal, TypeVar

from agentgraph.clock import clock
from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import FAILURE_CLASSES, Decision, FailureClass

FailureKind = Literal["transient", "semantic", "policy", "budget"]

NEVER: Final = -math.inf
"""The `retry_after` of a server that says not to retry."""

_LONGEST_CHAIN = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """What an exception means for the decision whether to try again.

    Only a "transient" failure is worth a retry. `retry_after` is in seconds.
    """

    kind: FailureKind
    failure_class: FailureClass
    retry_after: float | None = None
    status: int | None = None


def classify(error: BaseException) -> Failure:
    """Return the failure that the first recognized exception in a chain of causes stands for.

    An unknown exception is "semantic": a retry would repeat a mistake.
    """
    for link in _chain(error):
        if failure := _attempt(_failure_of, link):
            return failure
    return Failure("semantic", "schema_failure")


def is_control_flow(error: BaseException) -> bool:
    """Tell whether LangGraph pauses or leaves a node by this error: no failure, never caught.

    The class is recognized by its name, as the mechanisms do not import LangGraph.
    """
    return any(cls.__name__ == "GraphBubbleUp" for cls in type(error).__mro__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: object = error
    for _ in range(_LONGEST_CHAIN):
        if not _attempt(lambda value: isinstance(value, BaseException), link):
            return
        yield link  # type: ignore[misc]
        link = _attribute(link, "__cause__")


_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_REFUSED_STATUS = frozenset({401, 403})
_NO_CREDIT_STATUS = 402

_QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "credit_balance_too_low",
        "insufficient_credits",
        "insufficient_balance",
        "payment_required",
    }
)
# Anthropic gives no code of its own for missing credit. "Quota exceeded" is not in the list: Google
# says so at every rate limit.
_QUOTA_PHRASES = ("credit balance is too low", "insufficient_quota")
_FILTER_CODES = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "moderation_blocked",
        "responsibleaipolicyviolation",
    }
)
_FILTER_NAMES = frozenset(
    {
        "ContentFilterFinishReasonError",
        "ContentPolicyViolationError",
        "BlockedPromptException",
        "StopCandidateException",
    }
)
_REFUSED_NAMES = frozenset({"AuthenticationError", "PermissionDeniedError", "PermissionDenied"})
_TRANSIENT_CODES = frozenset(
    {
        "server_error",
        "internal_server_error",
        "rate_limit_exceeded",
        "rate_limit_error",
        "overloaded_error",
        "service_unavailable",
    }
)
"""Codes of an error event within a stream, which has no status."""
_TRANSIENT_NAMES = frozenset(
    {
        "TimeoutError",
        "ConnectionError",
        "gaierror",
        "APIConnectionError",
        "APITimeoutError",
        "RateLimitError",
        "InternalServerError",
        "ServiceUnavailableError",
        "ServiceUnavailable",
        "OverloadedError",
        "TooManyRequests",
        "DeadlineExceeded",
        "ThrottlingException",
        "TimeoutException",
        "NetworkError",
        "RemoteProtocolError",
        "ClientConnectionError",
        "ServerTimeoutError",
        "NodeTimeoutError",
        "IncompleteRead",
    }
)
_STATUS_ATTRIBUTES = ("status_code", "status", "http_status", "code")


def _failure_of(error: BaseException) -> Failure | None:
    if isinstance(error, GuardStopped):
        return _failure_of_guard(error)
    names = {cls.__name__ for cls in type(error).__mro__}
    codes = _attempt(_codes, error) or set()
    status = _status(error)
    wait = _attempt(_retry_after, error)
    if status == _NO_CREDIT_STATUS or codes & _QUOTA_CODES or _attempt(_says_no_credit, error):
        return Failure("budget", "cost_overrun", wait, status)
    if codes & _FILTER_CODES or names & _FILTER_NAMES:
        return Failure("policy", "unsafe_output", wait, status)
    if status is not None:
        return _by_status(status, wait)
    if "GraphRecursionError" in names:
        return Failure("semantic", "infinite_loop", wait)
    if names & _REFUSED_NAMES:
        return Failure("policy", "provider_error", wait)
    if names & _TRANSIENT_NAMES or codes & _TRANSIENT_CODES:
        return Failure("transient", "provider_error", wait)
    return None


def _failure_of_guard(error: GuardStopped) -> Failure:
    decision = error.decision
    failure = decision.failure_class if isinstance(decision, Decision) else ""
    if failure not in FAILURE_CLASSES:
        return Failure("policy", "unsafe_output")
    kinds: Mapping[str, FailureKind] = {"cost_overrun": "budget", "unsafe_output": "policy"}
    return Failure(kinds.get(failure, "semantic"), failure)


def _by_status(status: int, wait: float | None) -> Failure:
    if status in _TRANSIENT_STATUS or status >= 500:
        return Failure("transient", "provider_error", wait, status)
    if status in _REFUSED_STATUS:
        return Failure("policy", "provider_error", wait, status)
    return Failure("semantic", "schema_failure", wait, status)


def _status(error: BaseException) -> int | None:
    response = _attribute(error, "response")
    candidates = [_attribute(error, name) for name in _STATUS_ATTRIBUTES]
    candidates += [_attribute(response, "status_code"), _attribute(response, "status")]
    candidates.append(_attempt(_aws_status, response))
    statuses = (_attempt(_as_status, candidate) for candidate in candidates)
    return next((status for status in statuses if status), None)


def _as_status(value: object) -> int | None:
    is_status = isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599
    return int(value) if is_status else None  # type: ignore[call-overload]


def _aws_status(response: object) -> object:
    return response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(response, dict) else None


def _codes(error: BaseException) -> set[str]:
    body = _attribute(error, "body")
    inner_error = body.get("error") if isinstance(body, Mapping) else None
    codes = [_attribute(error, "code"), _attribute(error, "type")]
    for part in (body, inner_error):
        if isinstance(part, Mapping):
            codes += [part.get("code"), part.get("type")]
    return {code.lower() for code in codes if isinstance(code, str)}


def _says_no_credit(error: BaseException) -> bool:
    text = str(error).lower()
    return any(phrase in text for phrase in _QUOTA_PHRASES)


def _retry_after(error: BaseException) -> float | None:
    """Return the seconds to wait at least, `NEVER`, or None when the server does not say."""
    headers = _attribute(_attribute(error, "response"), "headers")
    items: Callable[[], Iterator[tuple[object, object]]] | None = _attribute(headers, "items")  # type: ignore[assignment]
    if items is None:
        return None
    values = {str(name).lower(): str(value).strip() for name, value in items()}
    if values.get("x-should-retry", "").lower() == "false":
        return NEVER
    for header, per_second in (("retry-after-ms", 1_000), ("retry-after", 1)):
        seconds = _attempt(float, values.get(header, ""))
        if seconds is not None and not math.isnan(seconds):
            return _usable_wait(seconds / per_second)
    return _attempt(_until, values.get("retry-after", ""))


def _usable_wait(seconds: float) -> float | None:
    # An infinite wait says never; a negative one says nothing.
    if math.isinf(seconds):
        return NEVER
    return seconds if seconds >= 0 else None


def _until(date: str) -> float:
    instant = parsedate_to_datetime(date)
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return max(0.0, instant.timestamp() - clock().wall())


def _attribute(value: object, name: str) -> object:
    """Return an attribute of a client's object, None where its property raises."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


Source = TypeVar("Source")
Result = TypeVar("Result")


def _attempt(read: Callable[[Source], Result], value: Source) -> Result | None:
    """Return what `read` finds in an object of a client; None where it raises: properties may."""
    try:
        return read(value)
    except Exception:
        return None
