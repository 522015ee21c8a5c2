"""What one input has spent under the budgets of its run and stages, and its stored snapshots.

There is one `InputSpend` for an input in a process; all inner sessions of the input share it.
Several processes may pay for one input: one that was killed, and the one that continued its work.
Each process writes snapshots of what all of them have paid, by payer, so that no payment is counted
twice or forgotten, in whatever order the snapshots are read.

A killed process loses what it has spent since its last snapshot. So an attempt at a round of a
session may spend only a fixed share of each budget before that is written to the session's log.
An agent whose every step is stored writes down what a call may cost before it makes the call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from agentgraph.clock import SystemClock
from agentgraph.guards.mechanisms.limits import Progress
from agentgraph.guards.mechanisms.spending.budget import CostBudget, Spend
from agentgraph.guards.mechanisms.spending.tool_limit import ToolCalls

SHARE = 0.1
"""The share of a budget that an attempt at a round may spend before it writes to the log."""

ALL = "*"
"""The name for every budget in the shares of a log."""

Figures = Mapping[str, Mapping[str, Any]]
"""A snapshot by budget: "" names the budget of the run, a path that of a stage."""


class _Payment(NamedTuple):
    """What one payer has paid in all, as of one of its snapshots: the latest one counts."""

    snapshot: int
    tokens: int
    usd: Decimal


class _LogBalance(NamedTuple):
    """What a session's log has: snapshots, shares written ahead, the share of dead attempts."""

    figures: Figures
    shares: Mapping[str, float]
    dead_share: float


class InputSpend:
    """The spending of one input: a `Spend` for each of its budgets, and what other payers paid."""

    def __init__(self) -> None:
        # Never the id of a fake clock: two processes under test would be one payer.
        self._payer = SystemClock().new_id()[:12]
        self._snapshots = 0
        self.progress = Progress()
        self.tool_calls = ToolCalls()
        self.grants = 1
        """How often the limits were granted: once at first, once more by each human who agrees."""
        self.log_lock = asyncio.Lock()
        """Acquired while shares are written to the log: no call may overtake its record."""
        self._spends: dict[str, Spend] = {}
        self._payments: dict[str, dict[str, _Payment]] = {}
        """What other payers have paid, by budget and payer."""
        self._grants: dict[str, int] = {}
        """How often each budget was granted, by any payer."""
        self._logs: list[_LogBalance] = []
        """The log of the session, and those of the sessions around it."""
        self._logged_shares: dict[str, float] | None = None
        """The share of each budget up to which the log covers spending, None outside a session."""
        self.read_levels: set[str] = set()
        """The graph levels of which the snapshots of other processes were read."""

    def spend(self, name: str, budget: CostBudget) -> Spend:
        """Return the spending under one budget, the same object each time."""
        if name not in self._spends:
            spend = self._spends[name] = Spend(budget)
            spend.count_in(*_total(self._payments.get(name, {})), self._grants.get(name, 1))
            self._count_shares(name, spend)
            if self._logged_shares is not None:
                self._logged_shares[name] = spend.share + SHARE
        return self._spends[name]

    def grant(self) -> None:
        """Allow all limits once more: a human has agreed to it."""
        self.grants += 1
        for spend in self._spends.values():
            spend.grant()

    def begin_attempt(self) -> None:
        """Begin an attempt at a round, which may spend one share before it writes to the log."""
        self._logged_shares = {name: spend.share + SHARE for name, spend in self._spends.items()}

    def unlogged_shares(self) -> dict[str, float]:
        """Return the shares, by budget, that must be written to the log before the next call."""
        shares: dict[str, float] = {}
        for name, logged_share in (self._logged_shares or {}).items():
            if (excess := self._spends[name].share - logged_share) > 0:
                shares[name] = math.ceil(excess / SHARE) * SHARE
        return shares

    def mark_logged(self, shares: Mapping[str, float]) -> None:
        """Note that shares were written to the log."""
        if self._logged_shares is not None:
            for name, share in shares.items():
                self._logged_shares[name] = self._logged_shares.get(name, 0.0) + share

    def reconcile(self, figures: Figures, shares: Mapping[str, float], dead_share: float) -> None:
        """Adopt what a log has of the spending of other processes.

        `shares` were written ahead, by budget or for `ALL`. Attempts whose process was killed may
        have spent `dead_share` of each budget beside the log. Both count as spent.
        """
        self.merge(figures)
        self._logs.append(_LogBalance(figures, shares, dead_share))
        for name, spend in self._spends.items():
            self._count_shares(name, spend)

    def merge(self, snapshot: Figures) -> None:
        """Count what other payers have paid, from the snapshot of any of them."""
        for budget, figures in snapshot.items():
            payments = self._payments.setdefault(budget, {})
            before = _total(payments)
            for payer, payment in _payments_of(figures):
                if payer != self._payer and payment > payments.get(payer, _NO_PAYMENT):
                    payments[payer] = payment
            grants = max(self._grants.get(budget, 1), int(figures.get("granted", 1)))
            self._grants[budget] = grants
            if budget in self._spends:
                tokens, usd = _total(payments)
                self._spends[budget].count_in(tokens - before[0], usd - before[1], grants)

    def dump(self) -> dict[str, Any]:
        """Return a snapshot of what all payers have paid, as JSON-able values.

        A reserved amount counts as paid: the reader cannot know whether the call was made.
        """
        self._snapshots += 1
        names = {**self._payments, **self._spends} if self._payments else self._spends
        return {name: self._figures(name) for name in names}

    def _figures(self, name: str) -> dict[str, Any]:
        payments = self._payments.get(name) or {}
        rows = {payer: [p.snapshot, p.tokens, str(p.usd)] for payer, p in payments.items()}
        spend = self._spends.get(name)
        if spend is None:
            return {"granted": self._grants.get(name, 1), "paid": rows}
        tokens, usd = _total(payments)
        own_tokens = spend.tokens + spend.reserved_tokens - tokens
        own_usd = spend.usd + spend.reserved_usd - usd
        rows[self._payer] = [self._snapshots, own_tokens, str(own_usd)]
        return {"granted": spend.grants, "paid": rows}

    def _count_shares(self, name: str, spend: Spend) -> None:
        """Count as spent what may have been spent according to the logs."""
        for log in self._logs:
            share = log.shares.get(name, 0.0) + log.shares.get(ALL, 0.0) + log.dead_share
            if share:
                spend.hold(*_total(dict(_payments_of(log.figures.get(name, {})))), share)


_NO_PAYMENT = _Payment(0, 0, Decimal(0))


def _total(payments: Mapping[str, _Payment]) -> tuple[int, Decimal]:
    if not payments:
        return 0, _NO_PAYMENT.usd
    values = payments.values()
    return sum(p.tokens for p in values), sum((p.usd for p in values), Decimal(0))


def _payments_of(figures: Mapping[str, Any]) -> Iterator[tuple[str, _Payment]]:
    for payer, (snapshot, tokens, usd) in figures.get("paid", {}).items():
        yield payer, _Payment(int(snapshot), int(tokens), Decimal(usd))
