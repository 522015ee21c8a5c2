"""What one input has spent under the budgets of its run and its stages, and what of it is on file.

A process that is killed forgets what it has spent since it was last written down. So an attempt at
a round of a session may spend a share of each budget that nobody has written down, and not more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentgraph.guards.budget import CostBudget, Spend

__all__ = ["ALL", "SHARE", "Purse"]

SHARE = 0.1
"""What of a budget an attempt at a round may spend before that is written to the session's log."""

ALL = "*"
"""Every budget there is."""

Figures = Mapping[str, Mapping[str, Any]]
"""What was spent, by budget: the run's is called "", that of a stage as its path."""


class Purse:
    """The accounts from which the calls of one input are paid."""

    def __init__(self, budget: CostBudget | None) -> None:
        self._budget = budget
        self._spends: dict[str, Spend] = {}
        self._stored: Figures = {}
        self._logged: Figures = {}
        self._held: Mapping[str, float] = {}
        self._dead = 0.0
        self._kept: dict[str, float] | None = None
        """Up to which share each is on file, None where nothing is to be."""

    def at(self, path: str, budget: CostBudget | None) -> list[Spend]:
        """Return the accounts from which a call of an agent is paid: the run's, and its own."""
        spends = [self._spend("", self._budget)] if self._budget is not None else []
        if budget is not None and budget is not self._budget:
            spends.append(self._spend(path, budget))
        return spends

    def begin_attempt(self) -> None:
        """Begin an attempt at a round; what is spent in it is not on file, or by its records."""
        self._kept = {name: spend.share + SHARE for name, spend in self._spends.items()}

    def off_file(self) -> dict[str, float]:
        """Return the shares that must be written down before the next call."""
        shares: dict[str, float] = {}
        for name, kept in (self._kept or {}).items():
            if (missing := self._spends[name].share - kept) > 0:
                shares[name] = math.ceil(missing / SHARE) * SHARE
        return shares

    def filed(self, shares: Mapping[str, float]) -> None:
        """Note that shares were written down."""
        if self._kept is not None:
            self._kept |= {name: self._kept.get(name, 0.0) + one for name, one in shares.items()}

    def reconcile(self, logged: Figures, held: Mapping[str, float], dead: float) -> None:
        """Go on from what a log has: what was spent, what may have been, and what is not on file.

        `dead` is the share that the attempts may have spent whose process was killed.
        """
        self._logged, self._held, self._dead = logged, held, dead
        for name, spend in self._spends.items():
            self._raise(name, spend)

    def grant(self) -> None:
        """Allow as much again of everything: a human has agreed to it."""
        for spend in self._spends.values():
            spend.grant()

    def dump(self) -> dict[str, Any]:
        """Return the accounts as JSON-able values."""
        made = {name: spend.dump() for name, spend in self._spends.items()}
        return {**self._stored, **made}

    def load(self, dumped: Figures) -> None:
        """Take the accounts that `dump` gave."""
        self._stored = dumped
        self._spends.clear()

    def _spend(self, name: str, budget: CostBudget | None) -> Spend:
        if name not in self._spends:
            spend = self._spends[name] = Spend(budget)
            if stored := self._stored.get(name):
                spend.load(stored)
            self._raise(name, spend)
            if self._kept is not None:
                self._kept[name] = spend.share + SHARE
        return self._spends[name]

    def _raise(self, name: str, spend: Spend) -> None:
        logged = Spend(spend.budget)
        logged.load(self._logged.get(name, {}))
        share = self._held.get(name, 0.0) + self._held.get(ALL, 0.0) + self._dead
        if share or logged.tokens or logged.usd:
            spend.granted = max(spend.granted, logged.granted)
            spend.raise_to(logged.tokens, logged.usd, share)
