"""The account at a pause, where a run waits for a human.

A waiting node writes nothing to the state. So the account is written to the pending writes of the
checkpoint that the node began from, and read where the run goes on, maybe in another process. In a
session the account is in the log instead, and this module is not used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from langchain_core.runnables import RunnableConfig

from agentgraph.guards.records.account import Account, Snapshot
from agentgraph.guards.records.pending_writes import PAUSE_CHANNEL, PendingWrites, pending_writes_of
from agentgraph.guards.records.registry import latest
from agentgraph.running import current_run


async def note_pause(account: Account, config: RunnableConfig) -> None:
    """Write the account to the pending writes of the node around this code."""
    pending_writes = pending_writes_of(config)
    if pending_writes is not None:
        await pending_writes.write(account.dump(), PAUSE_CHANNEL)


async def catch_up(account: Account, config: RunnableConfig) -> None:
    """Read the account of this graph level's pause, once in a run."""
    pending_writes, run = pending_writes_of(config), current_run()
    if pending_writes is None:
        return
    level = pending_writes.namespace, "" if run is None else run.id
    if level in account.caught_up:
        return
    # Parallel nodes wait here: each of them must go on with the account of the pause.
    async with account.catch_up_lock:
        if level not in account.caught_up:
            await _read(account, pending_writes)
            account.caught_up.add(level)


async def _read(account: Account, pending_writes: PendingWrites) -> None:
    for snapshot in await pending_writes.read(PAUSE_CHANNEL):
        if snapshot.get("input") == account.input_id:
            account.merge(snapshot)
    if account.effect_log is not None:
        await account.effect_log.merge_into(account)
    for key in await pending_writes.registered_keys():
        account.in_flight.register(key, pending_writes)


async def note_actions(account: Account, pending_writes: PendingWrites) -> None:
    """Store which actions wait for a human, or for a parallel question: only this process knows.

    The process that goes on may begin the actions that are registered and have not begun.
    """
    if account.saga is not None and account.saga.waits_for_any:
        await pending_writes.write(account.dump(), PAUSE_CHANNEL)
    if unbegun_keys := await account.in_flight.unbegun_keys():
        await pending_writes.register(unbegun_keys)
        for key in unbegun_keys:
            account.in_flight.register(key, pending_writes)


def left_to_undo(
    accounts: Iterable[Snapshot], input_id: str, unbegun: Collection[str]
) -> Snapshot | None:
    """Return the account of an input that was ended and has actions to undo, else None.

    `accounts` are snapshots of one account, from all levels of the run. `unbegun` has the keys of
    actions that were only registered, which need no undoing.
    """
    last: Snapshot = {}
    closed_by = ""
    for snapshot in accounts:
        if snapshot.get("input") == input_id:
            last, closed_by = latest(last, snapshot), snapshot.get("closed") or closed_by
    if not closed_by or "saga" not in last:
        return None
    entries = {
        key: {**entry, "state": "failed"} if key in unbegun else entry
        for key, entry in last["saga"]["entries"].items()
    }
    return {**last, "closed": closed_by, "saga": {"entries": entries}}
