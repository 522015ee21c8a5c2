"""Whether a failed call is tried again, and when: the only layer that retries."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Lock

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.deadlines import is_finite

# Tokens are counted in whole billionths: ten deposits of 0.1 have to make one retry.
_TOKEN = 10**9
_SLICES = 64
_LARGEST_EXPONENT = 1000


@dataclass(eq=False, slots=True)
class RetryBudget:
    """Let retries be a small part of the traffic, for all the runs that share a provider.

    Each first attempt deposits `ratio`, each retry withdraws 1. The `reserve` is there from the
    start and is given once: afterwards deposits refill it before anything else. So, over its whole
    life, retries never exceed `reserve + ratio * first attempts`. The reserve does not expire; what
    is deposited beyond it does after `ttl_s`. The two together never exceed `cap`.
    """

    ratio: float = 0.1
    reserve: int = 3
    cap: float = 10.0
    ttl_s: float = 60.0
    _deposit: int = field(init=False, repr=False)
    _limit: int = field(init=False, repr=False)
    _full: int = field(init=False, repr=False)
    _reserved: int = field(init=False, repr=False)
    _earned: deque[tuple[float, int]] = field(init=False, repr=False, default_factory=deque)
    _saved: int = field(init=False, repr=False, default=0)
    """What was earned and is there still."""
    _lock: Lock = field(init=False, repr=False, default_factory=Lock)

    def __post_init__(self) -> None:
        if faults := self._faults():
            raise ConfigurationError(faults)
        self._deposit = _tokens(self.ratio)
        self._limit = _tokens(self.cap)
        self._full = self._reserved = _tokens(self.reserve)

    def first_attempt(self) -> None:
        """Deposit for a call that is not a retry."""
        now = clock().monotonic()
        with self._lock:
            self._expire(now)
            refill = min(self._deposit, self._full - self._reserved)
            self._reserved += refill
            if refill < self._deposit:
                self._earn(now, self._deposit - refill)

    def ask(self) -> Decision:
        """Withdraw one retry, or deny it at once: nothing waits for a deposit."""
        now = clock().monotonic()
        with self._lock:
            self._expire(now)
            allowed = self._balance() >= _TOKEN
            if allowed:
                self._reserved -= self._take(_TOKEN)
            evidence = {"left": self._balance() / _TOKEN, "ratio": self.ratio, "cap": self.cap}
        if allowed:
            return Decision("allow", "retry_budget", evidence=evidence)
        cause = (
            "the retry budget is spent: each first attempt earns "
            f"{self.ratio:g} of a retry, and {self.reserve} were in reserve"
        )
        return Decision("deny", "retry_budget", cause, "provider_error", evidence)

    def _balance(self) -> int:
        return self._reserved + self._saved

    def _earn(self, now: float, amount: int) -> None:
        earned = self._earned
        self._saved += amount
        # Deposits of one slice expire with its first, or a small ratio would keep millions.
        if earned and now - earned[-1][0] < self.ttl_s / _SLICES:
            since, before = earned[-1]
            earned[-1] = (since, before + amount)
        else:
            earned.append((now, amount))
        if (beyond := self._reserved + self._saved - self._limit) > 0:
            self._take(beyond)

    def _expire(self, now: float) -> None:
        while self._earned and now - self._earned[0][0] >= self.ttl_s:
            self._saved -= self._earned.popleft()[1]

    def _take(self, amount: int) -> int:
        """Take from what expires, the oldest first, and return what is still wanting."""
        while amount > 0 and self._earned:
            since, available = self._earned.popleft()
            taken = min(amount, available)
            if available > taken:
                self._earned.appendleft((since, available - taken))
            self._saved -= taken
            amount -= taken
        return amount

    def _faults(self) -> list[str]:
        faults = []
        if not (is_finite(self.ratio) and 0 <= self.ratio <= 1):
            faults.append(f"RetryBudget(ratio={self.ratio!r}): give a number from 0 to 1")
        if not _is_whole(self.reserve, least=0):
            faults.append(f"RetryBudget(reserve={self.reserve!r}): give a whole number, 0 or more")
        least = self.reserve if _is_whole(self.reserve, least=0) else 0
        if not (is_finite(self.cap) and self.cap >= least):
            faults.append(f"RetryBudget(cap={self.cap!r}): give {least} or more, as the reserve")
        if not (is_finite(self.ttl_s) and self.ttl_s > 0):
            faults.append(f"RetryBudget(ttl_s={self.ttl_s!r}): give seconds above 0")
        return faults


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pause before a retry: anything up to a bound that doubles, and no less than was asked for."""

    base_s: float = 0.5
    cap_s: float = 20.0
    attempts: int = 3

    def __post_init__(self) -> None:
        faults = []
        if not (is_finite(self.base_s) and self.base_s >= 0):
            faults.append(f"Backoff(base_s={self.base_s!r}): give 0 seconds or more")
        if not (is_finite(self.cap_s) and self.cap_s >= 0):
            faults.append(f"Backoff(cap_s={self.cap_s!r}): give 0 seconds or more")
        if not _is_whole(self.attempts, least=1):
            faults.append(f"Backoff(attempts={self.attempts!r}): give a whole number, 1 or more")
        if faults:
            raise ConfigurationError(faults)

    def pause(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after this attempt, counted from 0; infinity is never.

        A provider that names no number, or one below 0, wants no retry.
        """
        if retry_after is not None and not (is_finite(retry_after) and retry_after >= 0):
            return math.inf
        exponent = min(max(attempt, 0), _LARGEST_EXPONENT)
        jitter = clock().random() * min(self.cap_s, self.base_s * 2.0**exponent)
        return max(jitter, float(retry_after or 0))

    def ask(
        self,
        attempt: int,
        *,
        retry_after: float | None = None,
        remaining_s: float | None = None,
        min_useful_s: float = 1.0,
    ) -> Decision:
        """Decide whether the attempt that failed, counted from 0, is followed by another."""
        evidence: dict[str, object] = {
            "attempt": attempt,
            "attempts": self.attempts,
            "pause_s": None,
            "remaining_s": remaining_s if is_finite(remaining_s) else None,
        }
        if attempt + 1 >= self.attempts:
            return _denied(f"all {self.attempts} attempts are used up", evidence)
        pause = self.pause(attempt, retry_after)
        if math.isinf(pause):
            return _denied("the provider asks for no retry", evidence)
        evidence["pause_s"] = pause
        # In this sense and not its opposite: a NaN must not let a retry pass.
        if remaining_s is None or pause + min_useful_s < remaining_s:
            return Decision("allow", "backoff", evidence=evidence)
        cause = f"a pause of {pause:.3g} s would pass the deadline in {remaining_s:.3g} s"
        return _denied(cause, evidence)


def _tokens(retries: float) -> int:
    # By way of the digits and rounded down: a product of floats may be too much, or infinite.
    return int(Decimal(str(retries)) * _TOKEN)


def _denied(cause: str, evidence: dict[str, object]) -> Decision:
    return Decision("deny", "backoff", cause, "provider_error", evidence)


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
