"""An account in the rounds of a session, where a round that failed is run again."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentgraph.guards.place import others_of, own_of
from agentgraph.guards.records.channel import BY_PATH, BY_SPOT, Dumped, decisions_of
from agentgraph.interception import Ledger

if TYPE_CHECKING:
    from agentgraph.guards.records.account import Account


class Rounds:
    """Which attempt at a round is under way, and what the account was before the round."""

    def __init__(self) -> None:
        self._attempt = ""
        self._turns: dict[str, str] = {}
        """In which attempt each speaker has begun."""
        self._before: Dumped = {}

    def enter(self, account: Account, ledger: Ledger, *, anew: bool) -> None:
        """Go on in an attempt at a round; one that begins anew is charged for no other one."""
        if account.round != ledger.round:
            account.round, self._turns = ledger.round, {}
            account.closed = ""
            self._forget_turns(account)
            account.moved = Tally(ledger.account.get("hops", 0))
        if self._attempt != ledger.round_key:
            self._attempt = ledger.round_key
            account.is_rolling_back = bool(ledger.account.get("undoing"))
            account.closed = ledger.account.get("undoing") or account.closed
            account.spending.begin_attempt()
        if self._turns.setdefault(ledger.speaker, ledger.round_key) != ledger.round_key:
            self._turns[ledger.speaker] = ledger.round_key
            if anew:
                self._take_back(account, ledger.speaker)

    def _forget_turns(self, account: Account) -> None:
        """Begin a round: who looks the same up in each turn of theirs does not go in a circle."""
        account.loops, account.corrections = {}, {}
        account.stored = {**account.stored, "loops": {}}
        self._before = {**account.dumped, "loops": {}, "corrections": {}}

    def _take_back(self, account: Account, speaker: str) -> None:
        """Forget what a speaker did in this round, but for what it has spent and done."""
        before, stored = self._before, dict(account.stored)
        account.moved.take_back(speaker)
        for name in BY_PATH:
            setattr(account, name, others_of(speaker, getattr(account, name)))
            was = own_of(speaker, before.get(name, {}))
            stored[name] = {**others_of(speaker, stored.get(name, {})), **was}
        account.stored = stored
        for name in BY_SPOT:
            was = own_of(speaker, deepcopy(before.get(name, {})))
            setattr(account, name, {**others_of(speaker, getattr(account, name)), **was})
        left = decisions_of(before.get("pending", {}))
        account.pending = {**others_of(speaker, account.pending), **own_of(speaker, left)}
        account.underway.forget()
        if account.deadlock is not None:
            account.deadlock.load(before.get("deadlock", {}))


@dataclass(slots=True)
class Tally:
    """What was counted before this round, and in it by speaker."""

    before: int = 0
    now: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return the whole count."""
        return self.before + sum(self.now.values())

    def count(self, speaker: str, times: int = 1) -> None:
        """Count one more, or several."""
        self.now[speaker] = self.now.get(speaker, 0) + times

    def take_back(self, speaker: str) -> None:
        """Count nothing of what a speaker did in this round: it is done again."""
        self.now.pop(speaker, None)

    def dump(self) -> dict[str, object]:
        """Return the count as JSON-able values."""
        return {"before": self.before, "now": dict(self.now)}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Take the count that `dump` gave."""
        self.before, self.now = dumped.get("before", 0), dict(dumped.get("now", {}))
