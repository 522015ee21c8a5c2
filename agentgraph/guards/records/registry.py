"""Where the account of an input is found: in this process, in a graph's state, in a session's log.

A process keeps one account for each input, so that parallel branches count together. When a node
opens the account, what other processes have written of it is merged into it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from typing_extensions import TypedDict

from agentgraph.guards.mechanisms.deadlines import Deadline
from agentgraph.guards.mechanisms.saga_entry import merge_entries
from agentgraph.guards.mechanisms.spending.tool_limit import earlier_calls
from agentgraph.guards.place import of_other_trees, of_tree
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import (
    BY_PATH,
    BY_VISIT,
    Account,
    Snapshot,
    Tally,
    pending_of,
)
from agentgraph.guards.records.enclosure import current_enclosure
from agentgraph.interception import Ledger, outer_call


class _NoStore:
    """The scope of input ids that come from no agent and no session."""


_NO_STORE = _NoStore()
_open: WeakKeyDictionary[object, WeakValueDictionary[str, Account]] = WeakKeyDictionary()
"""The accounts in use, by the store within which their input ids are unique."""
_recent: deque[Account] = deque(maxlen=64)
_recent_without_store: deque[Account] = deque(maxlen=1_000)
"""The latest accounts to which no run and no session refers between two of their nodes."""


def account_of(
    policy: Policy,
    input_id: str,
    snapshot: Snapshot | None,
    ledger: Ledger | None = None,
    id_scope: object = None,
) -> Account:
    """Return the account of an input: this process's own, else a new one.

    It is merged with the graph's state (`snapshot`) and the session's log (`ledger`). `id_scope` is
    the store that made the input's id: in another store the same id means another input.
    """
    accounts = _accounts_in(_NO_STORE if id_scope is None else id_scope)
    account = accounts.get(input_id)
    earlier: Snapshot = {}
    if snapshot is not None and snapshot.get("input") != input_id:
        earlier, snapshot = snapshot, None
    is_new = account is None
    if account is None:
        account = accounts[input_id] = _new_account(policy, input_id)
        if id_scope is None:
            _recent_without_store.append(account)
    if is_new and account.parent is None and "called" in earlier:  # the thread's earlier inputs
        account.spending.tool_calls.merge({"earlier": earlier_calls(earlier["called"])})
    if ledger is not None:
        ledger.retain(account)
    if snapshot is not None and snapshot is not account.snapshot:
        # Into the same account, never a new one: parallel branches must not count apart.
        account.merge(snapshot)
    if snapshot is not None and policy.audit is not None and not policy.audit.knows(account.run_id):
        # Another process has begun its records.
        policy.audit.resume(account.run_id, is_regulated=policy.tier == "regulated")
    if is_new and ledger is not None:
        _reconcile(account, ledger.account, ledger.speaker)
    if ledger is not None:
        _enter_round(account, ledger, anew=snapshot is None)
    return account


def _new_account(policy: Policy, input_id: str) -> Account:
    """Return the account of a new input, or of a run that begins in a tool of another input."""
    enclosure = None if outer_call() is None else current_enclosure()
    if enclosure is None:
        # A stage may open the account first: the account is under the policy of the whole input.
        return Account(policy.outermost, input_id)
    return enclosure.account_of(policy, input_id)


def drop_accounts(id_scope: object, prefix: str) -> None:
    """Drop the accounts of the inputs whose ids begin so: such ids may come again."""
    accounts = _accounts_in(id_scope)
    for input_id in [input_id for input_id in accounts if input_id.startswith(prefix)]:
        accounts.pop(input_id, None)


def _accounts_in(id_scope: object) -> WeakValueDictionary[str, Account]:
    if (accounts := _open.get(id_scope)) is None:
        accounts = _open[id_scope] = WeakValueDictionary()
    return accounts


def retain(account: Account) -> None:
    """Keep an account in memory for a while: a graph without its agent has no run to keep it."""
    if account not in _recent:
        _recent.append(account)


# In a graph's state.


def latest(first: Snapshot, second: Snapshot) -> Snapshot:
    """Merge two stored accounts: a new input's replaces the old one, else the later version wins.

    The result has the actions of both: a branch that was killed and runs again reuses version
    numbers, and no action of the other branch must be lost.
    """
    if first.get("input") != second.get("input"):
        return second
    later = second if second.get("version", 0) >= first.get("version", 0) else first
    sagas = [snapshot.get("saga", {}) for snapshot in (first, second)]
    if sagas[0] == sagas[1]:
        return later
    merged_saga = merge_entries(*sagas)
    if merged_saga == later.get("saga"):
        return later
    version = max(first.get("version", 0), second.get("version", 0)) + 1
    return {**later, "saga": merged_saga, "version": version}


class GuardedState(TypedDict, total=False):
    """The channel in which a graph keeps the account; it crosses all levels."""

    guarded: Annotated[dict[str, Any], latest]


# In a session's log.


def _reconcile(account: Account, log_values: Mapping[str, Any], speaker: str) -> None:
    """Merge what the log of a session has of an input into its account."""
    # The log has what other speakers did; a speaker's own round is in it only when the round ends.
    own = account.hop_count.now.get(speaker)
    account.hop_count = Tally(log_values.get("hops", 0), {speaker: own} if own else {})
    balance = log_values.get("account", {})
    account.load_counts(balance)
    if "deadline" in balance:
        is_stored = bool(account.base)
        stored_at = account.deadline.at if is_stored and account.deadline is not None else 0
        account.deadline = Deadline(max(stored_at, balance["deadline"]), "workflow")
    shares = log_values.get("held", {}), log_values.get("dead", 0)
    account.spending.reconcile(balance.get("spends", {}), *shares)
    if account.saga is not None and log_values.get("effects"):
        entries = {"entries": log_values["effects"]}
        account.saga.absorb(entries)


def _enter_round(account: Account, ledger: Ledger, *, anew: bool) -> None:
    """Enter an attempt at a round; with `anew`, forget the speaker's part of earlier attempts."""
    progress = account.progress
    if account.round != ledger.round:
        account.round, progress.attempts_by_speaker = ledger.round, {}
        account.closed_by = ""
        _forget_visits(account)
        account.hop_count = Tally(ledger.account.get("hops", 0))
    if progress.attempt != ledger.round_key:
        progress.attempt = ledger.round_key
        account.is_rolling_back = bool(ledger.account.get("undoing"))
        account.closed_by = ledger.account.get("undoing") or account.closed_by
        account.spending.begin_attempt()
    attempts = progress.attempts_by_speaker
    if attempts.setdefault(ledger.speaker, ledger.round_key) != ledger.round_key:
        attempts[ledger.speaker] = ledger.round_key
        if anew:
            _take_back(account, ledger.speaker)


