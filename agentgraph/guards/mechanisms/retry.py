"""Whether and when a failed model call is tried again: the only layer that retries.

`RetryBudget` limits how many of all calls may be retries, `Backoff` how often one call is tried and
how long the pauses between its attempts are.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from decimal import Decimal
from threading import Lock
from typing import Self

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.settings import (
    is_finite,
    is_share,
    is_whole,
    seconds_faults,
)

# One retry, in whole billionths: ten deposits of 0.1 have to make exactly one.
_TOKEN = 10**9
_MAX_DEPOSITS = 64
_MAX_KEYS = 256
_LARGEST_EXPONENT = 1000


@dataclass(eq=False, slots=True)
class RetryBudget(BuiltInGuard):
    """Let retries be a small part of the traffic, for all the runs that share a provider.

    Each first attempt deposits `ratio` of a retry, each retry withdraws 1. The `reserve` exists
    from the start and is given once: after that, deposits fill it up first. So, over its whole
    life, retries never exceed `reserve + ratio * first attempts`. The reserve does not expire;
    deposits beyond it expire after `ttl_s`. The two together never exceed `cap`.

    Under `Guards` each model at a provider has a budget of its own.
    """

    setting = "retry"
    summary = "RetryBudget(): how many of all calls may be repetitions"
    short_form = "which part of all calls may be repetitions, from 0 to 1"

    ratio: float = 0.1
    reserve: int = 3
    cap: float = 10.0
    ttl_s: float = 60.0
    _deposit: int = field(init=False, repr=False)
    _limit: int = field(init=False, repr=False)
    _full_reserve: int = field(init=False, repr=False)
    _reserve_left: int = field(init=False, repr=False)
    _deposits: deque[tuple[float, int]] = field(init=False, repr=False, default_factory=deque)
    """The deposits beyond the reserve, each with its instant, the oldest first."""
    _deposits_sum: int = field(init=False, repr=False, default=0)
    _lock: Lock = field(init=False, repr=False, default_factory=Lock)
    _by_key: OrderedDict[tuple[str, str], RetryBudget] = field(
        init=False, repr=False, default_factory=OrderedDict
    )

    def __post_init__(self) -> None:
        if faults := self._faults():
            raise ConfigurationError(faults)
        self._deposit = _tokens(self.ratio)
        self._limit = _tokens(self.cap)
        self._full_reserve = self._reserve_left = _tokens(self.reserve)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the budget in which each first attempt earns this part of a retry."""
        return cls(value) if is_share(value) else None

    def tighter(self, outer: Self) -> Self:
        """Return this budget where nothing of it is larger than in the outer one, else that."""
        names = ("ratio", "reserve", "cap")
        is_stricter = all(getattr(self, name) <= getattr(outer, name) for name in names)
        return self if is_stricter else outer

    def for_key(self, key: str, provider: str = "") -> RetryBudget:
        """Return the budget of a model at a provider, the same one each time, set like this one."""
        place = provider, key
        with self._lock:
            if place not in self._by_key:
                if len(self._by_key) >= _MAX_KEYS:
                    self._by_key.popitem(last=False)
                self._by_key[place] = RetryBudget(self.ratio, self.reserve, self.cap, self.ttl_s)
            self._by_key.move_to_end(place)
            return self._by_key[place]

    def first_attempt(self) -> None:
        """Deposit for a call that is not a retry."""
        now = clock().monotonic()
        with self._lock:
            self._expire(now)
            refill = min(self._deposit, self._full_reserve - self._reserve_left)
            self._reserve_left += refill
            if refill < self._deposit:
                self._earn(now, self._deposit - refill)

    def ask(self) -> Decision:
        """Withdraw one retry, or deny it at once: nothing waits for a deposit."""
        now = clock().monotonic()
        with self._lock:
            self._expire(now)
            is_covered = self._balance() >= _TOKEN
            if is_covered:
                self._reserve_left -= self._take(_TOKEN)
            evidence = {"left": self._balance() / _TOKEN, "ratio": self.ratio, "cap": self.cap}
        if is_covered:
            return Decision("allow", "retry_budget", evidence=evidence)
        cause = (
            "the retry budget is spent: each first attempt earns "
            f"{self.ratio:g} of a retry, and {self.reserve} were in reserve"
        )
        return Decision("deny", "retry_budget", cause, "provider_error", evidence)

    def _balance(self) -> int:
        return self._reserve_left + self._deposits_sum

    def _earn(self, now: float, amount: int) -> None:
        deposits = self._deposits
        self._deposits_sum += amount
        # Deposits close to each other are joined and expire with the first of them: with a small
        # ratio there would be millions in the deque.
        if deposits and now - deposits[-1][0] < self.ttl_s / _MAX_DEPOSITS:
            since, before = deposits[-1]
            deposits[-1] = (since, before + amount)
        else:
            deposits.append((now, amount))
        if (beyond := self._reserve_left + self._deposits_sum - self._limit) > 0:
            self._take(beyond)

    def _expire(self, now: float) -> None:
        while self._deposits and now - self._deposits[0][0] >= self.ttl_s:
            self._deposits_sum -= self._deposits.popleft()[1]

    def _take(self, amount: int) -> int:
        """Take from the deposits, the oldest first, and return what they do not cover."""
        while amount > 0 and self._deposits:
            since, available = self._deposits.popleft()
            part = min(amount, available)
            if available > part:
                self._deposits.appendleft((since, available - part))
            self._deposits_sum -= part
            amount -= part
        return amount

    def _faults(self) -> list[str]:
        faults = []
        if not (is_finite(self.ratio) and 0 <= self.ratio <= 1):
            faults.append(f"RetryBudget(ratio={self.ratio!r}): give a number from 0 to 1")
        if not is_whole(self.reserve):
            faults.append(f"RetryBudget(reserve={self.reserve!r}): give a whole number, 0 or more")
        least = self.reserve if is_whole(self.reserve) else 0
        if not (is_finite(self.cap) and self.cap >= least):
            faults.append(f"RetryBudget(cap={self.cap!r}): give {least} or more, as the reserve")
        return [*faults, *seconds_faults(self, ("ttl_s",))]


