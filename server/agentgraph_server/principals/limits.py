"""Limits of each principal: requests and tokens in a minute, and runs at once.

They count in this process alone: of two servers on one store each allows as much. Each check costs
the same however many principals there are, and those that are at rest are forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from agentgraph import AgentGraphError
from agentgraph.clock import clock
from agentgraph.remote import Principal

MOST_REMEMBERED = 10_000
"""How many principals have their own account of the last minute: beyond that the one whose last
request is the longest ago begins anew."""
_RETRY_RUN_S = 1
_MINUTE_S = 60.0


class LimitReached(AgentGraphError):
    """The principal has asked for more than it may; `retry_after_s` is when it may again."""

    code = "limit_reached"

    def __init__(self, text: str, retry_after_s: int) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Bucket:
    """What is left of an allowance that grows back evenly; it may be overdrawn."""

    amount: float
    at: float


class Allowances:
    """So many of something in a minute, for each principal."""

    def __init__(self, per_minute: int | None, label: str) -> None:
        self._most = per_minute
        self._label = label
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def take(self, principal: Principal, count: int) -> None:
        """Take from an allowance; it may be overdrawn, as nobody knows what a run costs before."""
        if self._most is not None:
            self._bucket_of(principal, self._most).amount -= count

    def check(self, principal: Principal, count: int) -> None:
        """Raise `LimitReached` unless so much is left."""
        if self._most is None:
            return
        shortfall = count - self._bucket_of(principal, self._most).amount
        if shortfall > 0:
            wait_s = max(1, math.ceil(shortfall * _MINUTE_S / self._most))
            text = f"{principal.name!r} may have {self._most:,} {self._label} in a minute"
            raise LimitReached(f"{text}: try again in {wait_s} s", wait_s)

    def _bucket_of(self, principal: Principal, most: int) -> _Bucket:
        """Return an allowance as it is now."""
        now, key = clock().monotonic(), (principal.tenant, principal.name)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MOST_REMEMBERED:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = _Bucket(most, now)
        else:
            self._buckets.move_to_end(key)
            growth = (now - bucket.at) * most / _MINUTE_S
            bucket.amount, bucket.at = min(most, bucket.amount + growth), now
        return bucket


class Limits:
    """What each principal may do at once, and in a minute; None is no limit."""

    def __init__(
        self,
        *,
        runs_at_once: int | None = None,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> None:
        self._most_runs = runs_at_once
        self._runs: dict[tuple[str, str], int] = {}
        """The runs under way of those who have any."""
        self._requests = Allowances(requests_per_minute, "requests")
        self._tokens = Allowances(tokens_per_minute, "tokens")
        self.watches_runs = runs_at_once is not None or tokens_per_minute is not None
        """Whether the end of a run, and what it has used, matters."""

    def count_request(self, principal: Principal) -> None:
        """Count a request; raise `LimitReached` if it is one too many."""
        self._requests.check(principal, 1)
        self._requests.take(principal, 1)

    def begin_run(self, principal: Principal) -> None:
        """Count a run that begins; raise `LimitReached` if it is one too many."""
        self._tokens.check(principal, 1)
        key = (principal.tenant, principal.name)
        runs = self._runs.get(key, 0)
        if self._most_runs is not None and runs >= self._most_runs:
            text = f"{principal.name!r} may have {self._most_runs} runs at once: one has to end"
            raise LimitReached(text, _RETRY_RUN_S)
        self._runs[key] = runs + 1

    def end_run(self, principal: Principal, tokens: int = 0) -> None:
        """Count a run that has ended, or waits for a human, and what it has used."""
        key = (principal.tenant, principal.name)
        runs = self._runs.pop(key) - 1
        if runs > 0:
            self._runs[key] = runs
        self._tokens.take(principal, tokens)
