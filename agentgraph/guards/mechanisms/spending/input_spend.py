"""What one input has spent under the budgets of its run and its stages, and what of it is on file.

It is one for the input, whatever sessions are held inside of others for it.

Several processes may pay for one input: one that was killed, and whoever went on with it. Each has
a purse with a name of its own and writes down what all of them have paid, so that nothing is
counted twice or forgotten, in whatever order their files are read.

A process that is killed forgets what it has spent since it was last written down. So an attempt at
a round of a session may spend a share of each budget that nobody has written down, and not more.
An agent whose every step is stored writes down what a call may cost before it makes it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from agentgraph.clock import SystemClock
from agentgraph.guards.mechanisms.spending.budget import CostBudget, Spend

SHARE = 0.1
"""What of a budget an attempt at a round may spend before that is written to the session's log."""

ALL = "*"
"""Every budget there is."""

Figures = Mapping[str, Mapping[str, Any]]
"""What was spent, by budget: the run's is called "", that of a stage as its path."""
_Paid = tuple[int, int, Decimal]
"""Which of a purse's notes it is, and the tokens and dollars in it."""


class InputSpend:
    """The accounts from which the calls of one input are paid."""

    def __init__(self) -> None:
        # Never a fake clock's id: those of two tests are the same.
        self._name = SystemClock().new_id()[:12]
        self._notes = 0
        self.steps = 0
        """How many model calls were made."""
        self.granted = 1
        """How often the limits hold: a human who lets a stopped run go on grants them once more."""
        self.filing = asyncio.Lock()
        """Held while it is written down what may be spent: no call overtakes its record."""
        self._spends: dict[str, Spend] = {}
        self._others: dict[str, dict[str, _Paid]] = {}
        """What other purses have paid, by budget and purse."""
        self._granted: dict[str, int] = {}
        self._logs: list[tuple[Figures, Mapping[str, float], float]] = []
        """What each log has, of the session and of those around it."""
        self._kept: dict[str, float] | None = None
        """Up to which share each is in the log, None outside of a session."""
        self.recalled: set[str] = set()
        """The levels of whose graphs the notes were read that another process has left."""

    def begin_attempt(self) -> None:
        """Begin an attempt at a round; what is spent in it is not in the log, or by its records."""
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
        """Go on from what a log has: what was spent, what may have been, and what is not in it.

        `dead` is the share that the attempts may have spent whose process was killed.
        """
        self.meet(logged)
        self._logs.append((logged, held, dead))
        for name, spend in self._spends.items():
            self._hold(name, spend)

    def meet(self, dumped: Figures) -> None:
        """Count in what purses have paid, as one of them has written it down."""
        for of, figures in dumped.items():
            others = self._others.setdefault(of, {})
            before = _total(others)
            for name, paid in _read(figures):
                if name != self._name and paid > others.get(name, _NOTHING):
                    others[name] = paid
            self._granted[of] = max(self._granted.get(of, 1), int(figures.get("granted", 1)))
            if of in self._spends:
                tokens, usd = _total(others)
                self._spends[of].count_in(tokens - before[0], usd - before[1], self._granted[of])

    def grant(self) -> None:
        """Allow as much again of everything: a human has agreed to it."""
        self.granted += 1
        for spend in self._spends.values():
            spend.grant()

    def dump(self) -> dict[str, Any]:
        """Return as JSON-able values what all purses have paid; what is held back may have been."""
        self._notes += 1
        names = {**self._others, **self._spends} if self._others else self._spends
        return {name: self._dumped(name) for name in names}

    def _dumped(self, name: str) -> dict[str, Any]:
        others = self._others.get(name) or {}
        paid = {purse: [*one[:2], str(one[2])] for purse, one in others.items()}
        spend = self._spends.get(name)
        if spend is None:
            return {"granted": self._granted.get(name, 1), "paid": paid}
        tokens, usd = _total(others)
        own = [spend.tokens + spend.reserved_tokens - tokens]
        own_usd = spend.usd + spend.reserved_usd - usd
        paid[self._name] = [self._notes, *own, str(own_usd)]
        return {"granted": spend.granted, "paid": paid}

    def spend(self, name: str, budget: CostBudget) -> Spend:
        """Return what is spent under one budget."""
        if name not in self._spends:
            spend = self._spends[name] = Spend(budget)
            spend.count_in(*_total(self._others.get(name, {})), self._granted.get(name, 1))
            self._hold(name, spend)
            if self._kept is not None:
                self._kept[name] = spend.share + SHARE
        return self._spends[name]

    def _hold(self, name: str, spend: Spend) -> None:
        for logged, held, dead in self._logs:
            share = held.get(name, 0.0) + held.get(ALL, 0.0) + dead
            if share:
                spend.hold(*_total(dict(_read(logged.get(name, {})))), share)


_NOTHING: _Paid = (0, 0, Decimal(0))


def _total(paid: Mapping[str, _Paid]) -> tuple[int, Decimal]:
    if not paid:
        return 0, _NOTHING[2]
    return sum(one[1] for one in paid.values()), sum((one[2] for one in paid.values()), Decimal(0))


def _read(figures: Mapping[str, Any]) -> Iterator[tuple[str, _Paid]]:
    for name, (note, tokens, usd) in figures.get("paid", {}).items():
        yield name, (int(note), int(tokens), Decimal(usd))