@dataclass(frozen=True, slots=True)
class Backoff(BuiltInGuard):
    """How often a call is tried, and how long the pause before a retry is.

    The pause is random, up to a bound that doubles from `base_s` to `cap_s`: clients that failed
    together must not come back together. It is no shorter than the provider's Retry-After.
    """

    setting = "backoff"
    summary = "Backoff(): how often a call is tried, and how long it waits before"
    short_form = "how often a call is tried, 1 or more"

    base_s: float = 0.5
    cap_s: float = 20.0
    attempts: int = 3

    def __post_init__(self) -> None:
        faults = []
        if not (is_finite(self.base_s) and self.base_s >= 0):
            faults.append(f"Backoff(base_s={self.base_s!r}): give 0 seconds or more")
        if not (is_finite(self.cap_s) and self.cap_s >= 0):
            faults.append(f"Backoff(cap_s={self.cap_s!r}): give 0 seconds or more")
        if not is_whole(self.attempts, 1):
            faults.append(f"Backoff(attempts={self.attempts!r}): give a whole number, 1 or more")
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the backoff with so many attempts."""
        return cls(attempts=value) if is_whole(value, 1) else None

    def tighter(self, outer: Self) -> Self:
        """Return the backoff with the longer pauses and the fewer attempts."""
        return replace(
            self,
            base_s=max(self.base_s, outer.base_s),
            cap_s=max(self.cap_s, outer.cap_s),
            attempts=min(self.attempts, outer.attempts),
        )

    def pause(self, attempt: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after this attempt, counted from 0; infinity: do not retry.

        A `retry_after` that is not finite, or below 0, means that the provider wants no retry.
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
        """Decide whether another attempt follows the failed one, which is counted from 0.

        After the pause, `min_useful_s` of the `remaining_s` before the deadline must be left. The
        pause is in the evidence, as `pause_s`.
        """
        evidence: dict[str, object] = {
            "attempt": attempt,
            "attempts": self.attempts,
            "pause_s": None,
            "remaining_s": remaining_s if is_finite(remaining_s) else None,
        }
        if attempt + 1 >= self.attempts:
            return _denial(f"all {self.attempts} attempts are used up", evidence)
        pause = self.pause(attempt, retry_after)
        if math.isinf(pause):
            return _denial("the provider asks for no retry", evidence)
        evidence["pause_s"] = pause
        # Written so that a NaN, for which every comparison is false, denies.
        if remaining_s is None or pause + min_useful_s < remaining_s:
            return Decision("allow", "backoff", evidence=evidence)
        cause = f"a pause of {pause:.3g} s would pass the deadline in {remaining_s:.3g} s"
        return _denial(cause, evidence)


def _tokens(retries: float) -> int:
    # By decimal digits, rounded down: a product of floats may be a little too much, or infinite.
    return int(Decimal(str(retries)) * _TOKEN)


def _denial(cause: str, evidence: dict[str, object]) -> Decision:
    return Decision("deny", "backoff", cause, "provider_error", evidence)
