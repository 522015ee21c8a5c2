"""Who stands guard at a node: made from what its graph has stored, or still there from before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.guards.nodes.foreign_calls import last_said
from agentgraph.guards.nodes.watch import Watch
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.accounts import account_of, hold
from agentgraph.guards.records.pending_writes import SideNotes, resumption, side_notes
from agentgraph.guards.records.recorder import Recorder
from agentgraph.interception import Ledger, current_ledger
from agentgraph.patching import read_state, read_value, stores_meanwhile
from agentgraph.running import Run, current_delegation, current_run


def watch_before(place: Place, state: Mapping[str, Any]) -> Watch | None:
    """Return who stood at the run's last node, if that was here and nobody else has written."""
    run = current_run()
    watch = None if run is None else run.watch
    if not isinstance(watch, Watch) or watch.account.may_ask:
        return None
    turn, stored = state.get("turn") or {}, state.get("guarded") or {}
    is_here = watch.place.path == place.path and watch.place.visit == current_delegation()
    if not is_here or turn.get("closed") or not watch.account.has_told(stored):
        return None
    watch.begin({"turn": turn, "guarded": stored})
    return watch


def watch_of(
    policy: Guards,
    place: Place,
    channels: tuple[str, ...],
    state: Mapping[str, Any],
    config: RunnableConfig,
) -> Watch:
    """Return who stands at a node of an agent's own graph, of which guards read such channels."""
    kept = _kept(state, channels, config)
    ledger, run = current_ledger(), current_run()
    turn = kept.get("turn") or {}
    notes = side_notes(config) if ledger is None else None
    account = _account(policy, kept, state, ledger, notes)
    account.closed = account.closed or turn.get("closed") or ""
    if run is not None:
        _join(run, account, ledger)
    elif notes is not None:
        hold(account)  # nobody else does between two nodes
    if account.may_ask and "human" not in kept:
        kept = {**kept, "human": read_value(config, "human")}  # which no node is given
    watch = watch_at(policy, place, account, kept, config, ledger, notes)
    # Run by its agent, which stops before no node; a model's node that waits notes all of it.
    watch.is_noted = run is not None and ledger is None and stores_meanwhile(config)
    return watch


def watch_at(
    policy: Guards,
    place: Place,
    account: Account,
    kept: Mapping[str, Any],
    config: RunnableConfig,
    ledger: Ledger | None,
    notes: SideNotes | None,
) -> Watch:
    """Return who stands at a place, for this visit to it."""
    level = policy.at(place.path)
    if place.visit != (visit := current_delegation()):
        place = replace(place, visit=visit)
    thread = str(config.get("configurable", {}).get("thread_id") or "")
    recorder = Recorder(level, place, account, thread, ledger, notes)
    resumed = resumption(config) if ledger is None else None
    return Watch(level, place, account, recorder, kept, resumption=resumed)


def _kept(
    state: Mapping[str, Any], channels: tuple[str, ...], config: RunnableConfig
) -> Mapping[str, Any]:
    if "turn" not in state or "guarded" not in state:  # a task of a `Send`, or the first one
        return read_state(config, channels)
    return {"turn": state["turn"], "guarded": state["guarded"]}


def _account(
    policy: Guards,
    kept: Mapping[str, Any],
    state: Mapping[str, Any],
    ledger: Ledger | None,
    notes: SideNotes | None,
) -> Account:
    stored = kept.get("guarded")
    if ledger is not None:
        return account_of(policy, ledger.input_id, stored, ledger, ledger.home)
    run, turn = current_run(), kept.get("turn") or {}
    home: object = notes.saver if notes is not None else None
    if run is not None and run.owner is not None:
        home = run.owner
    input_id = turn.get("id") or last_said(state.get("messages") or ())
    return account_of(policy, input_id, stored, None, home)


def _join(run: Run, account: Account, ledger: Ledger | None) -> None:
    """Have what is counted live as long as its run, and with its times."""
    if run.account is None and account.version == 0 and ledger is None:
        account.begin(run.began_at + run.reader_wait_s)
    run.account = account if account.around is None else account.whole
    if run.is_resumed:
        account.may_ask = True  # elsewhere, perhaps, and more may be known there
        account.resume(run.id)
