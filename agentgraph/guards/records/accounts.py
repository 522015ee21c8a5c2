"""The accounts that this process keeps, each for as long as somebody works with it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

from agentgraph.guards.records.account import Account
from agentgraph.guards.records.channel import Dumped
from agentgraph.interception import Ledger

if TYPE_CHECKING:
    from agentgraph.guards.policy import Guards


class _Nowhere:
    """Where those inputs are at home that come by no agent and no session."""


_NOWHERE = _Nowhere()
_kept: deque[Account] = deque(maxlen=64)
_open: WeakKeyDictionary[object, WeakValueDictionary[str, Account]] = WeakKeyDictionary()
_homeless: deque[Account] = deque(maxlen=1_000)
"""The last of those that no run and no session holds between two of its nodes."""


def hold(account: Account) -> None:
    """Keep an account for a while: a graph that runs without its agent has nobody to do so."""
    if account not in _kept:
        _kept.append(account)


def account_of(
    policy: Guards,
    input_id: str,
    stored: Dumped | None,
    ledger: Ledger | None = None,
    home: object = None,
) -> Account:
    """Return the account of an input: this process's own, else what is stored of it.

    `home` is the store that the input is at home in: another one may know the same id.
    """
    known = _at_home(_NOWHERE if home is None else home)
    found = known.get(input_id)
    if stored is not None and stored.get("input") != input_id:
        stored = None
    is_new = found is None
    if found is None:
        # Of whoever comes first, only what holds for all is held against all.
        found = known[input_id] = Account(policy.whole, input_id)
        if home is None:
            _homeless.append(found)
    if ledger is not None:
        ledger.hold(found)
    if stored is not None and not found.has_told(stored):
        found.meet(stored)  # into the same account: who works with it must not count elsewhere
    if stored is not None and policy.audit is not None and not policy.audit.knows(found.run_id):
        policy.audit.resume(found.run_id)  # another process has begun its records
    if is_new and ledger is not None:
        found.reconcile(ledger.account, ledger.speaker)
    if ledger is not None:
        found.rounds.enter(found, ledger, anew=stored is None)
    return found


def _at_home(home: object) -> WeakValueDictionary[str, Account]:
    if (known := _open.get(home)) is None:
        known = _open[home] = WeakValueDictionary()
    return known
