"""The account at a pause: what is known where a run waits for a human.

A node that waits writes nothing to the state. So the account is written beside the checkpoint that
the node began from, and read where a run goes on, maybe in another process. In a session it is in
the log instead, and nothing here is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from langchain_core.runnables import RunnableConfig

from agentgraph.guards.records.account import Account, Snapshot
from agentgraph.guards.records.pending_writes import PAUSE_CHANNEL, PendingWrites, pending_writes_of
from agentgraph.guards.records.registry import latest
from agentgraph.running import current_run


async def note_pause(account: Account, config: RunnableConfig) -> None:
    """Write the account beside the checkpoint of the node around this code."""
    pending_writes = pending_writes_of(config)
    if pending_writes is not None:
        await pending_writes.write(account.dump(), PAUSE_CHANNEL)


async def catch_up(account: Account, config: RunnableConfig) -> None:
    """Read what was known where this level of the graph has paused, once in a run."""
    pending_writes, run = pending_writes_of(config), current_run()
    if pending_writes is None:
        return
    level = pending_writes.namespace, "" if run is None else run.id
    if level in account.caught_up:
        return
    # Parallel nodes wait here: each of them has to go on with what was known then.
    async with account.catch_up_lock:
        if level not in account.caught_up:
            await _read(account, pending_writes)
            account.caught_up.add(level)


async def _read(account: Account, pending_writes: PendingWrites) -> None:
    for snapshot in await pending_writes.read(PAUSE_CHANNEL):
        if snapshot.get("input") == account.input_id:
            account.merge(snapshot)
    for key in await pending_writes.registered_keys():
        account.in_flight.register(key, pending_writes)


async def note_actions(account: Account, pending_writes: PendingWrites) -> None:
    """Note which actions wait for a human, or for an answer beside them: only this process knows.

    Those that are registered and have not begun may be begun by the process that goes on.
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
    """Return the account of an input that was ended after it had done something, else None.

    `accounts` are those of all levels of the run: each is one stage of the same account. `unbegun`
    has the keys of actions that were registered only, which need no undoing.
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
