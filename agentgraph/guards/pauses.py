"""What is known where a run waits for a human: a node that waits writes nothing to the state.

It is noted beside the checkpoint that the node began from, and read where another process goes on.
A session has it in its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.guards.guarded_state import Dumped, latest
from agentgraph.guards.side_notes import PAUSED, notes_beside
from agentgraph.guards.watch import Watch

__all__ = ["catch_up", "left_to_undo", "note_pause"]


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


def left_to_undo(
    notes: Iterable[Sequence[Any]], levels: Iterable[Dumped], input_id: str
) -> Dumped | None:
    """Return the account of a run that was ended while others in it still wait for a human.

    `notes` are what stands beside its last checkpoint, `levels` what each level of its graph has.
    None where nothing was ended, or nothing was done.
    """
    noted = [one for _, channel, one in notes if channel == PAUSED and one["input"] == input_id]
    closed = next((one["closed"] for one in noted if one.get("closed")), "")
    told: Dumped = {}
    for one in (*levels, *noted):
        if one.get("input") == input_id:
            told = latest(told, one)
    return {**told, "closed": closed} if closed and "saga" in told else None