def _forget_visits(account: Account) -> None:
    """Forget loop memories at a round's begin: one and the same call in every turn is no loop."""
    account.loops, account.corrections = {}, {}
    account.base = {**account.base, "loops": {}}
    account.progress.before = {**account.snapshot, "loops": {}, "corrections": {}}


def _take_back(account: Account, speaker: str) -> None:
    """Forget the speaker's part of this round, except its spending and its actions."""
    before, base = account.progress.before, dict(account.base)
    progress = account.spending.progress
    progress.handoffs = max(0, progress.handoffs - account.hop_count.now.get(speaker, 0))
    account.hop_count.take_back(speaker)
    for name in BY_PATH:
        setattr(account, name, of_other_trees(speaker, getattr(account, name)))
        own = of_tree(speaker, before.get(name, {}))
        base[name] = {**of_other_trees(speaker, base.get(name, {})), **own}
    account.base = base
    for name in BY_VISIT:
        own = of_tree(speaker, deepcopy(before.get(name, {})))
        setattr(account, name, {**of_other_trees(speaker, getattr(account, name)), **own})
    own_pending = of_tree(speaker, pending_of(before))
    account.pending = {**of_other_trees(speaker, account.pending), **own_pending}
    account.in_flight.forget()
    if account.deadlock is not None:
        account.deadlock.load(before.get("deadlock", {}))
