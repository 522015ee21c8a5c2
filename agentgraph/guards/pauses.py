"""What is known where a run waits for a human: a node that waits writes nothing to the state.

It is noted beside the checkpoint that the node began from, and read where another process goes on.
A session has it in its log.
"""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from agentgraph.guards.guarded_state import Dumped, latest
from agentgraph.guards.side_notes import PAUSED, notes_beside
from agentgraph.guards.watch import Watch

__all__ = ["catch_up", "left_to_undo", "note_pause", "noted_in"]


async def note_pause(watch: Watch, config: RunnableConfig) -> None:
    """Note what is known now."""
    notes = notes_beside(config)
    if notes is not None and watch.recorder.ledger is None:
        await notes.write(watch.account.dump(), PAUSED)


async def catch_up(watch: Watch, config: RunnableConfig) -> None:
    """Go on from what was known where this level of the graph has paused, once."""
    notes, account = notes_beside(config), watch.account
    if notes is None or watch.recorder.ledger is not None or notes.level in account.caught_up:
        return
    account.caught_up.add(notes.level)
    for told in await notes.read(PAUSED):
        if told.get("input") == account.input_id and told["version"] > account.version:
            account.load(told)
            account.purse.meet(told["spends"])


def noted_in(stored: CheckpointTuple | None) -> list[Dumped]:
    """Return what was noted beside a checkpoint."""
    writes = () if stored is None else stored.pending_writes or ()
    return [value for _, channel, value in writes if channel == PAUSED]


def left_to_undo(accounts: Iterable[Dumped], input_id: str) -> Dumped | None:
    """Return the account of an input that was ended and has done something, of what is known of it.

    It is one for all levels of a run, of which each has it as it was there.
    """
    told: Dumped = {}
    closed = ""
    for one in accounts:
        if one.get("input") == input_id:
            told, closed = latest(told, one), one.get("closed") or closed
    return {**told, "closed": closed} if closed and "saga" in told else None
