"""What is known where a run waits for a human: a node that waits writes nothing to the state.

It is noted beside the checkpoint that the node began from, and read where another process goes on.
A session has it in its log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from langchain_core.runnables import RunnableConfig

from agentgraph.guards.nodes.watch import Watch
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.channel import Dumped, latest
from agentgraph.guards.records.pending_writes import PAUSED, SideNotes, notes_beside
from agentgraph.running import current_run


async def note_pause(watch: Watch, config: RunnableConfig) -> None:
    """Note what is known now."""
    notes = notes_beside(config)
    if notes is not None and watch.recorder.ledger is None:
        await notes.write(watch.account.dump(), PAUSED)


async def catch_up(watch: Watch, config: RunnableConfig) -> None:
    """Go on from what was known where this level of the graph has paused, once in a run."""
    notes, account, run = notes_beside(config), watch.account, current_run()
    if notes is None or watch.recorder.ledger is not None:
        return
    level = notes.level, "" if run is None else run.id
    if level in account.caught_up:
        return
    async with account.catching_up:  # those side by side all go on with what is known then
        if level not in account.caught_up:
            await _read(account, notes)
            account.caught_up.add(level)


async def _read(account: Account, notes: SideNotes) -> None:
    for told in await notes.read(PAUSED):
        if told.get("input") == account.input_id:
            account.meet(told)
    for key in await notes.registered():
        account.underway.promise(key, notes)


async def note_actions(account: Account, notes: SideNotes) -> None:
    """Note which actions wait for a human, or for one to answer beside them: only it knows that."""
    if account.saga is not None and account.saga.waits_for_any:
        await notes.write(account.dump(), PAUSED)
    if unbegun := await account.underway.unbegun():
        await notes.register(unbegun)
        for key in unbegun:
            account.underway.promise(key, notes)


def left_to_undo(
    accounts: Iterable[Dumped], input_id: str, unbegun: Collection[str]
) -> Dumped | None:
    """Return the account of an input that was ended and has done something, of what is known of it.

    It is one for all levels of a run, of which each has it as it was there. What has not begun,
    by its keys, is not to be undone.
    """
    told: Dumped = {}
    closed = ""
    for one in accounts:
        if one.get("input") == input_id:
            told, closed = latest(told, one), one.get("closed") or closed
    if not closed or "saga" not in told:
        return None
    entries = {
        key: {**entry, "state": "failed"} if key in unbegun else entry
        for key, entry in told["saga"]["entries"].items()
    }
    return {**told, "closed": closed, "saga": {"entries": entries}}
